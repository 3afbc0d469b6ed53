import { type Clock, type WorkerId, yieldToLoop } from "../../core/index.ts";
import type { PeerAnswer, PeerRequest } from "../messages.ts";
import type { TransportLog } from "../transport.ts";
import { type KeyFilter, readKeyFilter } from "../wire/index.ts";
import type { BlockHolders, Members, PeerRecord } from "./known-peers.ts";

const KEPT_MAX = 65_536;
const KEPT_MS = 60_000;
const PREFIX_BYTES = 8;

/**
 * Remembers for one minute which blocks a peer lacks although its summary lists them. A summary is
 * a Bloom filter, so it would give the same wrong result each time. Bounded; cleared when full.
 */
class WrongAnswers {
  readonly #clock: Clock;
  /**
   * Expiry in monotonic milliseconds, by worker, namespace, and the first 8 bytes of the block key.
   */
  readonly #until = new Map<WorkerId, Map<string, Map<bigint, number>>>();
  #kept = 0;
  #count = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Number of wrong results recorded since the start. */
  get count(): number {
    return this.#count;
  }

  add(worker: WorkerId, namespace: string, key: Uint8Array): void {
    this.#count++;
    if (this.#kept >= KEPT_MAX) this.#clear();
    const byNamespace = this.#until.getOrInsertComputed(worker, () => new Map());
    const byKey = byNamespace.getOrInsertComputed(namespace, () => new Map<bigint, number>());
    const prefix = prefixOf(key, 0);
    if (!byKey.has(prefix)) this.#kept++;
    byKey.set(prefix, this.#clock.monotonicMs() + KEPT_MS);
  }

  /**
   * Returns whether the peer is known to lack a block. The block's 32-byte key is at byte offset
   * `at` of `keys`.
   */
  has(worker: WorkerId, namespace: string, keys: Uint8Array, at: number): boolean {
    const byKey = this.#until.get(worker)?.get(namespace);
    if (byKey === undefined) return false;
    const untilMs = byKey.get(prefixOf(keys, at));
    return untilMs !== undefined && this.#clock.monotonicMs() < untilMs;
  }

  /** Forgets the wrong results of a peer's summary, because a new summary has replaced it. */
  forget(worker: WorkerId, namespace: string): void {
    const byNamespace = this.#until.get(worker);
    this.#kept -= byNamespace?.get(namespace)?.size ?? 0;
    byNamespace?.delete(namespace);
  }

  forgetAll(worker: WorkerId): void {
    for (const namespace of [...(this.#until.get(worker)?.keys() ?? [])]) {
      this.forget(worker, namespace);
    }
    this.#until.delete(worker);
  }

  /**
   * Forgets everything. Rarely needed, and costs at most one useless request per forgotten entry.
   */
  #clear(): void {
    this.#until.clear();
    this.#kept = 0;
  }
}

function prefixOf(keys: Uint8Array, at: number): bigint {
  return new DataView(keys.buffer, keys.byteOffset + at, PREFIX_BYTES).getBigUint64(0, true);
}

export type SummaryRequest = Extract<PeerRequest, { op: "summary" }>;

export interface SummariesOptions {
  readonly members: Members;
  readonly clock: Clock;
  readonly log: TransportLog;
  readonly everyMs: number;
  /** Returns false if the peer's circuit breaker blocks requests. */
  mayAsk(worker: WorkerId): boolean;
  /** Sends one request to a peer. Resolves with null if it fails for any reason; never rejects. */
  call(
    worker: WorkerId,
    request: SummaryRequest,
    options: { readonly deadlineMs: number; readonly signal: AbortSignal },
  ): Promise<PeerAnswer | null>;
  /** Returns the 32-byte keys of the namespaces whose summaries to fetch. */
  namespaces(): readonly Uint8Array[];
  /** Maximum total size of all summaries in bytes. */
  readonly bytesMax?: number;
}

interface Summary {
  readonly version: bigint;
  readonly bytes: number;
  /**
   * The decoded summary. Null if it was discarded as invalid or too large; it is not requested
   * again until the peer has a newer version.
   */
  readonly filter: KeyFilter | null;
}

/** A peer, with its summary of one namespace. */
interface Holder {
  readonly worker: WorkerId;
  readonly filter: KeyFilter;
}

/** Summaries of one peer, and its consecutive failures to send one. */
interface Entry {
  /** Summaries by namespace key in hex. */
  readonly summaries: Map<string, Summary>;
  failures: number;
}

export interface SummariesStats {
  readonly peers: number;
  readonly summaries: number;
  readonly bytes: number;
  readonly fetched: number;
  readonly failed: number;
  /** Number of blocks that peers lacked although their summaries listed them. */
  readonly wrong: number;
}

const BYTES_MAX = 256 * 2 ** 20;
/**
 * Above `PEERS_PER_ROUND` peers, only `PEERS_PER_ROUND_OF_MANY` are asked per interval, in turn:
 * connections to that many peers do not stay open, and each request opens one.
 */
const PEERS_PER_ROUND = 64;
const PEERS_PER_ROUND_OF_MANY = 32;
/**
 * Maximum peers asked per interval, including new peers (`QUESTIONS_MAX`), and at the same time
 * (`AT_A_TIME`).
 */
const QUESTIONS_MAX = 128;
const AT_A_TIME = 4;
const ANSWER_MS = 2_000;
/** Number of consecutive failed requests after which a peer's summaries are discarded. */
const FAILURES_MAX = 5;
const ASKED_MAX = 1_024;
/** Maximum number of peers returned for one block. */
const HOLDERS_MAX = 8;
/**
 * Maximum number of further summaries to search after the first match. The position of the searched
 * range depends on the block's key.
 */
const LOOKED_MAX = 32;

/**
 * Finds the peers that probably have a block, from summaries that are fetched in the background.
 * Promises: never returns a peer that is known to lack the block; memory is bounded; a peer that
 * fails is asked again only when its circuit breaker permits it, and its summaries are discarded
 * after several failures. New peers are asked first. If one interval is too short to ask all peers,
 * they are asked in turn.
 */
export class Summaries implements BlockHolders, AsyncDisposable {
  readonly #options: SummariesOptions;
  readonly #entries = new Map<WorkerId, Entry>();
  /**
   * Peers with a summary, by namespace key in hex. Peers whose summaries matched recently come
   * first.
   */
  readonly #holders = new Map<string, Holder[]>();
  readonly #wrong: WrongAnswers;
  readonly #stop = new AbortController();
  readonly #watches: readonly Disposable[];
  /** Namespaces, by key in hex, of which this host has looked up blocks. */
  readonly #asked = new Set<string>();
  #named: { readonly key: Uint8Array; readonly name: string } | null = null;
  #round: Promise<void> | null = null;
  #isWanted = false;
  /** True if the next round asks known peers in turn, and not only new ones. */
  #isTurn = false;
  readonly #newcomers = new Set<WorkerId>();
  #questionsLeft = QUESTIONS_MAX;
  #turn = 0;
  #bytes = 0;
  #fetched = 0;
  #failed = 0;

  constructor(options: SummariesOptions) {
    const { clock, members, everyMs } = options;
    this.#options = options;
    this.#wrong = new WrongAnswers(clock);
    this.#watches = [
      clock.every(everyMs, () => {
        this.#questionsLeft = QUESTIONS_MAX;
        this.refresh();
      }),
      members.onChange(({ kind, peer }) => {
        if (kind === "went" || kind === "restarted") this.forget(peer.worker);
        if (kind === "went") this.#newcomers.delete(peer.worker);
        if (kind !== "came" && kind !== "restarted") return;
        this.#newcomers.add(peer.worker);
        this.#work();
      }),
    ];
    this.refresh();
  }

  holders(namespaceKey: Uint8Array, keys: Uint8Array, at: number): readonly WorkerId[] {
    if (this.#entries.size === 0) return [];
    const namespace = this.#nameOf(namespaceKey);
    if (!this.#asked.has(namespace)) this.#askFor(namespace);
    const found = this.#find(this.#holders.get(namespace) ?? [], namespace, keys, at);
    // Rotates the result by a byte of the key, so that requests for different blocks spread over
    // the peers.
    const first = found.length === 0 ? 0 : keys[at + 31] % found.length;
    return first === 0 ? found : [...found.slice(first), ...found.slice(0, first)];
  }

  /**
   * Returns peers whose summaries list the block. Searches only some summaries if there are many,
   * those with recent matches first, because consecutive blocks usually have the same holders.
   */
  #find(holders: Holder[], namespace: string, keys: Uint8Array, at: number): WorkerId[] {
    const found: WorkerId[] = [];
    const look = (index: number) => {
      const holder = holders[index];
      const { worker, filter } = holder;
      if (!filter.mayContain(keys, at)) return;
      if (this.#wrong.has(worker, namespace, keys, at)) return;
      holders[index] = holders[found.length];
      holders[found.length] = holder;
      found.push(worker);
    };
    let end = 0;
    while (end < holders.length && found.length === 0) look(end++);
    // Searches the peers with recent matches, then a range of the others that depends on the key.
    const near = Math.min(end + HOLDERS_MAX, holders.length);
    for (; end < near; end++) look(end);
    const others = holders.length - near;
    const count = Math.min(others, LOOKED_MAX);
    const turn = (keys[at + 30] * 256 + keys[at + 29]) % (others - count + 1);
    for (let i = 0; i < count && found.length < HOLDERS_MAX; i++) look(near + turn + i);
    return found.slice(0, HOLDERS_MAX);
  }

  wasWrong(worker: WorkerId, namespaceKey: Uint8Array, key: Uint8Array): void {
    this.#wrong.add(worker, namespaceKey.toHex(), key);
  }

  stats(): SummariesStats {
    const summaries = [...this.#holders.values()].reduce((sum, some) => sum + some.length, 0);
    return {
      peers: this.#entries.size,
      summaries,
      bytes: this.#bytes,
      fetched: this.#fetched,
      failed: this.#failed,
      wrong: this.#wrong.count,
    };
  }

  /**
   * Starts to fetch summaries of the peers whose turn it is, or does so after the running round.
   */
  refresh(): void {
    this.#isTurn = true;
    this.#work();
  }

  #work(): void {
    this.#isWanted = true;
    this.#round ??= this.#rounds().finally(() => {
      this.#round = null;
    });
  }

  /** Discards the summaries of a peer that restarted or left. */
  forget(worker: WorkerId): void {
    const entry = this.#entries.get(worker);
    if (entry === undefined) return;
    for (const namespace of [...entry.summaries.keys()]) this.#drop(worker, entry, namespace);
    this.#entries.delete(worker);
    this.#wrong.forgetAll(worker);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const watch of this.#watches) watch[Symbol.dispose]();
    this.#stop.abort();
    await this.#round;
  }

  /**
   * Returns the namespace key in hex. Cached, because consecutive calls usually pass the same
   * array.
   */
  #nameOf(namespaceKey: Uint8Array): string {
    if (this.#named?.key !== namespaceKey) {
      this.#named = { key: namespaceKey, name: namespaceKey.toHex() };
    }
    return this.#named.name;
  }

  /**
   * Records that this host looks up blocks of a namespace. Fetches its summaries at once, instead
   * of after the current interval.
   */
  #askFor(namespace: string): void {
    if (this.#asked.size >= ASKED_MAX) this.#asked.clear();
    this.#asked.add(namespace);
    this.refresh();
  }

  async #rounds(): Promise<void> {
    while (this.#isWanted && !this.#stop.signal.aborted) {
      // Waits one turn of the event loop, so that all requests of this turn share a round.
      await yieldToLoop();
      this.#isWanted = false;
      const peers = this.#nextPeers();
      const ask = async () => {
        for (let peer = peers.pop(); peer !== undefined; peer = peers.pop()) await this.#ask(peer);
      };
      await Promise.all(Array.from({ length: AT_A_TIME }, ask));
    }
  }

  /**
   * Returns the peers to ask in this round: new peers, and some known peers if `#isTurn` is set.
   */
  #nextPeers(): PeerRecord[] {
    const { members } = this.#options;
    const peers = new Map<WorkerId, PeerRecord>();
    for (const worker of this.#newcomers) {
      if (peers.size >= this.#questionsLeft) break;
      this.#newcomers.delete(worker);
      const peer = members.get(worker);
      if (peer !== null) peers.set(worker, peer);
    }
    if (this.#isTurn) this.#addOthers(peers, members.list());
    this.#isTurn = false;
    this.#questionsLeft -= peers.size;
    return [...peers.values()].reverse();
  }

  #addOthers(peers: Map<WorkerId, PeerRecord>, all: readonly PeerRecord[]): void {
    const most = all.length > PEERS_PER_ROUND ? PEERS_PER_ROUND_OF_MANY : all.length;
    const count = Math.min(most, this.#questionsLeft - peers.size);
    for (let i = 0; i < count; i++) {
      const peer = all[(this.#turn + i) % all.length];
      peers.set(peer.worker, peer);
    }
    this.#turn = all.length === 0 ? 0 : (this.#turn + count) % all.length;
  }

  async #ask(peer: PeerRecord): Promise<void> {
    const entry = this.#entryOf(peer.worker);
    if (!this.#options.mayAsk(peer.worker)) return;
    for (const key of this.#options.namespaces()) {
      const namespace = key.toHex();
      if (peer.namespaces?.has(namespace) === false) this.#drop(peer.worker, entry, namespace);
      else if (!(await this.#fetch(peer.worker, entry, key, namespace))) return;
      if (this.#stop.signal.aborted) return;
    }
  }

  /** Fetches a peer's summary of one namespace. Resolves with whether the peer answered. */
  async #fetch(
    worker: WorkerId,
    entry: Entry,
    key: Uint8Array,
    namespace: string,
  ): Promise<boolean> {
    const known = entry.summaries.get(namespace)?.version ?? 0n;
    const answer = await this.#options.call(
      worker,
      { op: "summary", namespace: key, known },
      { deadlineMs: ANSWER_MS, signal: this.#stop.signal },
    );
    // The peer may have left or restarted during the request.
    if (this.#entries.get(worker) !== entry || this.#stop.signal.aborted) return false;
    if (answer === null) return this.#failure(worker, entry);
    entry.failures = 0;
    if (answer.op === "busy") return true;
    if (answer.op === "summary") this.#keep(worker, entry, namespace, answer);
    else this.#drop(worker, entry, namespace);
    return true;
  }

  #keep(
    worker: WorkerId,
    entry: Entry,
    namespace: string,
    { version, filter }: Extract<PeerAnswer, { op: "summary" }>,
  ): void {
    if (filter === null) return;
    this.#drop(worker, entry, namespace);
    const read = readKeyFilter(filter);
    const bytesMax = this.#options.bytesMax ?? BYTES_MAX;
    if (!read.ok || this.#bytes + filter.length > bytesMax) {
      const why = read.ok ? "summary size limit reached" : read.why;
      this.#options.log("warn", "peer summary discarded", { worker, namespace, why });
      entry.summaries.set(namespace, { version, bytes: 0, filter: null });
      return;
    }
    this.#fetched++;
    this.#bytes += filter.length;
    entry.summaries.set(namespace, { version, bytes: filter.length, filter: read.filter });
    const holders = this.#holders.getOrInsertComputed(namespace, () => []);
    holders.push({ worker, filter: read.filter });
    this.#wrong.forget(worker, namespace);
  }

  #failure(worker: WorkerId, entry: Entry): false {
    this.#failed++;
    entry.failures++;
    if (entry.failures >= FAILURES_MAX) {
      for (const namespace of [...entry.summaries.keys()]) this.#drop(worker, entry, namespace);
    }
    return false;
  }

  #entryOf(worker: WorkerId): Entry {
    const known = this.#entries.get(worker);
    if (known !== undefined) return known;
    const entry = { summaries: new Map(), failures: 0 };
    this.#entries.set(worker, entry);
    return entry;
  }

  #drop(worker: WorkerId, entry: Entry, namespace: string): void {
    const known = entry.summaries.get(namespace);
    if (known === undefined) return;
    this.#bytes -= known.bytes;
    entry.summaries.delete(namespace);
    const left = this.#holders.get(namespace)?.filter((holder) => holder.worker !== worker) ?? [];
    if (left.length > 0) this.#holders.set(namespace, left);
    else this.#holders.delete(namespace);
  }
}
