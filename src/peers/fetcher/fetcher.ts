import {
  assert,
  isWorkerId,
  type NamespaceIndex,
  type WorkerId,
  yieldToLoop,
} from "../../core/index.ts";
import type { FetchOptions, FetchOutcome, PeerTier, SourceHas } from "../../store/index.ts";
import type { PeerAnswer, PeerRequest, WantedBlock } from "../messages.ts";
import { TRANSPORTS } from "../transport.ts";
import { Admission } from "./admission.ts";
import { BlockFetch, FetchCall, Traces } from "./block-fetch.ts";
import { Candidates, CostModel, FetchForecast, PeerDenylist } from "./candidates.ts";
import {
  Discovery,
  type FindOptions,
  findNames,
  PeerQueries,
  type WorkersFound,
} from "./discovery.ts";
import {
  type FetchCounters,
  type FetcherOptions,
  type FetcherStats,
  type FetchLimits,
  type PeerStatus,
  PULL_OUTCOMES,
  type PullOptions,
  type PullTrace,
} from "./fetch-options.ts";
import { FetchScheduler } from "./fetch-scheduler.ts";
import { Peers } from "./peer.ts";
import { IdleConnections } from "./peer-path.ts";

/** The parts of a fetcher, for use by each other. */
export class FetchContext {
  readonly parts: FetcherOptions;
  /** Limits currently in effect. */
  limits: FetchLimits;
  readonly counters = zeroCounters();
  readonly idle = new IdleConnections();
  readonly admission: Admission;
  readonly peers: Peers;
  readonly denylist: PeerDenylist;
  readonly cost: CostModel;
  readonly queries: PeerQueries;
  readonly discovery: Discovery;
  readonly candidates: Candidates;

  constructor(parts: FetcherOptions) {
    this.parts = parts;
    this.limits = parts.limits;
    this.admission = new Admission(parts.limits);
    this.peers = new Peers(this);
    this.denylist = new PeerDenylist(parts.clock);
    this.cost = new CostModel(this);
    this.queries = new PeerQueries(this);
    this.discovery = new Discovery(this);
    this.candidates = new Candidates(this);
  }
}

function zeroCounters(): FetchCounters {
  const noBlocks = () => ({ blocks: 0, bytes: 0, fallbacks: 0 });
  const events = { corrupt: 0, hedges: 0, hedgesWon: 0, fallbacks: 0, sharedPulls: 0 };
  return {
    outcomes: mapNames(PULL_OUTCOMES, () => 0),
    ...events,
    byTransport: mapNames(TRANSPORTS, noBlocks),
  };
}

function mapNames<Name extends string, T>(names: readonly Name[], make: () => T): Record<Name, T> {
  return Object.fromEntries(names.map((name) => [name, make()])) as Record<Name, T>;
}

/** Maximum deadline of a caller in milliseconds from now. */
const DEADLINE_MS_MAX = 3_600_000;
const KEY_BYTES = 32;
/** Number of fetches to start before yielding to the event loop. */
const STARTS_A_SLICE = 256;
/**
 * Milliseconds by which the fetch for an engine ends before the engine's deadline, so that the
 * engine receives the results in time.
 */
const BEFORE_END_MS = 2;

/**
 * Fetches blocks from peers. Promises:
 *
 * - Concurrent requests for the same block share one fetch, with the most urgent priority among
 *   them.
 * - The fetcher reserves RAM before it asks a peer. A block that fails verification never becomes
 *   visible, and its slot is freed once nothing can write to it.
 * - Bytes in flight stay below the limits. Every wait ends: by the deadline, by the signal, or
 *   because the peer makes no progress.
 * - A peer that fails is not asked for a cooldown, which grows with each failure. The fetch
 *   continues with another peer, and also asks another peer if the first is slower than the 95th
 *   percentile of its latest replies.
 */
export class Fetcher implements PeerTier, AsyncDisposable {
  readonly #context: FetchContext;
  readonly #forecast: FetchForecast;
  readonly #scheduler: FetchScheduler;
  readonly #traces: Traces;
  /** Running fetches, by namespace and block key. All callers that want a block share its fetch. */
  readonly #fetches = new Map<string, BlockFetch>();
  readonly #calls = new Set<FetchCall>();
  #closed = false;

  constructor(parts: FetcherOptions) {
    this.#context = new FetchContext(parts);
    this.#traces = new Traces(parts.clock);
    this.#forecast = new FetchForecast(this.#context);
    this.#scheduler = new FetchScheduler(this.#context, (fetch) => {
      this.#fetches.delete(nameOf(fetch));
    });
  }

  get stats(): FetcherStats {
    const { inFlightBytes, waiting } = this.#context.admission;
    return { ...structuredClone(this.#context.counters), inFlightBytes, waiting };
  }

  configure(limits: FetchLimits): void {
    this.#context.limits = limits;
    this.#context.admission.configure(limits);
  }

  promising(namespace: NamespaceIndex, keys: Uint32Array, from: number, count: number): number {
    return this.#closed ? 0 : this.#forecast.promising(namespace, keys, from, count);
  }

  fetch(
    namespace: NamespaceIndex,
    blocks: readonly WantedBlock[],
    options: FetchOptions,
  ): Promise<FetchOutcome[]> {
    const deadlineMs = options.deadlineMs - Math.min(BEFORE_END_MS, options.deadlineMs / 4);
    return this.pull(namespace, blocks, {
      ...options,
      priority: "acquire",
      deadlineMs,
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
    const key = this.#context.parts.namespaces.keyOf(namespace);
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
    const call = new FetchCall(blocks.length, options.stopAtMiss);
    const namespaceKey = this.#context.parts.namespaces.keyOf(namespace);
    if (namespaceKey === null || this.#closed || options.signal.aborted) {
      call.end("miss");
      return await call.done;
    }
    const { clock } = this.#context.parts;
    const deadlineMs = Math.min(Math.max(options.deadlineMs, 0), DEADLINE_MS_MAX);
    using _late = clock.after(deadlineMs, () => call.end("late"));
    const abort = () => call.end("miss");
    options.signal.addEventListener("abort", abort, { once: true });
    this.#calls.add(call);
    const untilMs = clock.monotonicMs() + deadlineMs;
    const fetches = this.#coalesce(namespace, namespaceKey, blocks, options, untilMs);
    call.onLeave = (index, late) => {
      const fetch = fetches[index];
      if (fetch.leave(call, index)) this.#scheduler.unwanted(fetch, late);
    };
    for (const [index, fetch] of fetches.entries())
      if (call.wants(index)) fetch.join(call, index, untilMs);
    void this.#start(namespace, fetches, options);
    const outcomes = await call.done;
    this.#calls.delete(call);
    options.signal.removeEventListener("abort", abort);
    return outcomes;
  }

  /**
   * Finds blocks at other hosts by engines' names (8 or 32 bytes each). Asks `sources` first, then
   * other peers.
   */
  async find(
    names: readonly Uint8Array[],
    sources: readonly WorkerId[],
    options: FindOptions,
  ): Promise<readonly WorkersFound[]> {
    if (this.#closed) return names.map(() => []);
    return await findNames(this.#context, names, sources, options);
  }

  /** Returns false if the peer is unknown or its circuit breaker blocks requests. */
  mayAsk(worker: WorkerId): boolean {
    return !this.#closed && this.#context.peers.get(worker)?.mayBeAsked === true;
  }

  /**
   * Sends one short request over the fetcher's connections. Resolves with null if it fails for any
   * reason.
   */
  async ask(
    worker: WorkerId,
    request: Exclude<PeerRequest, { op: "pull" }>,
    options: FindOptions,
  ): Promise<PeerAnswer | null> {
    const peer = this.#closed ? null : this.#context.peers.get(worker);
    return peer === null ? null : await this.#context.queries.ask(peer, request, options);
  }

  /**
   * Returns why these blocks would not be fetched now. Null if they would be. Used by `explain`.
   */
  whyNot(namespace: NamespaceIndex, blocks: readonly WantedBlock[]): string | null {
    if (this.#closed) return "the agent is shutting down";
    return this.#forecast.whyNot(namespace, blocks, this.#keysOf(blocks));
  }

  peers(): readonly PeerStatus[] {
    return this.#context.peers.status();
  }

  /**
   * Returns the histories of the latest fetches, newest first: of the block `key`, or of all blocks
   * if it is null.
   */
  traces(key: string | null): readonly PullTrace[] {
    return this.#traces.list(key);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true;
    for (const call of [...this.#calls]) call.end("miss");
    for (const fetch of [...this.#fetches.values()])
      this.#scheduler.settle(fetch, "aborted", "the agent is shutting down");
    this.#context.discovery.close();
    const { queries, peers } = this.#context;
    await Promise.all([queries.close(), this.#scheduler.settled(), peers.close()]);
  }

  /** Returns the fetch of each block: the running one, or a new one. */
  #coalesce(
    namespace: NamespaceIndex,
    namespaceKey: Uint8Array,
    blocks: readonly WantedBlock[],
    { priority }: PullOptions,
    deadlineMs: number,
  ): BlockFetch[] {
    const keys = this.#keysOf(blocks);
    return blocks.map(({ digest, layer }, index) => {
      const keyBytes = keys.slice(index * KEY_BYTES, (index + 1) * KEY_BYTES);
      const key = keyBytes.toHex();
      const under = this.#fetches.get(`${namespace} ${key}`);
      if (under !== undefined) {
        this.#context.counters.sharedPulls++;
        if (under.raisePriority(priority)) this.#scheduler.raisePriority(under);
        return under;
      }
      const trace = this.#traces.begin({ key, digest: digest.toHex(), layer }, priority);
      const place = { namespace, namespaceKey, digest: digest.slice(), layer, keyBytes };
      const fetch = new BlockFetch({ ...place, trace, deadlineMs }, priority);
      this.#fetches.set(nameOf(fetch), fetch);
      return fetch;
    });
  }

  /**
   * Starts the new ones among these fetches. Ends those that are estimated to be slower than
   * recomputing.
   */
  async #start(
    namespace: NamespaceIndex,
    fetches: readonly BlockFetch[],
    options: PullOptions,
  ): Promise<void> {
    const fresh = [...new Set(fetches)].filter((fetch) => fetch.fresh);
    for (const fetch of fetches) fetch.offer(options.sources);
    for (const fetch of fresh) fetch.fresh = false;
    const doubt =
      options.always || options.priority !== "acquire"
        ? null
        : this.#forecast.whyUnprofitable(namespace, fresh);
    for (const [index, fetch] of fresh.entries()) {
      if (index > 0 && index % STARTS_A_SLICE === 0) await yieldToLoop();
      if (fetch.settled !== null) continue;
      if (doubt === null) this.#scheduler.advance(fetch);
      else this.#scheduler.settle(fetch, "unprofitable", doubt);
    }
  }

  #keysOf(blocks: readonly WantedBlock[]): Uint8Array {
    const { deriveKeys } = this.#context.parts;
    const keys = new Uint8Array(blocks.length * KEY_BYTES);
    for (let from = 0; from < blocks.length; ) {
      const { layer } = blocks[from];
      let to = from + 1;
      while (to < blocks.length && blocks[to].layer === layer) to++;
      const digests = new Uint8Array((to - from) * KEY_BYTES);
      for (let index = from; index < to; index++) {
        const { digest } = blocks[index];
        assert(digest.length === KEY_BYTES, "a digest has 32 bytes");
        digests.set(digest, (index - from) * KEY_BYTES);
      }
      keys.set(deriveKeys(digests, layer), from * KEY_BYTES);
      from = to;
    }
    return keys;
  }
}

function nameOf({ namespace, key }: BlockFetch): string {
  return `${namespace} ${key}`;
}
