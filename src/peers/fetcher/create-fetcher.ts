import {
  assert,
  isWorkerId,
  type NamespaceIndex,
  type WorkerId,
  yieldToLoop,
} from "../../core/index.ts";
import type { FetchOptions, FetchOutcome, SourceHas } from "../../store/index.ts";
import type { PeerAnswer, WantedBlock } from "../messages.ts";
import { TRANSPORTS, type TransportName } from "../transport.ts";
import { Admission } from "./admission.ts";
import { Call, Flight, Traces } from "./block-fetch.ts";
import { Candidates, Cost, Distrust, Prospects } from "./candidates.ts";
import {
  type FindOptions,
  findNames,
  Questions,
  Searches,
  type WorkersFound,
} from "./discovery.ts";
import { Machine } from "./fetch-scheduler.ts";
import {
  type PeerStatus,
  PULL_OUTCOMES,
  type Puller,
  type PullerParts,
  type PullerStats,
  type PullLimits,
  type PullOptions,
  type PullOutcome,
  type PullTrace,
} from "./fetcher.ts";
import { Peers } from "./peer.ts";
import { IdleLinks } from "./peer-path.ts";

/** What the parts of a puller share. */
export interface Room {
  readonly parts: PullerParts;
  readonly tallies: Tallies;
  readonly idle: IdleLinks;
  /** The latest. */
  limits: PullLimits;
}

/** Counts since the start. */
class Tallies {
  readonly #outcomes = Object.fromEntries(PULL_OUTCOMES.map((name) => [name, 0])) as Record<
    PullOutcome,
    number
  >;
  readonly #byTransport = Object.fromEntries(
    TRANSPORTS.map((name) => [name, { blocks: 0, bytes: 0, fallbacks: 0 }]),
  ) as Record<TransportName, { blocks: number; bytes: number; fallbacks: number }>;
  corrupt = 0;
  hedges = 0;
  hedgesWon = 0;
  sharedPulls = 0;
  #fallbacks = 0;

  ended(outcome: PullOutcome): void {
    this.#outcomes[outcome]++;
  }

  came(transport: TransportName, bytes: number): void {
    this.#byTransport[transport].blocks++;
    this.#byTransport[transport].bytes += bytes;
  }

  /** This transport failed, and another one took over. */
  fellBack(transport: TransportName): void {
    this.#fallbacks++;
    this.#byTransport[transport].fallbacks++;
  }

  stats(now: Pick<PullerStats, "inFlightBytes" | "waiting">): PullerStats {
    return {
      outcomes: { ...this.#outcomes },
      corrupt: this.corrupt,
      hedges: this.hedges,
      hedgesWon: this.hedgesWon,
      fallbacks: this.#fallbacks,
      sharedPulls: this.sharedPulls,
      ...now,
      byTransport: structuredClone(this.#byTransport),
    };
  }
}

/** Nobody waits longer than that. */
const DEADLINE_MS_MAX = 3_600_000;
const KEY_BYTES = 32;
/** Pulls begun before others have their turn. */
const STARTS_A_SLICE = 256;
/** An engine's request ends with its deadline, and takes what it has before. */
const BEFORE_END_MS = 2;

/** Brings blocks from other hosts over the transports it is given. See `Puller`. */
export function createPuller(parts: PullerParts): Puller {
  return new PeerPuller(parts);
}

class PeerPuller implements Puller {
  readonly #room: Room;
  readonly #admission: Admission;
  readonly #peers: Peers;
  readonly #questions: Questions;
  readonly #searches: Searches;
  readonly #prospects: Prospects;
  readonly #machine: Machine;
  readonly #traces: Traces;
  /** By namespace and key; each block once, whoever wants it. */
  readonly #flights = new Map<string, Flight>();
  readonly #calls = new Set<Call>();
  #closed = false;

  constructor(parts: PullerParts) {
    const shared = { tallies: new Tallies(), idle: new IdleLinks() };
    const room: Room = { parts, ...shared, limits: parts.limits };
    this.#room = room;
    const admission = new Admission(parts.limits);
    const peers = new Peers(room, (worker) => admission.bytesOf(worker));
    const distrust = new Distrust(parts.clock);
    const cost = new Cost(room);
    const questions = new Questions(room);
    const searches = new Searches(room, peers, questions);
    const nowMs = () => parts.clock.monotonicMs();
    const candidates = new Candidates(peers, cost, distrust, nowMs);
    const ended = (flight: Flight) => void this.#flights.delete(nameOf(flight));
    this.#admission = admission;
    this.#peers = peers;
    this.#questions = questions;
    this.#searches = searches;
    this.#traces = new Traces(parts.clock);
    this.#prospects = new Prospects({ room, peers, cost, distrust });
    this.#machine = new Machine({
      ...{ room, admission, candidates, searches, questions, distrust, ended },
    });
  }

  get stats(): PullerStats {
    const { inFlightBytes, waiting } = this.#admission;
    return this.#room.tallies.stats({ inFlightBytes, waiting });
  }

  configure(limits: PullLimits): void {
    this.#room.limits = limits;
    this.#admission.configure(limits);
  }

  promising(namespace: NamespaceIndex, keys: Uint32Array, from: number, count: number): number {
    return this.#closed ? 0 : this.#prospects.promising(namespace, keys, from, count);
  }

  fetch(
    namespace: NamespaceIndex,
    blocks: readonly WantedBlock[],
    options: FetchOptions,
  ): Promise<FetchOutcome[]> {
    const deadlineMs = options.deadlineMs - Math.min(BEFORE_END_MS, options.deadlineMs / 4);
    return this.pull(namespace, blocks, {
      ...options,
      ...{ priority: "acquire", deadlineMs },
      sources: options.sources?.filter(isWorkerId) ?? [],
      always: options.sources !== undefined && options.sources.length > 0,
    });
  }

  async whatHas(
    worker: string,
    namespace: NamespaceIndex,
    blocks: readonly WantedBlock[],
    options: FindOptions,
  ): Promise<readonly SourceHas[] | null> {
    const key = this.#room.parts.namespaces.keyOf(namespace);
    if (key === null || !isWorkerId(worker)) return null;
    const answer = await this.ask(worker, { op: "has", namespace: key, blocks }, options);
    if (answer?.op !== "has" || answer.blocks.length !== blocks.length) return null;
    return answer.blocks.map(({ tiers, generation }) => {
      if (tiers !== 0) return "here";
      return generation === 0n ? "absent" : "coming";
    });
  }

  async pull(
    namespace: NamespaceIndex,
    blocks: readonly WantedBlock[],
    options: PullOptions,
  ): Promise<FetchOutcome[]> {
    const call = new Call(blocks.length, options.stopAtMiss);
    const namespaceKey = this.#room.parts.namespaces.keyOf(namespace);
    if (namespaceKey === null || this.#closed || options.signal.aborted) {
      call.end("miss");
      return await call.done;
    }
    const { clock } = this.#room.parts;
    const deadlineMs = Math.min(Math.max(options.deadlineMs, 0), DEADLINE_MS_MAX);
    using _late = clock.after(deadlineMs, () => call.end("late"));
    const abort = () => call.end("miss");
    options.signal.addEventListener("abort", abort, { once: true });
    this.#calls.add(call);
    const untilMs = clock.monotonicMs() + deadlineMs;
    const flights = this.#board(namespace, namespaceKey, blocks, options, untilMs);
    call.onLeave = (index, late) => {
      const flight = flights[index]!;
      if (flight.leave(call, index)) this.#machine.unwanted(flight, late);
    };
    for (const [index, flight] of flights.entries())
      if (call.wants(index)) flight.join(call, index, untilMs);
    void this.#start(namespace, flights, options);
    const outcomes = await call.done;
    this.#calls.delete(call);
    options.signal.removeEventListener("abort", abort);
    return outcomes;
  }

  async find(
    names: readonly Uint8Array[],
    sources: readonly WorkerId[],
    options: FindOptions,
  ): Promise<readonly WorkersFound[]> {
    if (this.#closed) return names.map(() => []);
    return await findNames(
      { peers: this.#peers, questions: this.#questions },
      names,
      sources,
      options,
    );
  }

  mayAsk(worker: WorkerId): boolean {
    return !this.#closed && this.#peers.get(worker)?.mayBeAsked === true;
  }

  async ask(
    worker: WorkerId,
    request: Parameters<Puller["ask"]>[1],
    options: FindOptions,
  ): Promise<PeerAnswer | null> {
    const peer = this.#closed ? null : this.#peers.get(worker);
    return peer === null ? null : await this.#questions.ask(peer, request, options);
  }

  whyNot(namespace: NamespaceIndex, blocks: readonly WantedBlock[]): string | null {
    if (this.#closed) return "this host stops";
    return this.#prospects.whyNot(namespace, blocks, this.#keysOf(blocks));
  }

  peers(): readonly PeerStatus[] {
    return this.#peers.status();
  }

  traces(key: string | null): readonly PullTrace[] {
    return this.#traces.told(key);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true;
    for (const call of [...this.#calls]) call.end("miss");
    for (const flight of [...this.#flights.values()])
      this.#machine.settle(flight, "aborted", "this host stops");
    this.#searches.close();
    await Promise.all([this.#questions.close(), this.#machine.settled(), this.#peers.close()]);
  }

  /** The pull of each block: one that is under way, or a new one. */
  #board(
    namespace: NamespaceIndex,
    namespaceKey: Uint8Array,
    blocks: readonly WantedBlock[],
    { priority }: PullOptions,
    deadlineMs: number,
  ): Flight[] {
    const keys = this.#keysOf(blocks);
    return blocks.map(({ digest, layer }, index) => {
      const keyBytes = keys.slice(index * KEY_BYTES, (index + 1) * KEY_BYTES);
      const key = keyBytes.toHex();
      const under = this.#flights.get(`${namespace} ${key}`);
      if (under !== undefined) {
        this.#room.tallies.sharedPulls++;
        if (under.hasten(priority)) this.#machine.hasten(under);
        return under;
      }
      const trace = this.#traces.begin({ key, digest: digest.toHex(), layer }, priority);
      const place = { namespace, namespaceKey, digest: digest.slice(), layer, keyBytes };
      const flight = new Flight({ ...place, trace, deadlineMs }, priority);
      this.#flights.set(nameOf(flight), flight);
      return flight;
    });
  }

  /** Sets out for those that are new; those that do not pay end here. */
  async #start(
    namespace: NamespaceIndex,
    flights: readonly Flight[],
    options: PullOptions,
  ): Promise<void> {
    const fresh = [...new Set(flights)].filter((flight) => flight.fresh);
    for (const flight of flights) flight.offer(options.sources);
    for (const flight of fresh) flight.fresh = false;
    const doubt =
      options.always || options.priority !== "acquire"
        ? null
        : this.#prospects.tooDear(namespace, fresh);
    for (const [index, flight] of fresh.entries()) {
      if (index > 0 && index % STARTS_A_SLICE === 0) await yieldToLoop();
      if (flight.settled !== null) continue;
      if (doubt === null) this.#machine.advance(flight);
      else this.#machine.settle(flight, "unprofitable", doubt);
    }
  }

  #keysOf(blocks: readonly WantedBlock[]): Uint8Array {
    const { deriveKeys } = this.#room.parts;
    const keys = new Uint8Array(blocks.length * KEY_BYTES);
    for (let from = 0; from < blocks.length; ) {
      const { layer } = blocks[from]!;
      let to = from + 1;
      while (to < blocks.length && blocks[to]!.layer === layer) to++;
      const digests = new Uint8Array((to - from) * KEY_BYTES);
      for (let index = from; index < to; index++) {
        const { digest } = blocks[index]!;
        assert(digest.length === KEY_BYTES, "a digest has 32 bytes");
        digests.set(digest, (index - from) * KEY_BYTES);
      }
      keys.set(deriveKeys(digests, layer), from * KEY_BYTES);
      from = to;
    }
    return keys;
  }
}

function nameOf({ namespace, key }: Flight): string {
  return `${namespace} ${key}`;
}
