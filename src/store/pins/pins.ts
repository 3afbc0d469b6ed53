import { type BlockResult, type HeldBy, type NodeId, yieldToLoop } from "../../core/index.ts";
import type { EventLog } from "../../observability/activity/index.ts";

/**
 * Maximum number of nodes that one call processes before the caller yields to the event loop. Takes
 * a few milliseconds.
 */
export const PIN_BLOCKS_PER_CALL = 2_048;

/** The value itself if the work completed synchronously, otherwise a promise. */
export type MaybePromise<T> = T | Promise<T>;

export type PinKind = "pin" | "retain" | "lease";

/**
 * Which pins an eviction may end. `soft`: soft pins; the store ends them before sessions. `hard`:
 * pins and leases; the store ends them after all sessions have ended.
 */
export type PinEvictionLevel = "soft" | "hard";

export interface PinRequest {
  readonly kind: PinKind;
  readonly owner: string;
  /** Name of a lease; null for other kinds. */
  readonly name: string | null;
  /** Nodes of the blocks to pin, without duplicates. The blocks must be in RAM or on SSD. */
  readonly nodes: readonly NodeId[];
  /** Milliseconds until the pin expires; null: it stays until its owner unpins the blocks. */
  readonly ttlMs: number | null;
  /**
   * For soft pins only. The priority halves with each `idleMs` milliseconds without use after the
   * first. `idleMs` null: the configured default.
   */
  readonly priority: number | null;
  readonly idleMs: number | null;
  /**
   * For leases only. True: when the lease expires, its blocks are removed unless something else
   * protects them; the creator must be authorised to delete blocks. Default: the blocks stay and
   * are evicted like others.
   */
  readonly purges?: boolean;
}

/** Capacity, budgets and use of pins and leases, in bytes. */
export interface BudgetFigures {
  readonly capacityBytes: number;
  readonly hostBudgetBytes: number;
  readonly hostUsedBytes: number;
  readonly ownerBudgetBytes: number;
  readonly ownerUsedBytes: number;
}

export interface AddedPin {
  /** Id of the pin; null if no block was accepted. */
  readonly id: number | null;
  /** One result per requested node: `done`, `already`, `missing`, or `rejected` with a reason. */
  readonly results: readonly BlockResult[];
  /** Budget figures for the reply; null if no block was rejected. */
  readonly figures: BudgetFigures | null;
}

export interface PinInfo {
  readonly id: number;
  readonly kind: PinKind;
  readonly owner: string;
  readonly name: string | null;
  readonly blocks: number;
  readonly bytes: number;
  /** Milliseconds until the pin expires; null if it does not expire. */
  readonly remainingMs: number | null;
  readonly ageMs: number;
  /** For soft pins only: the initial priority, and the remaining priority now. */
  readonly priority: number | null;
  readonly priorityNow: number | null;
  /**
   * For soft pins only: milliseconds without use that halve the priority. Null: the priority does
   * not fade.
   */
  readonly idleMs: number | null;
}

export interface PinPage {
  readonly holds: readonly PinInfo[];
  /** Cursor: pass it as `after` to get the next page. Null if this is the last page. */
  readonly next: number | null;
}

/** A pin that has ended and no longer protects its blocks. */
export interface EndedPin {
  readonly info: PinInfo;
  /**
   * Those blocks of the pin that still have a node. Valid until the next change of the block table.
   */
  readonly nodes: readonly NodeId[];
}

export interface EndedLease extends EndedPin {
  /** Deletes the lease's ledger record. Call when its blocks need no further work. */
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

/** Reports changes to pins that no command requested, as events and as warnings in the log. */
export class PinEvents {
  readonly #events: EventLog;
  readonly #log: PinLog;
  /** Lost blocks in this turn of the event loop, by pin and reason. */
  readonly #lost = new Map<string, LostBlocks>();

  constructor(events: EventLog, log: PinLog) {
    this.#events = events;
    this.#log = log;
  }

  /** Reports that pin eviction ended the pin. */
  evicted(pin: PinInfo, tier: "ram" | "ssd", why: string): void {
    const { kind: hold, owner, name, blocks, bytes } = pin;
    this.#events.emit({ kind: "hold_relieved", hold, owner, name, blocks, bytes, tier, why });
    const fields = { ...fieldsOf(pin), blocks, bytes, tier, why };
    this.#log.warn("pin evicted because its blocks left no room", fields);
  }

  /**
   * Reports that the pin reached its deadline. `purged`: number of blocks removed because of that.
   */
  expired({ kind: hold, owner, name, blocks }: PinInfo, purged: number): void {
    this.#events.emit({ kind: "hold_expired", hold, owner, name, blocks, purged });
  }

  purgeFailed({ owner, name }: PinInfo, why: string): void {
    const fields = { owner, lease: name ?? "", why };
    this.#log.warn("purge of an expired lease failed, retrying", fields);
  }

  /**
   * Reports the loss of a pinned block. Combines the losses of one pin for one reason within a turn
   * of the event loop.
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

  /**
   * Reports that `lost` blocks of a restored pin are not resident after the start, and `left`
   * blocks are.
   */
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
