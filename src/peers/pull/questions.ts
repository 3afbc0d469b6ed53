import type { NamespaceIndex } from "../../core/index.ts";
import type { PeerAnswer, PeerHas, PeerRequest } from "../messages.ts";
import type { Flight } from "./flight.ts";
import type { Peer } from "./peer.ts";
import type { Room } from "./room.ts";

/** Blocks in one `has`. */
const BLOCKS_MAX = 1_024;

export interface Patience {
  readonly deadlineMs: number;
  readonly signal?: AbortSignal;
}

interface Round {
  readonly peer: Peer;
  readonly namespace: NamespaceIndex;
  readonly flights: Flight[];
  readonly resolvers: ((has: PeerHas | null) => void)[];
  deadlineMs: number;
}

/**
 * Short questions to peers. What is asked of one peer in one turn of the loop is one question. A
 * fault is written into the peer's books and answered with null.
 */
export class Questions {
  readonly #room: Room;
  readonly #rounds = new Map<string, Round>();
  readonly #stop = new AbortController();
  readonly #open = new Set<Promise<unknown>>();

  constructor(room: Room) {
    this.#room = room;
  }

  /** What the peer has of this block; null: it did not say. */
  has(peer: Peer, flight: Flight, deadlineMs: number): Promise<PeerHas | null> {
    const name = `${flight.namespace} ${peer.worker}`;
    let round = this.#rounds.get(name);
    if (round === undefined || round.flights.length === BLOCKS_MAX) {
      const { namespace } = flight;
      const begun: Round = { peer, namespace, flights: [], resolvers: [], deadlineMs: 0 };
      round = begun;
      this.#rounds.set(name, begun);
      queueMicrotask(() => {
        if (this.#rounds.get(name) === begun) this.#rounds.delete(name);
        void this.#ask(begun);
      });
    }
    const { promise, resolve } = Promise.withResolvers<PeerHas | null>();
    round.flights.push(flight);
    round.resolvers.push(resolve);
    round.deadlineMs = Math.max(round.deadlineMs, deadlineMs);
    return promise;
  }

  /** One question; null: no answer. */
  async ask(
    peer: Peer,
    request: Exclude<PeerRequest, { op: "pull" }>,
    patience: Patience,
  ): Promise<PeerAnswer | null> {
    const asking = this.#call(peer, request, patience);
    this.#open.add(asking);
    return await asking.finally(() => this.#open.delete(asking));
  }

  async close(): Promise<void> {
    this.#stop.abort();
    await Promise.all(this.#open);
  }

  async #ask({ peer, flights, resolvers, deadlineMs }: Round): Promise<void> {
    const { namespaceKey } = flights[0]!;
    const blocks = flights.map(({ digest, layer }) => ({ digest, layer }));
    const request: PeerRequest = { op: "has", namespace: namespaceKey, blocks };
    const answer = await this.ask(peer, request, { deadlineMs });
    const said =
      answer?.op === "has" && answer.blocks.length === blocks.length ? answer.blocks : [];
    for (const [index, resolve] of resolvers.entries()) resolve(said[index] ?? null);
  }

  async #call(
    peer: Peer,
    request: Exclude<PeerRequest, { op: "pull" }>,
    { deadlineMs, signal }: Patience,
  ): Promise<PeerAnswer | null> {
    if (peer.breaker.state === "open" && !peer.breaker.enter()) return null;
    const opened = await peer.open(new Set());
    if (!opened.ok) return null;
    const { way, link } = opened;
    using _use = way.use(link);
    using stop = stopWith([this.#stop.signal, ...(signal === undefined ? [] : [signal])]);
    const { progressMs } = this.#room.limits;
    const called = await link.call(request, {
      deadlineMs: Math.min(deadlineMs, progressMs),
      signal: stop.signal,
    });
    if (called.ok) {
      peer.answered(way);
      return called.answer;
    }
    const { kind } = called.fault;
    // Who asks may have less patience than a peer needs: that is not the peer's fault.
    const isHasty = kind === "stalled" && link.fault === null && deadlineMs < progressMs;
    if (isHasty || kind === "aborted" || kind === "closed") {
      peer.breaker.withdraw();
      way.breaker.withdraw();
    } else peer.failed(way, called.fault, link);
    return null;
  }
}

/** Fires with the first of these, which keep nothing of it once it is disposed. */
function stopWith(signals: readonly AbortSignal[]): Disposable & { readonly signal: AbortSignal } {
  const controller = new AbortController();
  const abort = () => controller.abort();
  for (const signal of signals) {
    if (signal.aborted) abort();
    signal.addEventListener("abort", abort, { once: true });
  }
  return {
    signal: controller.signal,
    [Symbol.dispose]: () => {
      for (const signal of signals) signal.removeEventListener("abort", abort);
    },
  };
}
