import {
  type BlockResult,
  type Clock,
  type HeldBy,
  NO_NODE,
  type NodeId,
  yieldToLoop,
} from "../../core/index.ts";
import type { EventLog } from "../../observability/activity/index.ts";
import { type BlockTable, Tier } from "../blocks/index.ts";
import type { HoldLedger } from "../index/index.ts";
import { Budget, type BudgetLimits, HoldLimits } from "./pin-budget.ts";
import { LettingGo, Relief } from "./pin-eviction.ts";
import { ClosingHolds, ExpiredLeases, HoldTimer, type Purged } from "./pin-expiry.ts";
import {
  type FindBlock,
  type RememberedHolds,
  type Restored,
  restoreHolds,
  rowsWithin,
} from "./pin-records.ts";
import { type Hold, HoldBook, verifyHolds } from "./pin-table.ts";
import {
  type AddedHold,
  type BudgetFigures,
  type EndedHold,
  type EndedLease,
  HOLD_BLOCKS_A_CALL,
  type HoldInfo,
  type HoldLog,
  HoldNews,
  type HoldPage,
  type HoldRequest,
  type Holds,
  type ReliefLevel,
  type Soon,
} from "./pins.ts";

/** Holders named for one block. */
const HOLDERS_MAX = 64;
/** Holds, and blocks of soft pins, looked at for one page of a list: about a millisecond. */
const LIST_STEPS_MAX = 65_536;
/** A soft pin has at most this. */
const PRIORITY_MAX = 99;

const DONE: BlockResult = Object.freeze({ outcome: "done" });
const ALREADY: BlockResult = Object.freeze({ outcome: "already" });
const MISSING: BlockResult = Object.freeze({ outcome: "missing" });

const NOTHING: RememberedHolds = { holds: [], lastSeen: null };

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
  /** After how long without use a soft pin fades that names no time. */
  readonly retainIdleMs: () => number;
  /** Holds at the same time. Default: a million. */
  readonly holdsMax?: number;
  /**
   * A lease that `purges` has expired and holds nothing any more: removes what nothing else wants.
   * Asked again until that is done for good; only then the lease is forgotten, so that what a crash
   * cut short is done after the next start. A few at a time. Default: everything stays.
   */
  readonly onLeaseExpired?: (ended: EndedHold) => Promise<Purged>;
}

export class HoldRegistry implements Holds, AsyncDisposable {
  readonly #options: HoldRegistryOptions;
  readonly #book: HoldBook;
  readonly #budget: Budget;
  readonly #news: HoldNews;
  readonly #limits: HoldLimits;
  readonly #relief: Relief;
  readonly #closing: ClosingHolds;
  readonly #timer: HoldTimer;
  /** Null: what was under a lease stays where it is. */
  readonly #expiring: ExpiredLeases | null;
  #relieved = 0;
  #expired = 0;
  #lost = 0;

  constructor(options: HoldRegistryOptions) {
    const { table, clock, ledger, events, log } = options;
    this.#options = options;
    this.#news = new HoldNews(events, log);
    this.#book = new HoldBook(options);
    this.#budget = new Budget(table, this.#book, options);
    this.#limits = new HoldLimits(this.#book, options.holdsMax);
    this.#relief = new Relief(table, this.#book, clock);
    this.#closing = new ClosingHolds(table, this.#book);
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
    const restored = await restoreHolds(this.#book, this.#options, {
      find,
      from,
      onEnd,
      news: this.#news,
    });
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
    const holds = rowsWithin(this.#book.after(0), bytesMax, table, bootId);
    const lastSeen = { bootId, bootMs: clock.bootMs() };
    return { holds, lastSeen, leftOut: this.#book.size - holds.length };
  }

  add(request: HoldRequest): AddedHold {
    return this.#add(request, request.nodes, true);
  }

  addAll(request: HoldRequest): Soon<AddedHold> {
    return request.nodes.length <= HOLD_BLOCKS_A_CALL ? this.add(request) : this.#addMany(request);
  }

  async #addMany(request: HoldRequest): Promise<AddedHold> {
    let hold: Hold | undefined;
    const added = await inSlices(this.#options.table, request.nodes, (nodes) => {
      if (hold === undefined) {
        const first = this.#add(request, nodes, false);
        hold = first.id === null ? undefined : this.#book.get(first.id);
        return first;
      }
      if (hold.ended) return this.#refuse(request.owner, nodes, "missing: the hold has ended");
      return this.#join(hold, nodes);
    });
    // To write all of it down is a turn's work by itself.
    await yieldToLoop();
    if (hold === undefined || hold.ended) return { ...added, id: null };
    hold.isWhole = true;
    this.#book.records.changeAll(hold);
    return { ...added, id: hold.id };
  }

  letGo(kind: "pin" | "retain", owner: string, nodes: readonly NodeId[]): boolean[] {
    const letting = new LettingGo(this.#book, kind, owner);
    const results = nodes.map((node) => letting.letGo(node));
    letting.record();
    return results;
  }

  letGoAll(kind: "pin" | "retain", owner: string, nodes: readonly NodeId[]): Soon<boolean[]> {
    const isSmall = nodes.length <= HOLD_BLOCKS_A_CALL;
    return isSmall ? this.letGo(kind, owner, nodes) : this.#letGoMany(kind, owner, nodes);
  }

  async #letGoMany(...[kind, owner, nodes]: Parameters<Holds["letGoAll"]>): Promise<boolean[]> {
    const letting = new LettingGo(this.#book, kind, owner);
    const { results } = await inSlices(this.#options.table, nodes, (slice) => ({
      results: slice.map((node) => (letting.letGo(node) ? DONE : MISSING)),
    }));
    letting.record();
    return results.map((result) => result === DONE);
  }

  lease(name: string): HoldInfo | null {
    const hold = this.#book.leases.get(name);
    return hold === undefined ? null : this.#book.infoOf(hold);
  }

  extend(name: string, owner: string, nodes: readonly NodeId[]): AddedHold {
    const hold = this.#book.leases.get(name);
    if (hold === undefined) return this.#refuse(owner, nodes, "missing: there is no such lease");
    if (hold.owner !== owner)
      return this.#refuse(owner, nodes, "owner: the lease of this name is another owner's");
    return this.#join(hold, nodes);
  }

  extendAll(name: string, owner: string, nodes: readonly NodeId[]): Soon<AddedHold> {
    return inSlices(this.#options.table, nodes, (slice) => this.extend(name, owner, slice));
  }

  renew(name: string, ttlMs: number): boolean {
    const hold = this.#book.leases.get(name);
    if (hold === undefined) return false;
    hold.deadlineBootMs = this.#deadline(this.#leaseTtl(ttlMs));
    this.#book.schedule(hold);
    this.#book.records.change(hold);
    this.#timer.arm();
    return true;
  }

  keepBlocks(name: string): void {
    const hold = this.#book.leases.get(name);
    if (hold === undefined || !hold.purges) return;
    hold.purges = false;
    this.#book.records.change(hold);
  }

  endLease(name: string): Soon<EndedLease | null> {
    const hold = this.#book.leases.get(name);
    if (hold === undefined) return null;
    const { promise, resolve } = Promise.withResolvers<EndedLease>();
    let atOnce: EndedLease | null = null;
    hold.deadlineBootMs = this.#options.clock.bootMs();
    // Also where a crash cuts it short: the next start removes what was to go.
    hold.purges = true;
    this.#book.records.overdue(hold);
    this.#closing.end(hold, (ended) => {
      const forget = () => this.#book.records.forget(hold.id);
      atOnce = { ...ended, forget };
      resolve(atOnce);
    });
    return atOnce ?? promise;
  }

  isInLease(name: string, node: NodeId): boolean {
    return this.#book.leases.get(name)?.nodes.has(node) ?? false;
  }

  holdersOf(node: NodeId): HeldBy[] {
    return this.#book.index.holdersOf(node, HOLDERS_MAX);
  }

  relieve(tier: "ram" | "ssd", why: string, level: ReliefLevel): boolean {
    if (this.#closing.step()) return true;
    const hold = this.#relief.least(tier, level);
    if (hold === null) return false;
    const info = this.#closing.end(hold, () => undefined);
    this.#book.records.forget(hold.id);
    this.#relieved++;
    this.#news.relieved(info, tier, why);
    return true;
  }

  lost(node: NodeId, why: string): void {
    for (const by of holdersBelow(this.#options.table, node, [this], HOLDERS_MAX)) {
      this.#lost++;
      this.#news.lost(by, why);
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
    await this.#closing.over();
    await this.#expiring?.[Symbol.asyncDispose]();
    const { ledger, clock } = this.#options;
    if (this.#book.due.size > 0) ledger?.seen(clock.bootId, clock.bootMs());
  }

  #add(request: HoldRequest, nodes: readonly NodeId[], isWhole: boolean): AddedHold {
    const refusal = this.#limits.refusalOf(request);
    if (refusal !== null) return this.#refuse(request.owner, nodes, refusal);
    const { kind, owner, name, ttlMs } = request;
    const idleMs = kind === "retain" ? (request.idleMs ?? this.#options.retainIdleMs()) : null;
    const priority = request.priority === null ? null : clampPriority(request.priority);
    const deadlineBootMs = this.#deadline(kind === "lease" ? this.#leaseTtl(ttlMs) : ttlMs);
    const purges = kind === "lease" && request.purges === true;
    const times = { idleMs, deadlineBootMs, createdWallMs: null };
    const terms = { kind, owner, name, priority, purges, ...times };
    const hold = this.#book.begin(terms);
    hold.isWhole = isWhole;
    const added = this.#join(hold, nodes);
    if (hold.nodes.size === 0) {
      this.#book.drop(hold);
      return { ...added, id: null };
    }
    this.#book.schedule(hold);
    this.#timer.arm();
    return added;
  }

  #join(hold: Hold, nodes: readonly NodeId[]): AddedHold {
    const judge = hold.kind === "retain" ? () => null : this.#budget.judge(hold);
    let isAnyRejected = false;
    const results = nodes.map((node): BlockResult => {
      if (this.#book.index.mayHave(hold, node) && hold.nodes.has(node)) return ALREADY;
      const reason = this.#limits.limitOf(hold) ?? judge(node) ?? this.#pin(hold, node);
      if (reason === null) return DONE;
      isAnyRejected = true;
      return { outcome: "rejected", reason };
    });
    return { id: hold.id, results, figures: isAnyRejected ? this.figures(hold.owner) : null };
  }

  #pin(hold: Hold, node: NodeId): string | null {
    const part = this.#book.join(hold, node);
    if (part === null) return "limit: the block is held as often as can be";
    this.#book.records.changePart(hold, part);
    return null;
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

  #createExpiring(): ExpiredLeases | null {
    const { table, clock, onLeaseExpired } = this.#options;
    if (onLeaseExpired === undefined) return null;
    return new ExpiredLeases({
      ...{ table, clock, purge: onLeaseExpired },
      onTold: ({ info }, purged, failure) => {
        if (failure !== null) this.#news.notPurged(info, failure);
        this.#news.expired(info, purged);
      },
      onGone: ({ info: { id } }) => this.#book.records.forget(id),
    });
  }

  #expire(hold: Hold): void {
    this.#expired++;
    this.#closing.end(hold, (ended) => {
      if (hold.purges && this.#expiring !== null) {
        this.#expiring.add(ended);
        return;
      }
      this.#book.records.forget(hold.id);
      this.#news.expired(ended.info, 0);
    });
  }
}

function clampPriority(priority: number): number {
  return Math.min(PRIORITY_MAX, Math.max(0, priority));
}

interface SliceResult {
  readonly results: readonly BlockResult[];
}

/**
 * Works on nodes in slices, one in a turn of the event loop; those that are gone when their turn
 * comes are `missing`. The first slice is done before this returns. What else the slices answer is
 * taken from the last one in which anything was rejected, or the last.
 */
function inSlices<Result extends SliceResult>(
  table: BlockTable,
  nodes: readonly NodeId[],
  work: (nodes: readonly NodeId[]) => Result,
): Soon<Result> {
  return nodes.length <= HOLD_BLOCKS_A_CALL ? work(nodes) : inTurns(table, nodes, work);
}

async function inTurns<Result extends SliceResult>(
  table: BlockTable,
  nodes: readonly NodeId[],
  work: (nodes: readonly NodeId[]) => Result,
): Promise<Result> {
  const born = nodes.map((node) => table.generationOf(node));
  const results: BlockResult[] = [];
  let told: Result | null = null;
  for (let from = 0; from < nodes.length; from += HOLD_BLOCKS_A_CALL) {
    if (from > 0) await yieldToLoop();
    const slice = nodes.slice(from, from + HOLD_BLOCKS_A_CALL);
    const isThere = slice.map((node, at) => table.isLive(node, born[from + at]!));
    const done = work(slice.filter((_, at) => isThere[at]));
    let next = 0;
    for (const is of isThere) results.push(is ? done.results[next++]! : MISSING);
    if (told === null || !wasAnyRejected(told) || wasAnyRejected(done)) told = done;
  }
  return { ...told!, results };
}

function wasAnyRejected({ results }: SliceResult): boolean {
  return results.some(({ outcome }) => outcome === "rejected");
}

/** Nodes looked at: some microseconds. */
const STEPS_MAX = 1_000;
const HOLDERS_BELOW_MAX = 16;

/** Knows who holds a node by itself: holds do, and sessions. */
interface HolderSource {
  holdersOf(node: NodeId): readonly HeldBy[];
}

/**
 * Who holds a node or any of its descendants, each once, at most `max`. Goes down only where
 * something is held, looks at 1,000 nodes and then answers what it found so far: perhaps none.
 */
export function holdersBelow(
  table: BlockTable,
  node: NodeId,
  sources: readonly HolderSource[],
  max = HOLDERS_BELOW_MAX,
): HeldBy[] {
  const found = new Map<string, HeldBy>();
  const note = (at: NodeId) => {
    for (const source of sources) {
      for (const by of source.holdersOf(at)) found.set(`${by.kind}/${by.owner}/${by.name}`, by);
    }
  };
  const upcoming: NodeId[] = [node];
  note(node);
  for (let steps = 0; upcoming.length > 0; ) {
    let child = table.firstChildOf(upcoming.pop()!);
    for (; child !== NO_NODE; child = table.nextSiblingOf(child)) {
      if (++steps > STEPS_MAX || found.size >= max) {
        return [...found.values()].slice(0, max);
      }
      if (!table.isKept(child) && !table.isProtected(child, Tier.ram)) continue;
      note(child);
      upcoming.push(child);
    }
  }
  return [...found.values()].slice(0, max);
}
