import { type Clock, type NodeId, yieldToLoop } from "../../core/index.ts";
import { crashPoint } from "../../native/index.ts";
import type { Holds, Sessions } from "../pins/index.ts";
import type { SsdParts } from "../ssd/ssd-parts.ts";
import type { TieredStore } from "../tiered-store.ts";
import type { BlockSourcePort, GpuSink } from "./lifecycle.ts";
import { NameResolver } from "./resolve-names.ts";

/** Limits of lifecycle commands. They can change at run time. */
export interface LifecycleLimits {
  /** Maximum time to live of a lease in milliseconds, and the default if a command sets none. */
  readonly leaseTtlMaxMs: number;
  /**
   * Limits for all warm commands together: bytes being read from SSD, and number of concurrent
   * reads.
   */
  readonly warmBytesMax: number;
  readonly warmReads: number;
}

export interface LifecycleParts {
  readonly store: TieredStore;
  readonly holds: Holds;
  readonly sessions: Pick<Sessions, "endAt" | "holdersOf">;
  readonly clock: Clock;
  readonly log: SsdParts["log"];
  readonly limits: () => LifecycleLimits;
  /** Fetches blocks from peers; null if this agent has no peers. */
  readonly peers: BlockSourcePort | null;
  /** Fires when the agent stops. Operations in progress then end with their results so far. */
  readonly signal: AbortSignal;
}

/** State that all lifecycle operations share. */
export type LifecycleContext = ReturnType<typeof createContext>;

export function createContext(parts: LifecycleParts) {
  return {
    ...parts,
    names: new NameResolver(parts.store),
    durability: new Durability(parts.store, parts.holds),
    warmGate: new WarmGate(parts.limits),
    /**
     * Copies the blocks of warm commands with target `gpu` to GPU memory; null if no engine can.
     */
    gpuSink: null as GpuSink | null,
  };
}

/**
 * Makes changes survive a power loss. Concurrent requests share one flush of the disk, so that a
 * thousand commands take only a few flushes.
 */
class Durability {
  readonly #store: TieredStore;
  readonly #holds: Holds;
  #running: Promise<boolean> | null = null;
  #next: Promise<boolean> | null = null;

  constructor(store: TieredStore, holds: Holds) {
    this.#store = store;
    this.#holds = holds;
  }

  /** Returns whether the copies of `nodes` on SSD survive a power loss. */
  areWritten(nodes: readonly NodeId[]): boolean {
    const fresh = this.#store.ssd?.writer.fresh;
    return fresh === undefined || nodes.every((node) => fresh.isSafe(node));
  }

  /**
   * Waits until the copies of `nodes` on SSD survive a power loss. Resolves to false if that
   * failed.
   */
  writes(nodes: readonly NodeId[]): Promise<boolean> {
    return this.areWritten(nodes) ? Promise.resolve(true) : this.everything();
  }

  /**
   * Waits until all removals from SSD so far are durable. That includes removals by other commands,
   * whose blocks this command may have found missing. Resolves to false if that failed.
   */
  async removals(): Promise<boolean> {
    const { ssd } = this.#store;
    if (ssd === null) return true;
    const over = await ssd.orHung(ssd.room.removals.over().then(() => true));
    if (over !== true) return false;
    return ssd.room.removals.areVolatile ? this.everything() : true;
  }

  /**
   * Waits until the current pins and leases survive a crash. Resolves to false if that failed.
   * `since`: see `Holds.commit`.
   */
  async holds(since?: number): Promise<boolean> {
    const { ssd } = this.#store;
    crashPoint("hold.changed");
    const committed = this.#holds.commit(since);
    const isCommitted = (await (ssd === null ? committed : ssd.orHung(committed))) === true;
    crashPoint("hold.committed");
    return isCommitted;
  }

  /** Waits until the current contents of SSD survive a crash. Resolves to false if that failed. */
  everything(): Promise<boolean> {
    if (this.#next !== null) return this.#next;
    if (this.#running === null) return this.#begin();
    this.#next = this.#running.then(() => {
      this.#next = null;
      return this.#begin();
    });
    return this.#next;
  }

  #begin(): Promise<boolean> {
    this.#running = this.#run().finally(() => {
      this.#running = null;
    });
    return this.#running;
  }

  async #run(): Promise<boolean> {
    const { ssd } = this.#store;
    return ssd === null || ssd.makeDurable();
  }
}

/** Milliseconds for which long work may occupy the event loop before it yields. */
const SLICE_MS = 2;
/** Number of blocks between two reads of the clock, and maximum number of blocks in one slice. */
const LOOKS_A_GLANCE = 16;
const LOOKS_A_SLICE = 4_096;
/** Minimum milliseconds between two progress reports. */
const PROGRESS_MS = 100;

/** Divides long work into slices. The event loop runs other tasks between slices. */
export class Slices {
  readonly #clock: Clock;
  #startedMs: number;
  #looks = 0;
  #reportedMs: number;

  constructor(clock: Clock) {
    this.#clock = clock;
    this.#startedMs = clock.monotonicMs();
    this.#reportedMs = this.#startedMs;
  }

  /** Counts one block. Returns true if the slice is over and the caller should call `turn`. */
  isOver(): boolean {
    if (++this.#looks % LOOKS_A_GLANCE !== 0) return false;
    if (this.#looks >= LOOKS_A_SLICE) return true;
    return this.isLate();
  }

  /**
   * Returns whether the slice is over. Reads the clock at each call; meant for steps that take
   * longer than a block.
   */
  isLate(): boolean {
    return this.#clock.monotonicMs() - this.#startedMs >= SLICE_MS;
  }

  /** Yields to the event loop and starts a new slice. */
  async turn(): Promise<void> {
    await yieldToLoop();
    this.#looks = 0;
    this.#startedMs = this.#clock.monotonicMs();
  }

  /** Returns whether a progress report is due. Returns true at most ten times a second. */
  isReportDue(): boolean {
    const nowMs = this.#clock.monotonicMs();
    if (nowMs - this.#reportedMs < PROGRESS_MS) return false;
    this.#reportedMs = nowMs;
    return true;
  }
}

/**
 * Limits the number of concurrent reads, and their bytes, over all warm commands. A read larger
 * than the byte limit runs alone.
 */
export class WarmGate {
  readonly #limits: () => LifecycleLimits;
  #reads = 0;
  #bytes = 0;
  readonly #waiting: (() => void)[] = [];

  constructor(limits: () => LifecycleLimits) {
    this.#limits = limits;
  }

  /**
   * Waits until a read of this many bytes may begin. Resolves to true then, or to false if the
   * signal fires first.
   */
  async enter(bytes: number, signal: AbortSignal): Promise<boolean> {
    while (!signal.aborted && !this.#hasRoom(bytes)) {
      const turn = Promise.withResolvers<void>();
      this.#waiting.push(turn.resolve);
      signal.addEventListener("abort", turn.resolve as () => void, { once: true });
      await turn.promise;
      signal.removeEventListener("abort", turn.resolve as () => void);
    }
    if (signal.aborted) return false;
    this.#reads++;
    this.#bytes += bytes;
    return true;
  }

  leave(bytes: number): void {
    this.#reads--;
    this.#bytes -= bytes;
    // Wake all waiting reads. Each command has at most one.
    for (const look of this.#waiting.splice(0)) look();
  }

  #hasRoom(bytes: number): boolean {
    const { warmReads, warmBytesMax } = this.#limits();
    if (this.#reads === 0) return true;
    return this.#reads < warmReads && this.#bytes + bytes <= warmBytesMax;
  }
}
