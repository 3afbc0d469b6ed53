import type { BlockTable } from "../blocks/index.ts";
import type { BlockResult, Clock, HeldBy, NodeId } from "../core/index.ts";
import type { EventLog } from "../events/index.ts";
import type { HoldLedger } from "../index/index.ts";
import { Budget, type BudgetLimits } from "./budget.ts";
import { ExpiredLeases, type Purged } from "./expired-leases.ts";
import type { Hold } from "./hold.ts";
import { HoldBook } from "./hold-book.ts";
import { verifyHolds } from "./hold-integrity.ts";
import { rowsWithin } from "./hold-rows.ts";
import { HoldTimer } from "./hold-timer.ts";
import { holdersBelow } from "./holders-below.ts";
import type {
  AddedHold,
  BudgetFigures,
  EndedHold,
  HoldInfo,
  HoldPage,
  HoldRequest,
  Holds,
  ReliefLevel,
} from "./holds.ts";
import { Relief } from "./relief.ts";
import {
  type FindBlock,
  type RememberedHolds,
  type Restored,
  restoreHolds,
} from "./restore-holds.ts";

/** Holds at the same time, unless the options say otherwise. */
const HOLDS_MAX = 1_000_000;
/** Blocks of one hold. */
const HOLD_BLOCKS_MAX = 65_536;
/** Blocks under holds, each once for each hold: about a gigabyte of records. */
const BLOCKS_MAX = 4_194_304;
const OWNERS_MAX = 65_536;
const LEASES_MAX = 65_536;
/** Of the name of an owner or a lease, in UTF-8. */
const NAME_BYTES_MAX = 128;
/** Holders named for one block. */
const HOLDERS_MAX = 64;
/** Holds, and blocks of soft pins, looked at for one page of a list: about a millisecond. */
const LIST_STEPS_MAX = 65_536;
/** A soft pin has at most this. */
const PRIORITY_MAX = 99;

const NOTHING: RememberedHolds = { holds: [], lastSeen: null };

/** Where warnings go; a logger is one. */
export interface HoldLog {
  warn(message: string, fields?: Record<string, string | number>): void;
}

export interface HoldRegistryOptions extends BudgetLimits {
  readonly table: BlockTable;
  readonly clock: Clock;
  readonly events: EventLog;
  readonly log: HoldLog;
  /** Null: holds last as long as the process. Not closed by the registry. */
  readonly ledger: HoldLedger | null;
  /** The store's clock, on which blocks were used. */
  readonly nowSeconds: () => number;
  /** The longest a lease lasts without renewal, and how long one lasts that names no time. */
  readonly leaseTtlMaxMs: () => number;
  /** Holds at the same time. Default: a million. */
  readonly holdsMax?: number;
  /**
   * A lease has expired and holds nothing any more: removes what nothing else wants. Asked again
   * until that is done for good; only then the lease is forgotten, so that what a crash cut short
   * is done after the next start. A few at a time. Default: everything stays.
   */
  readonly onLeaseExpired?: (ended: EndedHold) => Promise<Purged>;
}

export class HoldRegistry implements Holds, AsyncDisposable {
  readonly #options: HoldRegistryOptions;
  readonly #book: HoldBook;
  readonly #budget: Budget;
  readonly #relief: Relief;
  readonly #timer: HoldTimer;
  /** Null: what was under a lease stays where it is. */
  readonly #expiring: ExpiredLeases | null;
  #relieved = 0;
  #expired = 0;
  #lost = 0;

  constructor(options: HoldRegistryOptions) {
    const { table, clock, ledger } = options;
    this.#options = options;
    this.#book = new HoldBook(options);
    this.#budget = new Budget(table, this.#book, options);
    this.#relief = new Relief(table, this.#book, clock);
    this.#expiring = this.#createExpiring();
    const onEnd = (hold: Hold) => this.#expire(hold);
    this.#timer = new HoldTimer({ book: this.#book, clock, ledger, onEnd });
  }

  /**
   * Brings back what the ledger held when it was opened, or without one what `handed` has; once,
   * after the blocks are back and before anything is added. `find` answers the block's node where
   * it is in RAM or on SSD. No budget applies. A hold keeps what is there of its blocks; one of
   * which nothing is there is over. What is missing is said in events, the log and the counts.
   */
  async restore(find: FindBlock, handed: RememberedHolds = NOTHING): Promise<Restored> {
    const from = this.#options.ledger?.contents ?? handed;
    const onEnd = (hold: Hold) => this.#expire(hold);
    const restored = await restoreHolds(this.#book, this.#options, { find, from, onEnd });
    this.#lost += restored.lostBlocks;
    this.#timer.arm();
    return restored;
  }

  /**
   * All holds as a ledger would have them, for a process that takes over the blocks: pins and
   * leases before soft pins, the oldest first, as many as fit into about `bytesMax`; `leftOut`: how
   * many do not.
   */
  handOver(bytesMax: number): RememberedHolds & { readonly leftOut: number } {
    const { table, clock } = this.#options;
    const { bootId } = clock;
    const holds = rowsWithin(this.#book.holds(), bytesMax, table, bootId);
    const lastSeen = { bootId, bootMs: clock.bootMs() };
    return { holds, lastSeen, leftOut: this.#book.size - holds.length };
  }

  add(request: HoldRequest): AddedHold {
    const refusal = this.#refusalOf(request);
    if (refusal !== null) return this.#refuse(request.owner, request.nodes, refusal);
    const { kind, owner, name, ttlMs, idleMs } = request;
    const priority = request.priority === null ? null : clampPriority(request.priority);
    const deadlineBootMs = this.#deadline(kind === "lease" ? this.#leaseTtl(ttlMs) : ttlMs);
    const terms = { kind, owner, name, priority, idleMs, deadlineBootMs, createdWallMs: null };
    const hold = this.#book.begin(terms);
    const added = this.#join(hold, request.nodes);
    if (hold.nodes.size === 0) {
      this.#book.drop(hold);
      return { ...added, id: null };
    }
    this.#book.schedule(hold);
    this.#book.record(hold);
    this.#timer.arm();
    return added;
  }

  letGo(kind: "pin" | "retain", owner: string, nodes: readonly NodeId[]): boolean[] {
    const changed = new Set<Hold>();
    const results = nodes.map((node) => {
      const hold = this.#book.index.endsFirst(kind, owner, node);
      if (hold === null) return false;
      this.#book.leave(hold, node);
      changed.add(hold);
      return true;
    });
    for (const hold of changed) {
      if (hold.nodes.size > 0) this.#book.record(hold);
      else {
        this.#book.drop(hold);
        this.#book.forget(hold.id);
      }
    }
    return results;
  }

  lease(name: string): HoldInfo | null {
    const hold = this.#book.leases.get(name);
    return hold === undefined ? null : this.#book.infoOf(hold);
  }

  extend(name: string, nodes: readonly NodeId[]): AddedHold {
    const hold = this.#book.leases.get(name);
    if (hold === undefined) return this.#refuse("", nodes, "missing: there is no such lease");
    const before = hold.nodes.size;
    const added = this.#join(hold, nodes);
    if (hold.nodes.size > before) this.#book.record(hold);
    return added;
  }

  renew(name: string, ttlMs: number): boolean {
    const hold = this.#book.leases.get(name);
    if (hold === undefined) return false;
    hold.deadlineBootMs = this.#deadline(this.#leaseTtl(ttlMs));
    this.#book.schedule(hold);
    this.#book.record(hold);
    this.#timer.arm();
    return true;
  }

  endLease(name: string): EndedHold | null {
    const hold = this.#book.leases.get(name);
    if (hold === undefined) return null;
    const ended = this.#end(hold);
    this.#book.forget(hold.id);
    return ended;
  }

  isInLease(name: string, node: NodeId): boolean {
    return this.#book.leases.get(name)?.nodes.has(node) ?? false;
  }

  holdersOf(node: NodeId): HeldBy[] {
    return this.#book.index.holdersOf(node, HOLDERS_MAX);
  }

  relieve(tier: "ram" | "ssd", why: string, level: ReliefLevel): boolean {
    const hold = this.#relief.least(tier, level);
    if (hold === null) return false;
    const { info } = this.#end(hold);
    this.#book.forget(hold.id);
    this.#relieved++;
    const { kind, owner, name, blocks, bytes } = info;
    this.#options.events.emit({
      kind: "hold_relieved",
      hold: kind,
      owner,
      name,
      blocks,
      bytes,
      tier,
      why,
    });
    this.#options.log.warn("a hold was ended because its blocks left no room", {
      hold: kind,
      owner,
      ...(name === null ? {} : { lease: name }),
      blocks,
      bytes,
      tier,
      why,
    });
    return true;
  }

  lost(node: NodeId, why: string): void {
    const { table } = this.#options;
    for (const { kind, owner = "", name } of holdersBelow(table, node, [this], HOLDERS_MAX)) {
      this.#lost++;
      const lease = name === undefined ? {} : { lease: name };
      this.#options.log.warn("a block under a hold is lost", { hold: kind, owner, ...lease, why });
      const who = { hold: kind, owner, name: name ?? null };
      this.#options.events.emit({ kind: "hold_lost", ...who, blocks: 1, why });
    }
  }

  list(options: Parameters<Holds["list"]>[0]): HoldPage {
    const { kind, owner, after, max } = options;
    const holds: HoldInfo[] = [];
    let [next, steps] = [after, 0];
    for (const hold of this.#book.after(after)) {
      if (holds.length >= max || steps >= LIST_STEPS_MAX) return { holds, next };
      next = hold.id;
      // What a soft pin is worth depends on each of its blocks.
      steps += hold.kind === "retain" ? 1 + hold.nodes.size : 1;
      if (kind !== null && hold.kind !== kind) continue;
      if (owner === null || hold.owner === owner) holds.push(this.#book.infoOf(hold));
    }
    return { holds, next: null };
  }

  figures(owner: string | null): BudgetFigures {
    return this.#budget.figures(owner);
  }

  counts(): ReturnType<Holds["counts"]> {
    const { pin, retain, lease } = this.#book.totals;
    const [relieved, expired, lost] = [this.#relieved, this.#expired, this.#lost];
    const kinds = { pin: { ...pin }, retain: { ...retain }, lease: { ...lease } };
    return { ...kinds, relieved, expired, lost };
  }

  get mark(): number {
    return this.#options.ledger?.mark ?? 0;
  }

  async commit(since?: number): Promise<boolean> {
    return (await this.#options.ledger?.commit(since === undefined ? {} : { since })) ?? true;
  }

  /** Checks every invariant, in time linear in the blocks under holds; INTERNAL names one. */
  verifyIntegrity(): void {
    verifyHolds(this.#book, this.#options.table);
  }

  /** Holds stay in force and in the ledger; nothing expires any more. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#timer[Symbol.dispose]();
    await this.#expiring?.[Symbol.asyncDispose]();
    const { ledger, clock } = this.#options;
    if (this.#book.due.size > 0) ledger?.seen(clock.bootId, clock.bootMs());
  }

  #join(hold: Hold, nodes: readonly NodeId[]): AddedHold {
    const judge = hold.kind === "retain" ? () => null : this.#budget.judge(hold);
    let isAnyRejected = false;
    const results = nodes.map((node): BlockResult => {
      if (hold.nodes.has(node)) return { outcome: "already" };
      const reason = this.#limitOf(hold) ?? judge(node) ?? this.#pin(hold, node);
      if (reason === null) return { outcome: "done" };
      isAnyRejected = true;
      return { outcome: "rejected", reason };
    });
    return { id: hold.id, results, figures: isAnyRejected ? this.figures(hold.owner) : null };
  }

  #pin(hold: Hold, node: NodeId): string | null {
    return this.#book.join(hold, node) ? null : "limit: the block is held as often as can be";
  }

  #limitOf(hold: Hold): string | null {
    if (hold.nodes.size >= HOLD_BLOCKS_MAX) return `limit: ${HOLD_BLOCKS_MAX} blocks in one hold`;
    return this.#book.blocks >= BLOCKS_MAX ? `limit: ${BLOCKS_MAX} blocks under holds` : null;
  }

  /** Why no block of the request is accepted. */
  #refusalOf({ kind, owner, name }: HoldRequest): string | null {
    const { index, size, leases } = this.#book;
    const holdsMax = this.#options.holdsMax ?? HOLDS_MAX;
    if (isTooLong(owner)) return `limit: an owner's name has ${NAME_BYTES_MAX} bytes at most`;
    if (name !== null && isTooLong(name))
      return `limit: a lease's name has ${NAME_BYTES_MAX} bytes at most`;
    if (size >= holdsMax) return `limit: ${holdsMax} holds at the same time`;
    if (index.owners >= OWNERS_MAX && !index.hasOwner(owner))
      return `limit: ${OWNERS_MAX} owners at the same time`;
    if (kind !== "lease") return null;
    if (leases.size >= LEASES_MAX) return `limit: ${LEASES_MAX} leases at the same time`;
    if (name === null) return "invalid: a lease has a name";
    return leases.has(name) ? "exists: there is a lease of this name" : null;
  }

  #refuse(owner: string, nodes: readonly NodeId[], reason: string): AddedHold {
    const results = nodes.map((): BlockResult => ({ outcome: "rejected", reason }));
    return { id: null, results, figures: this.figures(owner) };
  }

  #leaseTtl(ttlMs: number | null): number {
    const longestMs = this.#options.leaseTtlMaxMs();
    return ttlMs === null ? longestMs : Math.min(ttlMs, longestMs);
  }

  #deadline(ttlMs: number | null): number | null {
    return ttlMs === null ? null : this.#options.clock.bootMs() + Math.max(0, ttlMs);
  }

  #end(hold: Hold): EndedHold {
    const info = this.#book.infoOf(hold);
    return { info, nodes: this.#book.end(hold) };
  }

  #createExpiring(): ExpiredLeases | null {
    const { table, clock, log, onLeaseExpired } = this.#options;
    if (onLeaseExpired === undefined) return null;
    return new ExpiredLeases({
      ...{ table, clock, purge: onLeaseExpired },
      onTold: (ended, purged, why) => {
        const { owner, name } = ended.info;
        const fields = { owner, lease: name ?? "", why: why ?? "" };
        if (why !== null) log.warn("the blocks of an expired lease could not be removed", fields);
        this.#tellExpired(ended, purged);
      },
      onGone: ({ info: { id } }) => this.#book.forget(id),
    });
  }

  #expire(hold: Hold): void {
    const ended = this.#end(hold);
    this.#expired++;
    if (hold.kind === "lease" && this.#expiring !== null) {
      this.#expiring.add(ended);
      return;
    }
    this.#book.forget(hold.id);
    this.#tellExpired(ended, 0);
  }

  #tellExpired({ info: { kind, owner, name, blocks } }: EndedHold, purged: number): void {
    const what = { hold: kind, owner, name, blocks, purged };
    this.#options.events.emit({ kind: "hold_expired", ...what });
  }
}

function clampPriority(priority: number): number {
  return Math.min(PRIORITY_MAX, Math.max(0, priority));
}

function isTooLong(name: string): boolean {
  return name.length > NAME_BYTES_MAX || Buffer.byteLength(name) > NAME_BYTES_MAX;
}
