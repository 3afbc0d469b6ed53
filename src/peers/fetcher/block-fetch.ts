import { assert, type Clock, type NamespaceIndex, type WorkerId } from "../../core/index.ts";
import type { Arrival, FetchOutcome, IncomingBlock } from "../../store/index.ts";
import type { WantedBlock } from "../messages.ts";
import type { Grant, Ticket } from "./admission.ts";
import {
  PULL_PRIORITIES,
  type PullOutcome,
  type PullPriority,
  type PullStep,
  type PullTrace,
} from "./fetch-options.ts";
import type { Peer } from "./peer.ts";

/**
 * Where to look for more candidate peers after all known candidates have failed: the router
 * (`located`), the peers' summaries (`known`), requests to each peer (`asked`). `over`: nowhere.
 */
export type DiscoveryStep = "located" | "known" | "asked" | "over";

/** Maximum number of times that peers' reports may change the assumed size of a block. */
const MEASURES_MAX = 3;

/** Attempts to fetch one block from one peer, and the peer's replies. */
interface Tried {
  attempts: number;
  /** True if this block is not requested from the peer again. */
  done: boolean;
  busyUntilMs: number;
  /** Number of `busy` replies. */
  busies: number;
}

const NEVER: Tried = {
  attempts: 0,
  done: false,
  busies: 0,
  busyUntilMs: Number.NEGATIVE_INFINITY,
};

/**
 * Minimum and maximum milliseconds before a busy peer is asked again, and the number of `busy`
 * replies after which it is not asked again.
 */
const RETRY_MS_MIN = 5;
const RETRY_MS_MAX = 10_000;
const BUSIES_MAX = 12;

/** The fetch of one block. All calls that want the block at the same time share it. */
export class BlockFetch implements WantedBlock {
  readonly namespace: NamespaceIndex;
  readonly namespaceKey: Uint8Array;
  readonly digest: Uint8Array;
  readonly layer: number;
  /** The block's `BlockKey` as bytes; `key` has it in hex. */
  readonly keyBytes: Uint8Array;
  readonly key: string;
  readonly trace: Trace;
  priority: PullPriority;
  /** Latest deadline of all waiting calls, in monotonic milliseconds. */
  deadlineMs: number;
  /** Payload size in bytes that a peer reported for this block. 0 if none did. */
  bytes = 0;
  /** Number of attempts to fetch the block, from all peers. */
  asked = 0;
  /** True until the fetch is started. */
  fresh = true;
  search: DiscoveryStep = "located";
  searching = false;
  /** Outcome that the fetch will have if no candidate is left. */
  reason: PullOutcome = "absent";
  settled: PullOutcome | null = null;
  /** True if no call waits any more, but the block is still accepted if it arrives. */
  mirror = false;
  /** Timer that ends the wait for a busy peer. */
  timer: Disposable | null = null;
  readonly attempts = new Set<Attempt>();
  #measures = 0;
  readonly #candidates: WorkerId[] = [];
  readonly #tried = new Map<WorkerId, Tried>();
  readonly #waiters = new Map<FetchCall, number[]>();

  constructor(
    of: Pick<
      BlockFetch,
      "namespace" | "namespaceKey" | "digest" | "layer" | "keyBytes" | "trace" | "deadlineMs"
    >,
    priority: PullPriority,
  ) {
    this.namespace = of.namespace;
    this.namespaceKey = of.namespaceKey;
    this.digest = of.digest;
    this.layer = of.layer;
    this.keyBytes = of.keyBytes;
    this.trace = of.trace;
    this.key = of.trace.pull.key;
    this.deadlineMs = of.deadlineMs;
    this.priority = priority;
  }

  get awaited(): boolean {
    return this.#waiters.size > 0;
  }

  get wanted(): boolean {
    return this.settled === null && (this.awaited || this.mirror);
  }

  join(call: FetchCall, index: number, deadlineMs: number): void {
    const places = this.#waiters.get(call);
    if (places === undefined) this.#waiters.set(call, [index]);
    else places.push(index);
    this.deadlineMs = Math.max(this.deadlineMs, deadlineMs);
  }

  /** Removes a caller that waits for the block. Returns true if no caller is left. */
  leave(call: FetchCall, index: number): boolean {
    const places = this.#waiters.get(call)?.filter((place) => place !== index) ?? [];
    if (places.length === 0) this.#waiters.delete(call);
    else this.#waiters.set(call, places);
    return this.#waiters.size === 0;
  }

  /** Removes all waiting calls. Returns them with the position at which each wants the block. */
  takeWaiters(): (readonly [FetchCall, number])[] {
    const all = [...this.#waiters].flatMap(([call, places]) =>
      places.map((place) => [call, place] as const),
    );
    this.#waiters.clear();
    return all;
  }

  /** Sets the priority if it is more urgent than the current one. Returns whether it was. */
  raisePriority(priority: PullPriority): boolean {
    if (PULL_PRIORITIES.indexOf(priority) >= PULL_PRIORITIES.indexOf(this.priority)) return false;
    this.priority = priority;
    this.trace.pull.priority = priority;
    return true;
  }

  /**
   * Records the block's size as reported by a peer. Returns false, and ignores the report, after
   * too many reports.
   */
  measure({ bytes }: { readonly bytes: number }): boolean {
    if (this.#measures === MEASURES_MAX) return false;
    this.#measures++;
    this.bytes = bytes;
    return true;
  }

  /**
   * Discards the assumed size because it is impossible. Returns false if no peer had reported a
   * size.
   */
  forget(): boolean {
    this.bytes = 0;
    return this.#measures > 0;
  }

  get candidates(): readonly WorkerId[] {
    return this.#candidates;
  }

  /** Adds candidates to fetch the block from. Returns true if one of them is new. */
  offer(workers: readonly WorkerId[]): boolean {
    const before = this.#candidates.length;
    for (const worker of workers)
      if (!this.#candidates.includes(worker)) this.#candidates.push(worker);
    return this.#candidates.length > before;
  }

  tried(worker: WorkerId): Readonly<Tried> {
    return this.#tried.get(worker) ?? NEVER;
  }

  askedOf(worker: WorkerId): void {
    this.asked++;
    this.#change(worker).attempts++;
  }

  /** Excludes the peer from further attempts to fetch this block. */
  exclude(worker: WorkerId): void {
    this.#change(worker).done = true;
  }

  /** Records a `busy` reply. Each one doubles the minimum time before the peer is asked again. */
  busy(worker: WorkerId, retryMs: number, nowMs: number): void {
    const tried = this.#change(worker);
    const leastMs = RETRY_MS_MIN * 2 ** tried.busies++;
    tried.busyUntilMs = nowMs + Math.min(Math.max(retryMs, leastMs), RETRY_MS_MAX);
    // A `busy` reply does not count as an attempt.
    tried.attempts--;
    this.asked--;
    tried.done ||= tried.busies === BUSIES_MAX;
  }

  #change(worker: WorkerId): Tried {
    let tried = this.#tried.get(worker);
    if (tried === undefined) {
      tried = { ...NEVER };
      this.#tried.set(worker, tried);
    }
    return tried;
  }
}

/** The request that an attempt is part of. */
export interface RequestHandle {
  /** Cancels the request if no caller wants any of its remaining blocks. */
  reconsider(): void;
}

/**
 * One attempt to fetch one block from one peer, from its entry into the admission queue to the
 * peer's reply.
 */
export class Attempt {
  readonly fetch: BlockFetch;
  readonly peer: Peer;
  /** True if this attempt was started because an earlier one is slow. */
  readonly hedge: boolean;
  /** Maximum payload bytes that the peer may send. 0 until the block's size is known. */
  bytes = 0;
  /** Generation of the peer's copy, as the peer reported it. 0 if any generation is acceptable. */
  generation = 0n;
  ticket: Ticket | null = null;
  /**
   * The attempt's share of the bytes in flight. Null before admission, and after the attempt has
   * ended.
   */
  grant: Grant | null = null;
  /** Slot in RAM for the block. Null before it is reserved, and after it was committed or freed. */
  landing: IncomingBlock | null = null;
  request: RequestHandle | null = null;
  /** True if a second attempt was started because this one is slow. */
  hedged = false;
  /** True if the attempt has ended: it was answered or abandoned. */
  over = false;
  readonly #trial: boolean;

  constructor(fetch: BlockFetch, peer: Peer, hedge: boolean) {
    this.fetch = fetch;
    this.peer = peer;
    this.hedge = hedge;
    this.#trial = peer.breaker.state === "trial";
  }

  load(bytes: number): void {
    this.peer.loadBytes += bytes - this.bytes;
    this.bytes = bytes;
  }

  /**
   * Ends the attempt and releases its share of the bytes in flight. A reserved slot stays reserved
   * until the transport has stopped writing to it.
   */
  end(): void {
    if (this.over) return;
    this.over = true;
    this.fetch.attempts.delete(this);
    this.peer.loadBytes -= this.bytes;
    this.ticket?.leave();
    this.grant?.release();
    this.grant = null;
    if (this.#trial && this.request === null) this.peer.breaker.withdraw();
  }
}

/**
 * One caller that waits for some blocks. A block that arrives after the caller stopped waiting is
 * released.
 */
export class FetchCall {
  readonly done: Promise<FetchOutcome[]>;
  readonly #stopAtMiss: boolean;
  readonly #outcomes: (FetchOutcome | null)[];
  readonly #resolve: (outcomes: FetchOutcome[]) => void;
  #missing: number;
  /**
   * Number of leading blocks that the caller can still use. Smaller than all blocks if the caller
   * stops at the first missing block.
   */
  #end: number;
  /**
   * Called with the index of each block that the caller does not want any more. `late`: its
   * deadline passed.
   */
  #onLeave: (index: number, late: boolean) => void = () => undefined;

  constructor(blocks: number, stopAtMiss: boolean) {
    this.#stopAtMiss = stopAtMiss;
    this.#outcomes = new Array(blocks).fill(null);
    this.#missing = blocks;
    this.#end = blocks;
    const { promise, resolve } = Promise.withResolvers<FetchOutcome[]>();
    this.done = promise;
    this.#resolve = resolve;
    if (blocks === 0) resolve([]);
  }

  set onLeave(run: (index: number, late: boolean) => void) {
    this.#onLeave = run;
  }

  /** Returns whether the caller still waits for block `index`. */
  wants(index: number): boolean {
    return this.#outcomes[index] === null;
  }

  deliver(index: number, outcome: FetchOutcome): void {
    if (!this.wants(index)) {
      if (outcome.kind === "ok") outcome.arrival.release(false);
      return;
    }
    this.#put(index, outcome);
    if (outcome.kind !== "ok" && this.#stopAtMiss) this.#cut(index + 1);
    this.#finish();
  }

  /** Ends the wait for all outstanding blocks, with this outcome. */
  end(kind: "late" | "miss"): void {
    for (let index = 0; index < this.#end; index++) {
      if (!this.wants(index)) continue;
      this.#put(index, { kind });
      this.#onLeave(index, kind === "late");
    }
    const first = this.#outcomes.findIndex((outcome) => outcome?.kind !== "ok");
    if (this.#stopAtMiss && first >= 0) this.#cut(first + 1);
    this.#finish();
  }

  #cut(from: number): void {
    for (let index = from; index < this.#end; index++) {
      const had = this.#outcomes[index];
      if (had === null) {
        this.#put(index, { kind: "miss" });
        this.#onLeave(index, false);
      } else if (had?.kind === "ok") {
        had.arrival.release(false);
        this.#outcomes[index] = { kind: "miss" };
      }
    }
    this.#end = Math.min(this.#end, from);
  }

  #put(index: number, outcome: FetchOutcome): void {
    this.#outcomes[index] = outcome;
    this.#missing--;
    assert(this.#missing >= 0, "a block is delivered once");
  }

  #finish(): void {
    if (this.#missing === 0) this.#resolve(this.#outcomes as FetchOutcome[]);
  }
}

/**
 * Splits a received block among several owners, each of which must release its share. The block is
 * released with the last share, and counts as used if any owner used it. If `owners` is 0, the
 * block is released at once.
 */
export function shareArrival(arrival: Arrival, owners: number): Arrival[] {
  if (owners === 0) arrival.release(false);
  let [left, anyUsed] = [owners, false];
  return Array.from({ length: owners }, () => {
    let released = false;
    return {
      node: arrival.node,
      release: (used) => {
        assert(!released, "an arrival is released once");
        released = true;
        anyUsed ||= used;
        if (--left === 0) arrival.release(anyUsed);
      },
    };
  });
}

const TRACES_MAX = 4_096;
const STEPS_MAX = 48;

/** Records the history of one fetch for operators. */
class Trace {
  readonly pull: { -readonly [Name in keyof PullTrace]: PullTrace[Name] };
  readonly #clock: Clock;
  readonly #startedMs: number;
  readonly #steps: PullStep[] = [];

  constructor(
    clock: Clock,
    named: Pick<PullTrace, "key" | "digest" | "layer">,
    priority: PullPriority,
  ) {
    this.#clock = clock;
    this.#startedMs = clock.monotonicMs();
    const open = { outcome: null, bytes: 0, steps: this.#steps };
    this.pull = { ...named, priority, startedWallMs: clock.wallMs(), ...open };
  }

  /** Adds an entry, unless only one is left: the last entry is reserved for the outcome. */
  step(what: string, more: Omit<PullStep, "ms" | "what"> = {}): void {
    if (this.#steps.length < STEPS_MAX - 1) this.#write(what, more);
  }

  end(outcome: PullOutcome, bytes: number, why: string): void {
    this.#write(why === "" ? outcome : `${outcome}: ${why}`, {});
    this.pull.outcome = outcome;
    this.pull.bytes = bytes;
  }

  #write(what: string, more: Omit<PullStep, "ms" | "what">): void {
    this.#steps.push({ ms: this.#clock.monotonicMs() - this.#startedMs, what, ...more });
  }
}

/** Histories of the latest fetches. The oldest are overwritten. */
export class Traces {
  readonly #clock: Clock;
  readonly #ring: Trace[] = [];
  #next = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  begin(named: Pick<PullTrace, "key" | "digest" | "layer">, priority: PullPriority): Trace {
    const trace = new Trace(this.#clock, named, priority);
    this.#ring[this.#next++ % TRACES_MAX] = trace;
    return trace;
  }

  /** Returns histories, newest first: of the block `key`, or of all blocks if it is null. */
  list(key: string | null): PullTrace[] {
    const list: PullTrace[] = [];
    for (let i = 1; i <= this.#ring.length; i++) {
      const { pull } = this.#ring[(this.#next - i) % TRACES_MAX];
      if (key === null || pull.key === key) list.push({ ...pull, steps: [...pull.steps] });
    }
    return list;
  }
}
