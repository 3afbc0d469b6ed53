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

/** The next source of candidates, used when no candidate is left. */
export type DiscoveryStep = "located" | "known" | "asked" | "over";

/** Maximum number of conflicting size reports per block. */
const MEASURES_MAX = 3;

/** One peer's answers about one block. */
interface Tried {
  attempts: number;
  /** The peer is not asked for this block again. */
  done: boolean;
  busyUntilMs: number;
  /** Number of busy answers. */
  busies: number;
}

const NEVER: Tried = {
  attempts: 0,
  done: false,
  busies: 0,
  busyUntilMs: Number.NEGATIVE_INFINITY,
};

/**
 * Bounds of a peer's retry time in milliseconds, and the maximum number of busy answers per peer.
 */
const RETRY_MS_MIN = 5;
const RETRY_MS_MAX = 10_000;
const BUSIES_MAX = 12;

/** The fetch of one block, shared by all calls that want it at the same time. */
export class BlockFetch implements WantedBlock {
  readonly namespace: NamespaceIndex;
  readonly namespaceKey: Uint8Array;
  readonly digest: Uint8Array;
  readonly layer: number;
  /** `BlockKey`, also in hex. */
  readonly keyBytes: Uint8Array;
  readonly key: string;
  readonly trace: Trace;
  priority: PullPriority;
  /** Latest deadline of all waiting calls, on the monotonic clock. */
  deadlineMs: number;
  /** Payload size, as a peer reported it or as usual for such blocks; 0: unknown. */
  bytes = 0;
  /** Number of attempts, over all peers. */
  asked = 0;
  /** The fetch has not started. */
  fresh = true;
  search: DiscoveryStep = "located";
  searching = false;
  /** Outcome to report if no candidate is left. */
  reason: PullOutcome = "absent";
  settled: PullOutcome | null = null;
  /** No call waits any more, but data on its way is still accepted. */
  mirror = false;
  /** Timer until a busy peer may be asked again. */
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

  /** True if no call is left. */
  leave(call: FetchCall, index: number): boolean {
    const places = this.#waiters.get(call)?.filter((place) => place !== index) ?? [];
    if (places.length === 0) this.#waiters.delete(call);
    else this.#waiters.set(call, places);
    return this.#waiters.size === 0;
  }

  /** Removes and returns all waiting calls. */
  takeWaiters(): (readonly [FetchCall, number])[] {
    const all = [...this.#waiters].flatMap(([call, places]) =>
      places.map((place) => [call, place] as const),
    );
    this.#waiters.clear();
    return all;
  }

  /** True if the priority changed. */
  raisePriority(priority: PullPriority): boolean {
    if (PULL_PRIORITIES.indexOf(priority) >= PULL_PRIORITIES.indexOf(this.priority)) return false;
    this.priority = priority;
    this.trace.pull.priority = priority;
    return true;
  }

  /** Records a peer's size report; false: too many conflicting reports. */
  measure({ bytes }: { readonly bytes: number }): boolean {
    if (this.#measures === MEASURES_MAX) return false;
    this.#measures++;
    this.bytes = bytes;
    return true;
  }

  /** Discards an impossible size; false: no peer had reported one. */
  forget(): boolean {
    this.bytes = 0;
    return this.#measures > 0;
  }

  get candidates(): readonly WorkerId[] {
    return this.#candidates;
  }

  /** Adds candidates that are not known yet; true if there was one. */
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

  /** Excludes the peer from further attempts. */
  exclude(worker: WorkerId): void {
    this.#change(worker).done = true;
  }

  /** The peer is busy. Each busy answer doubles the minimum wait before the next attempt. */
  busy(worker: WorkerId, retryMs: number, nowMs: number): void {
    const tried = this.#change(worker);
    const leastMs = RETRY_MS_MIN * 2 ** tried.busies++;
    tried.busyUntilMs = nowMs + Math.min(Math.max(retryMs, leastMs), RETRY_MS_MAX);
    // A busy answer does not count as an attempt.
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

/** The request that carries an attempt. */
export interface RequestHandle {
  /** The attempt's block may no longer be wanted. */
  reconsider(): void;
}

/** One attempt to fetch one block from one peer, from admission to the answer. */
export class Attempt {
  readonly fetch: BlockFetch;
  readonly peer: Peer;
  /** Started because an earlier attempt is slow. */
  readonly hedge: boolean;
  /** Maximum payload bytes; 0 until known. */
  bytes = 0;
  /** Generation of the copy that the peer reported; 0: any. */
  generation = 0n;
  ticket: Ticket | null = null;
  /** Its share of the bytes in flight; null before admission and after the answer. */
  grant: Grant | null = null;
  /** Reserved slot, until the block is committed or nothing can write to it any more. */
  landing: IncomingBlock | null = null;
  request: RequestHandle | null = null;
  /** A hedge was started because this attempt is slow. */
  hedged = false;
  /** No answer is expected any more. */
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

  /** Ends the attempt. Its slot stays reserved until the transport stops writing. */
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

/** One caller that waits for blocks. Blocks that arrive after the caller left are released. */
export class FetchCall {
  readonly done: Promise<FetchOutcome[]>;
  readonly #stopAtMiss: boolean;
  readonly #outcomes: (FetchOutcome | null)[];
  readonly #resolve: (outcomes: FetchOutcome[]) => void;
  #missing: number;
  /** Results from this index on are useless to the caller. */
  #end: number;
  /** Called for each block that the caller no longer wants. */
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

  /** Whether the caller still waits for block `index`. */
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

  /** Ends all outstanding blocks with this outcome. */
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
 * Splits one arrival among several owners, each of which releases its share. The block is released
 * with the last share, as used if any owner used it. With 0 owners the block is released at once.
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

/** History of one fetch. */
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

  /** The last entry is reserved for the outcome. */
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

/** The latest fetch histories. */
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

  /** Newest first; `key` null: all keys. */
  list(key: string | null): PullTrace[] {
    const list: PullTrace[] = [];
    for (let i = 1; i <= this.#ring.length; i++) {
      const { pull } = this.#ring[(this.#next - i) % TRACES_MAX]!;
      if (key === null || pull.key === key) list.push({ ...pull, steps: [...pull.steps] });
    }
    return list;
  }
}
