import { assert, type NamespaceIndex, unreachable, type WorkerId } from "../../core/index.ts";
import type { PeerAnswer, PeerFound, PeerHas, PeerRequest } from "../messages.ts";
import type { BlockFetch } from "./block-fetch.ts";
import type { FetchContext } from "./fetcher.ts";
import type { Peer } from "./peer.ts";

/** Maximum number of blocks in one `has` request. */
const BLOCKS_MAX = 1_024;

interface QueryOptions {
  readonly deadlineMs: number;
  readonly signal?: AbortSignal;
}

interface HasBatch {
  readonly peer: Peer;
  readonly namespace: NamespaceIndex;
  readonly fetches: BlockFetch[];
  readonly resolvers: ((has: PeerHas | null) => void)[];
  deadlineMs: number;
}

/**
 * Sends short requests to peers. All `has` queries to one peer in one turn of the event loop share
 * one request. A failed request is recorded as a fault of the peer, and returns null.
 */
export class PeerQueries {
  readonly #context: FetchContext;
  readonly #rounds = new Map<string, HasBatch>();
  readonly #stop = new AbortController();
  readonly #open = new Set<Promise<unknown>>();

  constructor(context: FetchContext) {
    this.#context = context;
  }

  /** Asks a peer about its copy of this block. Null if the request fails. */
  has(peer: Peer, fetch: BlockFetch, deadlineMs: number): Promise<PeerHas | null> {
    const name = `${fetch.namespace} ${peer.worker}`;
    let round = this.#rounds.get(name);
    if (round === undefined || round.fetches.length === BLOCKS_MAX) {
      const { namespace } = fetch;
      const begun: HasBatch = { peer, namespace, fetches: [], resolvers: [], deadlineMs: 0 };
      round = begun;
      this.#rounds.set(name, begun);
      queueMicrotask(() => {
        if (this.#rounds.get(name) === begun) this.#rounds.delete(name);
        void this.#ask(begun);
      });
    }
    const { promise, resolve } = Promise.withResolvers<PeerHas | null>();
    round.fetches.push(fetch);
    round.resolvers.push(resolve);
    round.deadlineMs = Math.max(round.deadlineMs, deadlineMs);
    return promise;
  }

  /** Sends one request. Null if it fails. */
  async ask(
    peer: Peer,
    request: Exclude<PeerRequest, { op: "pull" }>,
    options: QueryOptions,
  ): Promise<PeerAnswer | null> {
    const asking = this.#call(peer, request, options);
    this.#open.add(asking);
    return await asking.finally(() => this.#open.delete(asking));
  }

  async close(): Promise<void> {
    this.#stop.abort();
    await Promise.all(this.#open);
  }

  async #ask({ peer, fetches, resolvers, deadlineMs }: HasBatch): Promise<void> {
    const { namespaceKey } = fetches[0];
    const blocks = fetches.map(({ digest, layer }) => ({ digest, layer }));
    const request: PeerRequest = { op: "has", namespace: namespaceKey, blocks };
    const answer = await this.ask(peer, request, { deadlineMs });
    const said =
      answer?.op === "has" && answer.blocks.length === blocks.length ? answer.blocks : [];
    for (const [index, resolve] of resolvers.entries()) resolve(said[index] ?? null);
  }

  async #call(
    peer: Peer,
    request: Exclude<PeerRequest, { op: "pull" }>,
    { deadlineMs, signal }: QueryOptions,
  ): Promise<PeerAnswer | null> {
    if (peer.breaker.state === "open" && !peer.breaker.enter()) return null;
    const opened = await peer.open(new Set());
    if (!opened.ok) return null;
    const { path, connection } = opened;
    using _use = path.use(connection);
    using stop = stopWith([this.#stop.signal, ...(signal === undefined ? [] : [signal])]);
    const { progressMs } = this.#context.limits;
    const called = await connection.call(request, {
      deadlineMs: Math.min(deadlineMs, progressMs),
      signal: stop.signal,
    });
    if (called.ok) {
      peer.answered(path);
      return called.answer;
    }
    const { kind } = called.fault;
    // If the caller's deadline is shorter than the progress timeout, missing it is not a fault of
    // the peer.
    const isHasty = kind === "stalled" && connection.fault === null && deadlineMs < progressMs;
    if (isHasty || kind === "aborted" || kind === "closed") {
      peer.breaker.withdraw();
      path.breaker.withdraw();
    } else peer.failed(path, called.fault, connection);
    return null;
  }
}

/**
 * Creates a signal that fires with the first of `signals`. Disposing removes its listeners from
 * them.
 */
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

/** Maximum number of names in one request, and maximum number of peers asked. */
const NAMES_MAX = 256;
const PEERS_MAX = 16;

export type WorkersFound = readonly (PeerFound & { readonly worker: WorkerId })[];

export interface FindOptions {
  readonly deadlineMs: number;
  readonly signal: AbortSignal;
}

/**
 * Finds blocks at other hosts by the names that engines use. Asks `sources` first, then other peers
 * about the names not found. The result lists each peer's reply separately. Replies are unverified;
 * a block is verified when it arrives.
 */
export async function findNames(
  { peers, queries }: FetchContext,
  names: readonly Uint8Array[],
  sources: readonly WorkerId[],
  options: FindOptions,
): Promise<WorkersFound[]> {
  const found: (PeerFound & { worker: WorkerId })[][] = names.map(() => []);
  const ask = async (peer: Peer, places: readonly number[]) => {
    for (let from = 0; from < places.length && !options.signal.aborted; from += NAMES_MAX) {
      const some = places.slice(from, from + NAMES_MAX);
      const request = { op: "find" as const, names: some.map((place) => names[place]) };
      const answer = await queries.ask(peer, request, options);
      if (answer?.op !== "find" || answer.found.length !== some.length) return;
      for (const [index, place] of some.entries())
        for (const one of answer.found[index]) found[place].push({ ...one, worker: peer.worker });
    }
  };
  const named = [...new Set(sources)].flatMap((worker) => peers.get(worker) ?? []);
  const usable = named.filter((peer) => peer.breaker.allows).slice(0, PEERS_MAX);
  const all = names.map((_, place) => place);
  await Promise.all(usable.map((peer) => ask(peer, all)));
  const left = all.filter((place) => found[place].length === 0);
  if (left.length === 0) return found;
  const others = peers
    .reachable()
    .filter((peer) => !usable.includes(peer))
    .slice(0, PEERS_MAX);
  await Promise.all(others.map((peer) => ask(peer, left)));
  return found;
}

/**
 * Maximum milliseconds to wait for the router (`LOCATE_MS`) and for peers (`ASK_MS`). The wait also
 * never exceeds half of the time left.
 */
const LOCATE_MS = 250;
/** Maximum milliseconds to wait for the router if an engine waits for the blocks. */
const LOCATE_SOON_MS = 25;
const ASK_MS = 250;
/**
 * If the router does not reply to a request that waited at least `LOCATE_REASONABLE_MS`, it is not
 * asked for `LOCATE_PAUSE_MS`.
 */
const LOCATE_REASONABLE_MS = 200;
const LOCATE_PAUSE_MS = 5_000;
/** Maximum number of peers asked about a block for which no candidate is known. */
const ASKED_MAX = 16;

interface LocateBatch {
  readonly fetches: BlockFetch[];
  readonly done: Promise<void>;
}

/**
 * Finds peers that may have a block, in three steps: the router, the peers' summaries, and a
 * request to each peer. A step is taken only after all candidates of earlier steps have failed.
 */
export class Discovery {
  readonly #context: FetchContext;
  readonly #stop = new AbortController();
  #round: LocateBatch | null = null;
  #pausedUntilMs = Number.NEGATIVE_INFINITY;

  constructor(context: FetchContext) {
    this.#context = context;
  }

  /** Runs the block's next discovery step, which may add candidate peers. */
  async step(fetch: BlockFetch): Promise<void> {
    const { search } = fetch;
    switch (search) {
      case "located":
        fetch.search = "known";
        return await this.#locate(fetch);
      case "known":
        fetch.search = "asked";
        return this.#know(fetch);
      case "asked":
        fetch.search = "over";
        return await this.#ask(fetch);
      case "over":
        return;
      default:
        unreachable(search, "search");
    }
  }

  /** Returns whether the next `step` completes without waiting. */
  isReady(fetch: BlockFetch): boolean {
    const { search } = fetch;
    return search === "known" || (search === "located" && !this.#mayLocate());
  }

  close(): void {
    this.#stop.abort();
  }

  #know(fetch: BlockFetch): void {
    const holders = this.#context.parts.blockHolders.holders(fetch.namespaceKey, fetch.keyBytes, 0);
    if (fetch.offer(holders)) fetch.trace.step(`summaries: ${holders.join(", ")}`);
  }

  #mayLocate(): boolean {
    const { locator, clock } = this.#context.parts;
    return locator !== null && clock.monotonicMs() >= this.#pausedUntilMs;
  }

  /**
   * Asks the router for candidates. All blocks of one namespace in one turn of the event loop share
   * one request.
   */
  async #locate(fetch: BlockFetch): Promise<void> {
    if (!this.#mayLocate()) return;
    if (this.#round === null) {
      const fetches: BlockFetch[] = [];
      const done = Promise.resolve().then(async () => {
        this.#round = null;
        const named = Map.groupBy(fetches, (one) => one.namespace);
        await Promise.all([...named.values()].map((some) => this.#locateAll(some)));
      });
      this.#round = { fetches, done };
    }
    this.#round.fetches.push(fetch);
    await this.#round.done;
  }

  async #locateAll(fetches: readonly BlockFetch[]): Promise<void> {
    const { locator, clock } = this.#context.parts;
    assert(locator !== null, "a router is configured");
    const keys = fetches.map((fetch) => fetch.keyBytes);
    const isUrgent = fetches.some(({ priority }) => priority === "acquire");
    const longestMs = isUrgent ? LOCATE_SOON_MS : LOCATE_MS;
    const ms = Math.min(longestMs, this.#halfOfRest(fetches));
    const [{ namespaceKey }] = fetches as readonly [BlockFetch];
    const located = await locator.locate(namespaceKey, keys, ms, this.#stop.signal);
    if (located === null && ms >= LOCATE_REASONABLE_MS)
      this.#pausedUntilMs = clock.monotonicMs() + LOCATE_PAUSE_MS;
    for (const [index, fetch] of fetches.entries()) {
      const workers = located?.[index] ?? [];
      if (fetch.offer(workers)) fetch.trace.step(`router: ${workers.join(", ")}`);
    }
  }

  /**
   * Asks each peer whether it has the block. Skipped for engines' requests, because recomputing is
   * faster.
   */
  async #ask(fetch: BlockFetch): Promise<void> {
    if (fetch.priority === "acquire") return;
    const ms = Math.min(ASK_MS, this.#halfOfRest([fetch]));
    const { peers, queries } = this.#context;
    const asked = peers
      .within(fetch.namespaceKey.toHex())
      .filter(({ worker }) => !fetch.candidates.includes(worker))
      .slice(0, ASKED_MAX);
    const answers = await Promise.all(
      asked.map(async (peer) => [peer, await queries.has(peer, fetch, ms)] as const),
    );
    for (const [peer, has] of answers) {
      if (has === null || has.tiers === 0) continue;
      fetch.measure(has);
      fetch.offer([peer.worker]);
    }
    fetch.trace.step(`asked ${asked.length} other peers`);
  }

  #halfOfRest(fetches: readonly BlockFetch[]): number {
    const untilMs = Math.max(...fetches.map((fetch) => fetch.deadlineMs));
    return Math.max((untilMs - this.#context.parts.clock.monotonicMs()) / 2, 1);
  }
}
