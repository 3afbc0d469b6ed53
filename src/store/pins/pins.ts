import { type BlockResult, type HeldBy, type NodeId, yieldToLoop } from "../../core/index.ts";
import type { EventLog } from "../../observability/activity/index.ts";

/** Nodes that one call looks at before the event loop should turn: some milliseconds. */
export const PIN_BLOCKS_PER_CALL = 2_048;

/** Of something small: there at once. */
export type MaybePromise<T> = T | Promise<T>;

export type HoldKind = "pin" | "retain" | "lease";

/** Which holds may be ended for room: soft pins go before sessions end, pins and leases after. */
export type ReliefLevel = "soft" | "hard";

export interface PinRequest {
  readonly kind: HoldKind;
  readonly owner: string;
  /** Of a lease; null otherwise. */
  readonly name: string | null;
  /** Resident on RAM or SSD, each once. */
  readonly nodes: readonly NodeId[];
  /** Null: until it is taken back. */
  readonly ttlMs: number | null;
  /** Of a soft pin; without use for longer than `idleMs` it fades. Null: as configured. */
  readonly priority: number | null;
  readonly idleMs: number | null;
  /**
   * Of a lease: when its time is over, blocks that nothing else wants are removed. Its maker had
   * the grant to delete blocks. Left out: they stay, and are evicted as any other.
   */
  readonly purges?: boolean;
}

/** What room there is, and who takes it; bytes. */
export interface BudgetFigures {
  readonly capacityBytes: number;
  readonly hostBudgetBytes: number;
  readonly hostUsedBytes: number;
  readonly ownerBudgetBytes: number;
  readonly ownerUsedBytes: number;
}

export interface AddedHold {
  /** Null where no block was accepted. */
  readonly id: number | null;
  /** One for each node: `done`, or `rejected` with the figures in words. */
  readonly results: readonly BlockResult[];
  /** Where anything was rejected. */
  readonly figures: BudgetFigures | null;
}

export interface HoldInfo {
  readonly id: number;
  readonly kind: HoldKind;
  readonly owner: string;
  readonly name: string | null;
  readonly blocks: number;
  readonly bytes: number;
  /** Null: it does not end by itself. */
  readonly remainingMs: number | null;
  readonly ageMs: number;
  /** Of a soft pin: what it was given, and what is left of it now. */
  readonly priority: number | null;
  readonly priorityNow: number | null;
  /** Of a soft pin: how long without use halves its priority; null: it does not fade. */
  readonly idleMs: number | null;
}

export interface HoldPage {
  readonly holds: readonly HoldInfo[];
  /** Where to go on; null: that was all. */
  readonly next: number | null;
}

/** What a hold that ended had held, unheld by it now. */
export interface EndedHold {
  readonly info: HoldInfo;
  /** Those that the table still knows; ids that hold until the next change of the table only. */
  readonly nodes: readonly NodeId[];
}

export interface EndedLease extends EndedHold {
  /** Nothing of it is left to be done. */
  forget(): void;
}

/**
 * Pins, soft pins and leases: who wants which blocks kept on this host, for how long, and within
 * which budget. Each is one hold on a list of blocks; the table counts them as pins. Promises:
 *
 * - Counted: a block held twice by one owner must be let go of twice. One owner never takes away
 *   what another holds.
 * - Over the budget of the owner or the host nothing is added (leases count, soft pins do not: they
 *   go first when room is needed).
 * - Durations run on the boot clock: a jump of the wall clock ends nothing early or late, nor does
 *   a restart. Time during which the machine was off does not count.
 * - Every change is in the ledger before the event loop turns; `commit` makes it last.
 * - When room is needed and nothing else can give it, `relieve` ends the least valuable hold: soft
 *   pins by what is left of their priority, then pins and leases, those whose blocks were used
 *   longest ago first; each with an event, a log line and a count. Never silently.
 */
export interface Holds {
  /** For at most `HOLD_BLOCKS_A_CALL` nodes. */
  add(request: PinRequest): AddedHold;
  /**
   * As `add`, for any number: 2,048 nodes in a turn of the event loop, the first ones before this
   * returns; one that is gone when its turn comes is `missing`. After a crash in between there is
   * nothing of it.
   */
  addAll(request: PinRequest): MaybePromise<AddedHold>;
  /**
   * Lets the owner's pin (or soft pin) on each node go, once: the one that would end first. False
   * where the owner has none on it.
   */
  letGo(kind: "pin" | "retain", owner: string, nodes: readonly NodeId[]): boolean[];
  /** As `letGo`, for any number of nodes, as `addAll` does it. */
  letGoAll(
    kind: "pin" | "retain",
    owner: string,
    nodes: readonly NodeId[],
  ): MaybePromise<boolean[]>;

  /** The lease of this name; null where there is none. */
  lease(name: string): HoldInfo | null;
  /** Adds blocks to a lease that exists; `rejected` where it is another owner's. */
  extend(name: string, owner: string, nodes: readonly NodeId[]): AddedHold;
  /** As `extend`, for any number of nodes, 2,048 in a turn; after a crash some may be in it. */
  extendAll(name: string, owner: string, nodes: readonly NodeId[]): MaybePromise<AddedHold>;
  /** From now on so long, whoever owns it; false where there is none. */
  renew(name: string, ttlMs: number): boolean;
  /** From now on the lease removes nothing if its time is over: its blocks stay. */
  keepBlocks(name: string): void;
  /**
   * Ends it: its name is free when this returns, its blocks are unheld by it when it has answered.
   * Null where there is none. What it held stays written down, as overdue, until `forget`: where a
   * crash cuts short what is to be done with its blocks, the next start does it.
   */
  endLease(name: string): MaybePromise<EndedLease | null>;

  /** Whether a lease of this name has the node among its blocks. */
  isInLease(name: string, node: NodeId): boolean;
  /** Who holds this very node, at most 64: an owner's pins together, each lease by itself. */
  holdersOf(node: NodeId): HeldBy[];
  /**
   * The last copy of a block is gone: says so for each hold on it or on what builds upon it, once
   * for all of a turn of the event loop. They
   * keep their blocks, so that this one is held again when it comes back.
   */
  lost(node: NodeId, why: string): void;

  /**
   * Ends the hold that is worth least among those that keep blocks from leaving `tier`; false where
   * none does. `soft`: of soft pins only; `hard`: of pins and leases. `why`: what did not fit, in
   * figures.
   */
  relieve(tier: "ram" | "ssd", why: string, level: ReliefLevel): boolean;

  /**
   * At most `max` holds with an id above `after`, of one kind unless null, of one owner unless
   * null; fewer where many are passed over.
   */
  list(options: {
    readonly kind: HoldKind | null;
    readonly owner: string | null;
    readonly after: number;
    readonly max: number;
  }): HoldPage;
  figures(owner: string | null): BudgetFigures;
  /** A block under two holds counts in both. `lost`: blocks, once for each party that held one. */
  counts(): Readonly<
    Record<HoldKind, { readonly holds: number; readonly blocks: number; readonly bytes: number }>
  > & { readonly relieved: number; readonly expired: number; readonly lost: number };

  /** For `commit`: names the moment before the next change. */
  readonly mark: number;
  /**
   * True once everything up to now survives; true at once without a ledger. `since`: the mark
   * before the first of the changes that are meant, where the event loop has turned since then;
   * false where one of them was dropped.
   */
  commit(since?: number): Promise<boolean>;
}

/** Receives warnings. The agent's logger implements it. */
export interface PinLog {
  warn(message: string, fields?: Record<string, string | number>): void;
}

type PinSubject = Pick<HoldInfo, "kind" | "owner" | "name">;

interface LostBlocks extends PinSubject {
  readonly why: string;
  blocks: number;
}

/** Reports changes to pins that no command asked for, as events and as log warnings. */
export class PinEvents {
  readonly #events: EventLog;
  readonly #log: PinLog;
  /** Losses of this turn of the event loop, by pin and reason. */
  readonly #lost = new Map<string, LostBlocks>();

  constructor(events: EventLog, log: PinLog) {
    this.#events = events;
    this.#log = log;
  }

  /** Pin eviction ended the pin. */
  evicted(pin: HoldInfo, tier: "ram" | "ssd", why: string): void {
    const { kind: hold, owner, name, blocks, bytes } = pin;
    this.#events.emit({ kind: "hold_relieved", hold, owner, name, blocks, bytes, tier, why });
    const fields = { ...fieldsOf(pin), blocks, bytes, tier, why };
    this.#log.warn("pin evicted because its blocks left no room", fields);
  }

  /** The pin reached its deadline. `purged`: blocks removed with it. */
  expired({ kind: hold, owner, name, blocks }: HoldInfo, purged: number): void {
    this.#events.emit({ kind: "hold_expired", hold, owner, name, blocks, purged });
  }

  purgeFailed({ owner, name }: HoldInfo, why: string): void {
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
