import { type Clock, type NodeId, yieldToLoop } from "../../core/index.ts";
import { crashPoint } from "../../native/index.ts";
import type { Holds, Sessions } from "../pins/index.ts";
import type { SsdParts } from "../ssd/ssd-parts.ts";
import type { TieredStore } from "../tiered-store.ts";
import type { BlockSourcePort } from "./lifecycle.ts";
import { NameResolver } from "./resolve-names.ts";

/** What may change while the agent runs. */
export interface LifecycleLimits {
  /** The longest a lease may be, and how long it is where nobody said. */
  readonly leaseTtlMaxMs: number;
  /** Of all warm commands together: bytes on their way from SSD, and reads under way. */
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
  /** Null: no other host is asked. */
  readonly peers: BlockSourcePort | null;
  /** Fires when the agent stops: what is at work ends with what it has done so far. */
  readonly signal: AbortSignal;
}

/** What all operations share. */
export interface LifecycleContext extends LifecycleParts {
  readonly names: NameResolver;
  readonly durability: Durability;
}

export function createContext(parts: LifecycleParts): LifecycleContext {
  const names = new NameResolver(parts.store);
  return { ...parts, names, durability: new Durability(parts.store, parts.holds) };
}

/**
 * Makes sure that what was done survives a loss of power. Whoever asks while the disk is at it
 * shares the next turn, so that a thousand commands cost a few turns and not a thousand.
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

  /** Whether those of `nodes` that are on SSD stay there after a loss of power. */
  areWritten(nodes: readonly NodeId[]): boolean {
    const fresh = this.#store.ssd?.writer.fresh;
    return fresh === undefined || nodes.every((node) => fresh.isSafe(node));
  }

  /** True once that is so of all of them; at once where it is already. */
  writes(nodes: readonly NodeId[]): Promise<boolean> {
    return this.areWritten(nodes) ? Promise.resolve(true) : this.everything();
  }

  /**
   * True once what left SSD so far will not come back: what others removed, too, which a command
   * may have found gone already.
   */
  async removals(): Promise<boolean> {
    const { ssd } = this.#store;
    if (ssd === null) return true;
    const over = await ssd.orHung(ssd.room.removals.over().then(() => true));
    if (over !== true) return false;
    return ssd.room.removals.areVolatile ? this.everything() : true;
  }

  /** True once holds are as they are now also after a crash. `since`: as of `Holds.commit`. */
  async holds(since?: number): Promise<boolean> {
    const { ssd } = this.#store;
    crashPoint("hold.changed");
    const committed = this.#holds.commit(since);
    const isCommitted = (await (ssd === null ? committed : ssd.orHung(committed))) === true;
    crashPoint("hold.committed");
    return isCommitted;
  }

  /** True once what is on SSD now is what will be there after a crash. */
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

/** What long work takes of the event loop at once. */
const SLICE_MS = 2;
/** Looks between two at the clock, and at most in one slice. */
const LOOKS_A_GLANCE = 16;
const LOOKS_A_SLICE = 4_096;
/** How often progress is told. */
const PROGRESS_MS = 100;

/** Cuts long work into pieces between which everything else has its turn. */
export class Slices {
  readonly #clock: Clock;
  #startedMs: number;
  #looks = 0;
  #toldMs: number;

  constructor(clock: Clock) {
    this.#clock = clock;
    this.#startedMs = clock.monotonicMs();
    this.#toldMs = this.#startedMs;
  }

  /** To be asked for each block: whether it is time for `turn`. */
  isOver(): boolean {
    if (++this.#looks % LOOKS_A_GLANCE !== 0) return false;
    if (this.#looks >= LOOKS_A_SLICE) return true;
    return this.isLate();
  }

  /** After something that takes longer than a look: as `isOver`, by the clock at once. */
  isLate(): boolean {
    return this.#clock.monotonicMs() - this.#startedMs >= SLICE_MS;
  }

  /** Resolves when the others have had their turn. */
  async turn(): Promise<void> {
    await yieldToLoop();
    this.#looks = 0;
    this.#startedMs = this.#clock.monotonicMs();
  }

  /** True ten times a second at most. */
  mayTell(): boolean {
    const nowMs = this.#clock.monotonicMs();
    if (nowMs - this.#toldMs < PROGRESS_MS) return false;
    this.#toldMs = nowMs;
    return true;
  }
}
