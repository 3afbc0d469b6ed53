import type { NamespaceIndex, WorkerId } from "../../core/index.ts";
import type { WantedBlock } from "../messages.ts";
import type { Ask } from "./ask.ts";
import type { Call } from "./call.ts";
import { PULL_PRIORITIES, type PullOutcome, type PullPriority } from "./puller.ts";
import type { Trace } from "./traces.ts";

/** Where it is looked for next when nobody is left to be asked. */
export type Search = "located" | "known" | "asked" | "over";

/** Peers may be of so many opinions on how long it is. */
const MEASURES_MAX = 3;

/** What one peer said to the question for one block. */
interface Tried {
  asks: number;
  /** It has nothing for us, now or at all. */
  done: boolean;
  busyUntilMs: number;
  /** How often it was busy. */
  busies: number;
}

const NEVER: Tried = {
  ...{ asks: 0, done: false, busies: 0, busyUntilMs: Number.NEGATIVE_INFINITY },
};

/** A peer's word on when to come back is bounded, and so is how often it is believed. */
const RETRY_MS_MIN = 5;
const RETRY_MS_MAX = 10_000;
const BUSIES_MAX = 12;

/** The pull of one block, for all who want it at the same time. */
export class Flight implements WantedBlock {
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
  search: Search = "located";
  searching = false;
  /** What came of it last, for when nobody is left to be asked. */
  reason: PullOutcome = "absent";
  settled: PullOutcome | null = null;
  /** Nobody waits; what is on its way is taken all the same. */
  mirror = false;
  /** Its wait for a peer that was busy. */
  timer: Disposable | null = null;
  readonly asks = new Set<Ask>();
  #measures = 0;
  readonly #candidates: WorkerId[] = [];
  readonly #tried = new Map<WorkerId, Tried>();
  readonly #waiters = new Map<Call, number[]>();

  constructor(
    of: Pick<
      Flight,
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

  join(call: Call, index: number, deadlineMs: number): void {
    const places = this.#waiters.get(call);
    if (places === undefined) this.#waiters.set(call, [index]);
    else places.push(index);
    this.deadlineMs = Math.max(this.deadlineMs, deadlineMs);
  }

  /** True where nobody is left. */
  leave(call: Call, index: number): boolean {
    const places = this.#waiters.get(call)?.filter((place) => place !== index) ?? [];
    if (places.length === 0) this.#waiters.delete(call);
    else this.#waiters.set(call, places);
    return this.#waiters.size === 0;
  }

  /** All who wait, who then do not any more. */
  takeWaiters(): (readonly [Call, number])[] {
    const all = [...this.#waiters].flatMap(([call, places]) =>
      places.map((place) => [call, place] as const),
    );
    this.#waiters.clear();
    return all;
  }

  /** True where it is more urgent now than it was. */
  hasten(priority: PullPriority): boolean {
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
    this.#change(worker).asks++;
  }

  /** It is not asked for this block again. */
  strike(worker: WorkerId): void {
    this.#change(worker).done = true;
  }

  /** It has no time now, and says when it will; each time that is waited for longer. */
  busy(worker: WorkerId, retryMs: number, nowMs: number): void {
    const tried = this.#change(worker);
    const leastMs = RETRY_MS_MIN * 2 ** tried.busies++;
    tried.busyUntilMs = nowMs + Math.min(Math.max(retryMs, leastMs), RETRY_MS_MAX);
    // That it was asked in vain says nothing about it.
    tried.asks--;
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
