import { type Clock, type WorkerId, yieldToLoop } from "../../core/index.ts";
import type { PeerAnswer, PeerRequest } from "../messages.ts";
import type { TransportLog } from "../transport.ts";
import { type KeyFilter, readKeyFilter } from "../wire/index.ts";
import type { BlockHolders, Members, PeerRecord } from "./known-peers.ts";

const KEPT_MAX = 65_536;
const KEPT_MS = 60_000;
const PREFIX_BYTES = 8;

/**
 * Blocks that peers' summaries contain but the peers do not have, for one minute each: a summary
 * gives the same false positives every time. Bounded; cleared when full.
 */
class WrongAnswers {
  readonly #clock: Clock;
  /** Expiry by worker, namespace and the key's first bytes. */
  readonly #until = new Map<WorkerId, Map<string, Map<bigint, number>>>();
  #kept = 0;
  #count = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Total since the start. */
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

  /** The key's 32 bytes are at offset `at`. */
  has(worker: WorkerId, namespace: string, keys: Uint8Array, at: number): boolean {
    const byKey = this.#until.get(worker)?.get(namespace);
    if (byKey === undefined) return false;
    const untilMs = byKey.get(prefixOf(keys, at));
    return untilMs !== undefined && this.#clock.monotonicMs() < untilMs;
  }

  /** The peer has a new summary. */
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

  /** Rare; a cleared entry costs one request at most. */
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
  /** False: the peer's circuit breaker is open. */
  mayAsk(worker: WorkerId): boolean;
  /** Sends one request to a peer; null: no answer, for any reason. Never rejects. */
  call(
    worker: WorkerId,
    request: SummaryRequest,
    options: { readonly deadlineMs: number; readonly signal: AbortSignal },
  ): Promise<PeerAnswer | null>;
  /** Keys (32 bytes) of the namespaces whose summaries are wanted. */
  namespaces(): readonly Uint8Array[];
  /** Maximum size of all summaries together. */
  readonly bytesMax?: number;
}

interface Summary {
  readonly version: bigint;
  readonly bytes: number;
  /** Null: discarded; not requested again while it is the latest version. */
  readonly filter: KeyFilter | null;
}

/** A peer's summary of one namespace. */
interface Holder {
  readonly worker: WorkerId;
  readonly filter: KeyFilter;
}

/** State of one peer. */
interface Entry {
  /** By namespace key in hex. */
  readonly summaries: Map<string, Summary>;
  failures: number;
}

export interface SummariesStats {
  readonly peers: number;
  readonly summaries: number;
  readonly bytes: number;
  readonly fetched: number;
  readonly failed: number;
  /** Number of false positives. */
  readonly wrong: number;
}

const BYTES_MAX = 256 * 2 ** 20;
/**
 * Peers per round, in turn. With more peers, connections do not stay open and each request costs
 * one, so fewer are asked.
 */
const PEERS_PER_ROUND = 64;
const PEERS_PER_ROUND_OF_MANY = 32;
/** Requests per interval, new peers included, and concurrent requests. */
const QUESTIONS_MAX = 128;
const AT_A_TIME = 4;
const ANSWER_MS = 2_000;
/** Consecutive failures after which a peer's summaries are discarded. */
const FAILURES_MAX = 5;
const ASKED_MAX = 1_024;
/** Maximum number of peers named for one block. */
const HOLDERS_MAX = 8;
/**
 * Number of further summaries to check after the first match; the range moves from block to block.
 */
const LOOKED_MAX = 32;

/**
 * Names the peers that probably have a block, from summaries fetched in the background. Promises:
 * never names a peer that is known not to have the block; memory is bounded; a failing peer is
 * asked when its circuit breaker allows it; its old summaries are discarded after several failures.
 * New peers are asked first. If an interval is too short to ask all peers, they take turns.
 */
export class Summaries implements BlockHolders, AsyncDisposable {
  readonly #options: SummariesOptions;
  readonly #entries = new Map<WorkerId, Entry>();
  /** By namespace key in hex; peers with recent matches come first. */
  readonly #holders = new Map<string, Holder[]>();
  readonly #wrong: WrongAnswers;
  readonly #stop = new AbortController();
  readonly #watches: readonly Disposable[];
  /** Namespaces that callers here asked for. */
  readonly #asked = new Set<string>();
  #named: { readonly key: Uint8Array; readonly name: string } | null = null;
  #round: Promise<void> | null = null;
  #isWanted = false;
  /** Ask the other peers in their turn, not only new ones. */
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
    // Rotates the result by the key, so that requests spread over the peers.
    const first = found.length === 0 ? 0 : keys[at + 31]! % found.length;
    return first === 0 ? found : [...found.slice(first), ...found.slice(0, first)];
  }

  /**
   * Consecutive blocks usually have the same holders, so few of a thousand summaries are checked.
   */
  #find(holders: Holder[], namespace: string, keys: Uint8Array, at: number): WorkerId[] {
    const found: WorkerId[] = [];
    const look = (index: number) => {
      const holder = holders[index]!;
      const { worker, filter } = holder;
      if (!filter.mayContain(keys, at)) return;
      if (this.#wrong.has(worker, namespace, keys, at)) return;
      holders[index] = holders[found.length]!;
      holders[found.length] = holder;
      found.push(worker);
    };
    let end = 0;
    while (end < holders.length && found.length === 0) look(end++);
    // Peers with recent matches follow the first one; of the rest, a changing range is checked.
    const near = Math.min(end + HOLDERS_MAX, holders.length);
    for (; end < near; end++) look(end);
    const others = holders.length - near;
    const count = Math.min(others, LOOKED_MAX);
    const turn = (keys[at + 30]! * 256 + keys[at + 29]!) % (others - count + 1);
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

  /** Starts a round, or another one after the running round. */
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

  /** The peer restarted or left: discards its summaries. */
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

  /** Consecutive calls usually pass the same key object, so its name is cached. */
  #nameOf(namespaceKey: Uint8Array): string {
    if (this.#named?.key !== namespaceKey) {
      this.#named = { key: namespaceKey, name: namespaceKey.toHex() };
    }
    return this.#named.name;
  }

  /** The first request for a namespace starts a round before the interval ends. */
  #askFor(namespace: string): void {
    if (this.#asked.size >= ASKED_MAX) this.#asked.clear();
    this.#asked.add(namespace);
    this.refresh();
  }

  async #rounds(): Promise<void> {
    while (this.#isWanted && !this.#stop.signal.aborted) {
      // Requests of the same turn share one round.
      await yieldToLoop();
      this.#isWanted = false;
      const peers = this.#nextPeers();
      const ask = async () => {
        for (let peer = peers.pop(); peer !== undefined; peer = peers.pop()) await this.#ask(peer);
      };
      await Promise.all(Array.from({ length: AT_A_TIME }, ask));
    }
  }

  /** New peers, and the other peers if it is their turn. */
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
      const peer = all[(this.#turn + i) % all.length]!;
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

  /** Whether the peer answered. */
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
    // The peer may have left or restarted meanwhile.
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
