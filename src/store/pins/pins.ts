import { type BlockResult, type HeldBy, type NodeId, yieldToLoop } from "../../core/index.ts";
import type { EventLog } from "../../observability/activity/index.ts";

/** Nodes that one call processes before the event loop should turn. Takes a few milliseconds. */
export const PIN_BLOCKS_PER_CALL = 2_048;

/** The value itself if the request is small enough to complete synchronously. */
export type MaybePromise<T> = T | Promise<T>;

export type PinKind = "pin" | "retain" | "lease";

/**
 * Pins that pin eviction may end. `soft`: soft pins, before sessions end. `hard`: pins and leases,
 * after sessions have ended.
 */
export type PinEvictionLevel = "soft" | "hard";

export interface PinRequest {
  readonly kind: PinKind;
  readonly owner: string;
  /** Name of a lease; null for other kinds. */
  readonly name: string | null;
  /** Blocks resident in RAM or on SSD, without duplicates. */
  readonly nodes: readonly NodeId[];
  /** Null: until the owner unpins the blocks. */
  readonly ttlMs: number | null;
  /**
   * Soft pins only. The pin fades if its blocks are unused for longer than `idleMs`. Null: the
   * configured value.
   */
  readonly priority: number | null;
  readonly idleMs: number | null;
  /**
   * Leases only. If true, expiry removes the blocks that nothing else needs; the creator must be
   * authorised to delete blocks. Default: the blocks stay and are evicted like others.
   */
  readonly purges?: boolean;
}

/** Capacity, budgets and use, in bytes. */
export interface BudgetFigures {
  readonly capacityBytes: number;
  readonly hostBudgetBytes: number;
  readonly hostUsedBytes: number;
  readonly ownerBudgetBytes: number;
  readonly ownerUsedBytes: number;
}

export interface AddedPin {
  /** Null if no block was accepted. */
  readonly id: number | null;
  /** One result per node: `done`, `already`, `missing`, or `rejected` with a reason. */
  readonly results: readonly BlockResult[];
  /** Null if no block was rejected. */
  readonly figures: BudgetFigures | null;
}

export interface PinInfo {
  readonly id: number;
  readonly kind: PinKind;
  readonly owner: string;
  readonly name: string | null;
  readonly blocks: number;
  readonly bytes: number;
  /** Null: the pin does not expire. */
  readonly remainingMs: number | null;
  readonly ageMs: number;
  /** Soft pins only: the initial priority, and the priority that is left now. */
  readonly priority: number | null;
  readonly priorityNow: number | null;
  /**
   * Soft pins only: time without use that halves the priority. Null: the priority does not fade.
   */
  readonly idleMs: number | null;
}

export interface PinPage {
  readonly holds: readonly PinInfo[];
  /** Pass as `after` to get the next page. Null: this is the last page. */
  readonly next: number | null;
}

/** A pin that ended. It no longer protects its blocks. */
export interface EndedPin {
  readonly info: PinInfo;
  /** Blocks of the pin that still have a node. Valid until the next change of the block table. */
  readonly nodes: readonly NodeId[];
}

export interface EndedLease extends EndedPin {
  /** Deletes the lease's record. Call it when no work is left to do for the lease. */
  forget(): void;
}

/** Receives warnings. The agent's logger implements it. */
export interface PinLog {
  warn(message: string, fields?: Record<string, string | number>): void;
}

type PinSubject = Pick<PinInfo, "kind" | "owner" | "name">;

interface LostBlocks extends PinSubject {
  readonly why: string;
  blocks: number;
}

/** Reports changes to pins that no command asked for, as events and as log warnings. */
export class PinEvents {
  readonly #events: EventLog;
  readonly #log: PinLog;
  /** Losses in this turn of the event loop, by pin and reason. */
  readonly #lost = new Map<string, LostBlocks>();

  constructor(events: EventLog, log: PinLog) {
    this.#events = events;
    this.#log = log;
  }

  /** Pin eviction ended the pin. */
  evicted(pin: PinInfo, tier: "ram" | "ssd", why: string): void {
    const { kind: hold, owner, name, blocks, bytes } = pin;
    this.#events.emit({ kind: "hold_relieved", hold, owner, name, blocks, bytes, tier, why });
    const fields = { ...fieldsOf(pin), blocks, bytes, tier, why };
    this.#log.warn("pin evicted because its blocks left no room", fields);
  }

  /** The pin reached its deadline. `purged`: blocks removed with it. */
  expired({ kind: hold, owner, name, blocks }: PinInfo, purged: number): void {
    this.#events.emit({ kind: "hold_expired", hold, owner, name, blocks, purged });
  }

  purgeFailed({ owner, name }: PinInfo, why: string): void {
    const fields = { owner, lease: name ?? "", why };
    this.#log.warn("purge of an expired lease failed, retrying", fields);
  }

  /**
   * A pinned block was lost. Losses of one pin for one reason within a turn of the event loop are
   * reported together.
   */
  lost({ kind, owner = "", name = undefined }: HeldBy, why: string): void {
    if (kind !== "pin" && kind !== "retain" && kind !== "lease") return;
    const key = JSON.stringify([kind, owner, name, why]);
    const known = this.#lost.get(key);
    if (known !== undefined) {
      known.blocks++;
      return;
    }
    this.#lost.set(key, { kind, owner, name: name ?? null, why, blocks: 1 });
    if (this.#lost.size === 1) void yieldToLoop().then(() => this.#reportLost());
  }

  #reportLost(): void {
    for (const lost of this.#lost.values()) {
      const { kind: hold, owner, name, why, blocks } = lost;
      this.#events.emit({ kind: "hold_lost", hold, owner, name, blocks, why });
      this.#log.warn("pinned blocks lost", { ...fieldsOf(lost), blocks, why });
    }
    this.#lost.clear();
  }

  /** `lost` blocks of a restored pin are not resident after the start; `left` are. */
  missing(pin: PinSubject, lost: number, left: number): void {
    const { kind: hold, owner, name } = pin;
    const why = "not resident after the start";
    this.#events.emit({ kind: "hold_lost", hold, owner, name, blocks: lost, why });
    const fields = { ...fieldsOf(pin), lost, left };
    this.#log.warn("pinned blocks missing after the start", fields);
  }
}

function fieldsOf({ kind, owner, name }: PinSubject): Record<string, string> {
  return { kind, owner, ...(name === null ? {} : { lease: name }) };
}
