import { type Clock, messageOf, type NamespaceIndex, type Random } from "../../core/index.ts";
import type { PeerBlocks } from "../../store/index.ts";
import type { PeerAnswer, PeerFound, PeerHello, PeerRequest } from "../messages.ts";
import type { PeerServer, Served, TransportLog } from "../transport.ts";
import type { PeerIdentity } from "../trust.ts";
import { FOUND_MAX, type KeyFilter, KeyFilterBuilder } from "../wire/index.ts";
import { Backlog, modelOnWire, type PullRequest, ServedPull } from "./served-pull.ts";

/** Limits on serving blocks to peers. They can change while the agent runs. */
export interface ServeLimits {
  /**
   * Maximum bytes of blocks being sent: to all peers, and to one peer. A single larger block is
   * sent if nothing else is.
   */
  readonly bytesMax: number;
  readonly peerBytesMax: number;
  /** Maximum concurrent pulls and summary requests of one peer. */
  readonly peerRequestsMax: number;
  /** Maximum concurrent SSD reads: for all peers, and for one pull. */
  readonly readsMax: number;
  readonly pullReadsMax: number;
  /** Maximum milliseconds until a pull's deadline. Later deadlines are shortened. */
  readonly deadlineMaxMs: number;
  /** Keys, in hex, of the namespaces that peers may read. Null permits all. */
  readonly namespaces: ReadonlySet<string> | null;
  /**
   * Minimum age in milliseconds at which a namespace's summary is rebuilt: if blocks were added
   * (`summaryMs`), and if none were (`summaryStaleMs`).
   */
  readonly summaryMs: number;
  readonly summaryStaleMs: number;
}

export const SERVE_LIMITS: ServeLimits = {
  bytesMax: 512 * 2 ** 20,
  peerBytesMax: 128 * 2 ** 20,
  peerRequestsMax: 64,
  readsMax: 32,
  pullReadsMax: 8,
  deadlineMaxMs: 60_000,
  namespaces: null,
  summaryMs: 3_000,
  summaryStaleMs: 60_000,
};

/** Numbers of events since the start. */
export interface ServeCounts {
  pulls: number;
  /** Number of requests other than pulls. */
  questions: number;
  /** Numbers of blocks requested in pulls, by the kind of reply. */
  blocks: number;
  absent: number;
  busy: number;
  tooLong: number;
  refused: number;
  /** Payload bytes sent. */
  bytes: number;
  /** Number of requests for namespaces that are unknown or that peers may not read. */
  foreign: number;
  summariesBuilt: number;
}

export interface ServeStats extends Readonly<ServeCounts> {
  /** Current load. `peers`: number of peers with a request or block in progress. */
  readonly peers: number;
  readonly openPulls: number;
  readonly lentBlocks: number;
  readonly lentBytes: number;
  readonly reads: number;
}

function noCounts(): ServeCounts {
  const items = { blocks: 0, absent: 0, busy: 0, tooLong: 0, refused: 0, bytes: 0 };
  return { pulls: 0, questions: 0, ...items, foreign: 0, summariesBuilt: 0 };
}

/** Maximum number of cached summaries. Above it, the least recently used is dropped. */
const SUMMARIES_MAX = 64;
const BYTES_MAX = 64 * 2 ** 20;
/**
 * Maximum number of times that a filter is rebuilt because blocks were added while it was built.
 * After that, an undersized filter is accepted.
 */
const TRIES_MAX = 3;

interface Summary {
  /** Version of the summary: unique among all summaries of this host, also across restarts. */
  readonly version: bigint;
  readonly filter: KeyFilter;
  readonly madeMs: number;
  /** Value of `changesOf` before the filter was built. */
  readonly changes: number;
}

interface SummariesParts {
  readonly blocks: PeerBlocks;
  readonly clock: Clock;
  readonly random: Random;
  readonly log: TransportLog;
  readonly onBuilt: () => void;
}

/**
 * Builds and caches summaries (key filters) of this host's blocks, one per namespace. Builds one at
 * a time, for each namespace at most every few seconds, and usually in one pass over the blocks.
 */
class ServedSummaries {
  readonly #parts: SummariesParts;
  readonly #latest = new Map<NamespaceIndex, Summary>();
  readonly #making = new Map<NamespaceIndex, Promise<Summary | null>>();
  readonly #ended = new AbortController();
  /**
   * Upper 32 bits of the versions: random, so that versions differ from those of earlier processes.
   */
  readonly #era: bigint;
  #made = 0;
  #queue: Promise<unknown> = Promise.resolve();

  constructor(parts: SummariesParts) {
    this.#parts = parts;
    this.#era = BigInt(parts.random.u32() || 1) << 32n;
  }

  /**
   * Returns the current summary of a namespace; builds it if it is missing or too old. Null if that
   * fails.
   */
  async get(namespace: NamespaceIndex, limits: ServeLimits): Promise<Summary | null> {
    const latest = this.#latest.get(namespace);
    if (latest !== undefined && !this.#isDue(namespace, latest, limits)) {
      // Moves the summary to the end of the map: it is the most recently used.
      this.#latest.delete(namespace);
      this.#latest.set(namespace, latest);
      return latest;
    }
    const making = this.#making.get(namespace) ?? this.#begin(namespace);
    return (await making) ?? latest ?? null;
  }

  end(): void {
    this.#ended.abort();
  }

  #isDue(namespace: NamespaceIndex, latest: Summary, limits: ServeLimits): boolean {
    const ageMs = this.#parts.clock.monotonicMs() - latest.madeMs;
    if (ageMs < limits.summaryMs) return false;
    const hasNew = this.#parts.blocks.changesOf(namespace) !== latest.changes;
    return hasNew || ageMs >= limits.summaryStaleMs;
  }

  #begin(namespace: NamespaceIndex): Promise<Summary | null> {
    const making = this.#queue.then(() => this.#make(namespace));
    this.#making.set(namespace, making);
    this.#queue = making;
    return making;
  }

  /** Builds a namespace's summary. Resolves with null if that fails; never rejects. */
  async #make(namespace: NamespaceIndex): Promise<Summary | null> {
    const { blocks, log } = this.#parts;
    const before = this.#latest.get(namespace);
    try {
      const changes = blocks.changesOf(namespace);
      const filter = await this.#walk(namespace, before?.filter.keys ?? 0);
      if (this.#ended.signal.aborted) return null;
      const isSame =
        before !== undefined && Buffer.compare(before.filter.bytes, filter.bytes) === 0;
      const version = isSame ? before.version : this.#era + BigInt(++this.#made);
      const madeMs = this.#parts.clock.monotonicMs();
      return this.#keep(namespace, { version, filter, changes, madeMs });
    } catch (thrown) {
      if (this.#ended.signal.aborted) return null;
      log("error", `building a summary failed: ${messageOf(thrown)}`, {});
      return null;
    } finally {
      this.#making.delete(namespace);
    }
  }

  async #walk(namespace: NamespaceIndex, expected: number): Promise<KeyFilter> {
    const { blocks, onBuilt } = this.#parts;
    for (let tries = 1; ; tries++) {
      const builder = new KeyFilterBuilder(expected);
      await blocks.eachKey(namespace, (key) => builder.add(key), this.#ended.signal);
      if (!builder.overfull || tries === TRIES_MAX) {
        onBuilt();
        return builder.done();
      }
      expected = builder.keys;
    }
  }

  #keep(namespace: NamespaceIndex, summary: Summary): Summary {
    this.#latest.delete(namespace);
    this.#latest.set(namespace, summary);
    let bytes = 0;
    for (const { filter } of this.#latest.values()) bytes += filter.bytes.length;
    for (const [oldest, { filter }] of this.#latest) {
      if (oldest === namespace) break;
      if (this.#latest.size <= SUMMARIES_MAX && bytes <= BYTES_MAX) break;
      this.#latest.delete(oldest);
      bytes -= filter.bytes.length;
    }
    return summary;
  }
}

export interface BlockServerOptions {
  readonly blocks: PeerBlocks;
  /** Returns the index of a namespace. Null if unknown. Must not add the namespace. */
  namespaceOf(key: Uint8Array): NamespaceIndex | null;
  /** Returns the model name of a namespace. Empty if unknown. */
  modelOf(key: Uint8Array): string;
  /** Returns the message with which this host introduces itself. */
  hello(): PeerHello;
  readonly limits: ServeLimits;
  readonly clock: Clock;
  readonly random: Random;
  readonly log: TransportLog;
}

/**
 * Reply to a summary request for a namespace that is unknown or that peers may not read: an empty
 * filter.
 */
const NOTHING = { version: 1n, filter: new KeyFilterBuilder(0).done() };
const CLOSED: PeerAnswer = { op: "refused", why: "the agent is shutting down" };

/**
 * Serves this host's blocks to peers. Promises, in addition to those of `PeerServer`:
 *
 * - Peers cannot distinguish a namespace that they may not read from an unknown one.
 * - Slot references and running requests are bounded, in total and for each peer. Further requests
 *   get `busy`, with the estimated time until the current blocks are sent.
 * - Disposing ends all pulls, and releases blocks that no transport has taken.
 */
export class BlockServer implements PeerServer, Disposable {
  readonly #parts: BlockServerOptions;
  readonly #backlog: Backlog;
  readonly #summaries: ServedSummaries;
  readonly #counts = noCounts();
  readonly #open = new Set<ServedPull>();
  #isClosed = false;

  constructor(parts: BlockServerOptions) {
    this.#parts = parts;
    this.#backlog = new Backlog(parts.clock, parts.limits);
    const { blocks, clock, random, log } = parts;
    const onBuilt = () => void this.#counts.summariesBuilt++;
    this.#summaries = new ServedSummaries({ blocks, clock, random, log, onBuilt });
  }

  get stats(): ServeStats {
    const { peers, lentBlocks, lentBytes, reads } = this.#backlog;
    const now = { peers, openPulls: this.#open.size, lentBlocks, lentBytes, reads };
    return { ...this.#counts, ...now };
  }

  configure(limits: ServeLimits): void {
    this.#backlog.limits = limits;
  }

  async call(
    peer: PeerIdentity,
    request: Exclude<PeerRequest, { op: "pull" }>,
  ): Promise<PeerAnswer> {
    if (this.#isClosed) return CLOSED;
    this.#counts.questions++;
    switch (request.op) {
      case "hello": {
        const why = "the certificate names another worker";
        if (request.hello.worker !== peer.worker) return { op: "refused", why };
        return { op: "hello", hello: this.#parts.hello() };
      }
      case "has": {
        const namespace = this.#namespaceOf(request.namespace);
        const nothing = { tiers: 0, bytes: 0, generation: 0n, checksum: 0n };
        if (namespace === null) return { op: "has", blocks: request.blocks.map(() => nothing) };
        return { op: "has", blocks: this.#parts.blocks.has(namespace, request.blocks) };
      }
      case "find":
        return { op: "find", found: request.names.map((name) => this.#find(name)) };
      case "summary":
        return this.#summary(peer, request);
      default:
        return request satisfies never;
    }
  }

  serve(peer: PeerIdentity, pull: PullRequest, signal: AbortSignal): AsyncIterable<Served> {
    const { blocks, clock, log } = this.#parts;
    const [backlog, counts, open] = [this.#backlog, this.#counts, this.#open];
    const namespace = this.#namespaceOf(pull.namespace);
    const model = namespace === null ? "" : modelOnWire(this.#parts.modelOf(pull.namespace));
    if (this.#isClosed) signal = AbortSignal.abort();
    const what = { blocks, backlog, counts, open, clock, log, peer, pull, namespace, model };
    return { [Symbol.asyncIterator]: () => new ServedPull({ ...what, signal }) };
  }

  #namespaceOf(key: Uint8Array): NamespaceIndex | null {
    const namespace = this.isServed(key) ? this.#parts.namespaceOf(key) : null;
    if (namespace === null) this.#counts.foreign++;
    return namespace;
  }

  /**
   * Returns whether peers may read this namespace (key of 32 bytes), even if it is unknown here.
   */
  isServed(key: Uint8Array): boolean {
    const { namespaces } = this.#backlog.limits;
    return namespaces === null || namespaces.has(key.toHex());
  }

  #find(name: Uint8Array): PeerFound[] {
    return this.#parts.blocks.find(name, FOUND_MAX, (namespace) => this.isServed(namespace));
  }

  async #summary(
    { worker }: PeerIdentity,
    { namespace: key, known }: Extract<PeerRequest, { op: "summary" }>,
  ): Promise<PeerAnswer> {
    const namespace = this.#namespaceOf(key);
    if (namespace === null) return summaryOf(NOTHING, known);
    if (!this.#backlog.enter(worker)) {
      return { op: "busy", retryAfterMs: this.#backlog.retryAfterMs };
    }
    try {
      const summary = await this.#summaries.get(namespace, this.#backlog.limits);
      if (summary !== null) return summaryOf(summary, known);
      return { op: "busy", retryAfterMs: this.#backlog.limits.summaryMs };
    } finally {
      this.#backlog.leave(worker);
    }
  }

  [Symbol.dispose](): void {
    this.#isClosed = true;
    this.#summaries.end();
    for (const pull of [...this.#open]) pull.end();
  }
}

function summaryOf(summary: Pick<Summary, "version" | "filter">, known: bigint): PeerAnswer {
  const { version, filter } = summary;
  return { op: "summary", version, filter: version === known ? null : filter.bytes };
}
