import { assert, type Clock, type NamespaceIndex, type WorkerId } from "../../core/index.ts";
import type { Arrival, FetchOutcome, Landing } from "../../store/index.ts";
import type { WantedBlock } from "../messages.ts";
import type { Grant, Ticket } from "./admission.ts";
import {
  PULL_PRIORITIES,
  type PullOutcome,
  type PullPriority,
  type PullStep,
  type PullTrace,
} from "./fetcher.ts";
import type { Peer } from "./peer.ts";

/** Where it is looked for next when nobody is left to be asked. */
export type DiscoveryStep = "located" | "known" | "asked" | "over";

/** Peers may be of so many opinions on how long it is. */
const MEASURES_MAX = 3;

/** What one peer said to the question for one block. */
interface Tried {
  attempts: number;
  /** It has nothing for us, now or at all. */
  done: boolean;
  busyUntilMs: number;
  /** How often it was busy. */
  busies: number;
}

const NEVER: Tried = {
  ...{ attempts: 0, done: false, busies: 0, busyUntilMs: Number.NEGATIVE_INFINITY },
};

/** A peer's word on when to come back is bounded, and so is how often it is believed. */
const RETRY_MS_MIN = 5;
const RETRY_MS_MAX = 10_000;
const BUSIES_MAX = 12;

/** The pull of one block, for all who want it at the same time. */
export class BlockFetch implements WantedBlock {
  readonly namespace: NamespaceIndex;
  readonly namespaceKey: Uint8Array;
  readonly digest: Uint8Array;
  readonly layer: number;
  readonly keyBytes: Uint8Array;
  readonly trace: Trace;
  priority: PullPriority;
  /** Monotonic; of the waiter with the most patience. */
  deadlineMs: number;
  /** Length of the payload as its owner says, or as such blocks are long here; 0: not known. */
  bytes = 0;
  /** All questions to peers. */
  asked = 0;
  /** Nothing was done for it yet. */
  fresh = true;
  search: DiscoveryStep = "located";
  searching = false;
  /** What came of it last, for when nobody is left to be asked. */
  reason: PullOutcome = "absent";
  settled: PullOutcome | null = null;
  /** Nobody waits; what is on its way is taken all the same. */
  mirror = false;
  /** Its wait for a peer that was busy. */
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
    this.deadlineMs = of.deadlineMs;
    this.priority = priority;
  }

  get key(): string {
    return this.trace.key;
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

  /** True where nobody is left. */
  leave(call: FetchCall, index: number): boolean {
    const places = this.#waiters.get(call)?.filter((place) => place !== index) ?? [];
    if (places.length === 0) this.#waiters.delete(call);
    else this.#waiters.set(call, places);
    return this.#waiters.size === 0;
  }

  /** All who wait, who then do not any more. */
  takeWaiters(): (readonly [FetchCall, number])[] {
    const all = [...this.#waiters].flatMap(([call, places]) =>
      places.map((place) => [call, place] as const),
    );
    this.#waiters.clear();
    return all;
  }

  /** True where it is more urgent now than it was. */
  raisePriority(priority: PullPriority): boolean {
    if (PULL_PRIORITIES.indexOf(priority) >= PULL_PRIORITIES.indexOf(this.priority)) return false;
    this.priority = priority;
    this.trace.priority = priority;
    return true;
  }

  /** Somebody who has it says how long it is; false: others said otherwise, too often. */
  measure({ bytes }: { readonly bytes: number }): boolean {
    if (this.#measures === MEASURES_MAX) return false;
    this.#measures++;
    this.bytes = bytes;
    return true;
  }

  /** What was said of its length cannot be; false: nobody said anything. */
  forget(): boolean {
    this.bytes = 0;
    return this.#measures > 0;
  }

  get candidates(): readonly WorkerId[] {
    return this.#candidates;
  }

  /** Those that are known are not named twice. True where one is new. */
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

  /** It is not asked for this block again. */
  exclude(worker: WorkerId): void {
    this.#change(worker).done = true;
  }

  /** It has no time now, and says when it will; each time that is waited for longer. */
  busy(worker: WorkerId, retryMs: number, nowMs: number): void {
    const tried = this.#change(worker);
    const leastMs = RETRY_MS_MIN * 2 ** tried.busies++;
    tried.busyUntilMs = nowMs + Math.min(Math.max(retryMs, leastMs), RETRY_MS_MAX);
    // That it was asked in vain says nothing about it.
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

/** What a request does for an ask as long as it is part of it. */
export interface RequestHandle {
  /** Whom it is for may not want it any more. */
  reconsider(): void;
}

/** The question for one block to one peer, from its place in the queue to the answer. */
export class Attempt {
  readonly fetch: BlockFetch;
  readonly peer: Peer;
  /** Somebody else was asked before and takes long. */
  readonly hedge: boolean;
  /** What may come at most, as soon as it is known. */
  bytes = 0;
  /** Of the copy that this peer said it has; 0: any. */
  generation = 0n;
  ticket: Ticket | null = null;
  /** Its share of the bytes under way, until it was answered. */
  grant: Grant | null = null;
  /** Its place in RAM, until it is committed or nothing can write to it any more. */
  landing: Landing | null = null;
  request: RequestHandle | null = null;
  /** Somebody else was asked because this took long. */
  hedged = false;
  /** Nothing more is expected of it. */
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

  /** It was answered, given up, or is in vain. What it wrote to stays taken. */
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
 * Somebody who waits for blocks, until all are there or he goes. What he does not take any more is
 * released for him.
 */
export class FetchCall {
  readonly done: Promise<FetchOutcome[]>;
  readonly #stopAtMiss: boolean;
  readonly #outcomes: (FetchOutcome | null)[];
  readonly #resolve: (outcomes: FetchOutcome[]) => void;
  #missing: number;
  /** From here on nothing is of worth. */
  #end: number;
  /** Told of each block that is not wanted any more. */
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

  /** Whether block `index` is still waited for. */
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

  /** All that has not come yet did not come: it is too late, or nobody wants it. */
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
 * One arrival for several owners, each with his own to release: the block stays where it is until
 * the last has, and counts as used where one used it. Without owners it is released at once.
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

/** What happens to one block, as it happens. */
class Trace {
  readonly #clock: Clock;
  readonly #startedMs: number;
  readonly #startedWallMs: number;
  readonly #named: Pick<PullTrace, "key" | "digest" | "layer">;
  readonly #steps: PullStep[] = [];
  priority: PullPriority;
  #outcome: PullOutcome | null = null;
  #bytes = 0;

  constructor(
    clock: Clock,
    named: Pick<PullTrace, "key" | "digest" | "layer">,
    priority: PullPriority,
  ) {
    this.#clock = clock;
    this.#named = named;
    this.priority = priority;
    this.#startedMs = clock.monotonicMs();
    this.#startedWallMs = clock.wallMs();
  }

  get key(): string {
    return this.#named.key;
  }

  /** The last place is for how it ended. */
  step(what: string, more: Omit<PullStep, "ms" | "what"> = {}): void {
    if (this.#steps.length < STEPS_MAX - 1) this.#write(what, more);
  }

  end(outcome: PullOutcome, bytes: number, why: string): void {
    this.#write(why === "" ? outcome : `${outcome}: ${why}`, {});
    this.#outcome = outcome;
    this.#bytes = bytes;
  }

  list(): PullTrace {
    return {
      ...this.#named,
      priority: this.priority,
      startedWallMs: this.#startedWallMs,
      outcome: this.#outcome,
      bytes: this.#bytes,
      steps: [...this.#steps],
    };
  }

  #write(what: string, more: Omit<PullStep, "ms" | "what">): void {
    this.#steps.push({ ms: this.#clock.monotonicMs() - this.#startedMs, what, ...more });
  }
}

/** The latest pulls, for people. */
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

  /** The newest first; of one key, or of all where null. */
  list(key: string | null): PullTrace[] {
    const list: PullTrace[] = [];
    for (let i = 1; i <= this.#ring.length; i++) {
      const trace = this.#ring[(this.#next - i) % TRACES_MAX]!;
      if (key === null || trace.key === key) list.push(trace.list());
    }
    return list;
  }
}
