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
import type { RetentionLedger } from "../index/index.ts";
import { Budget, type BudgetLimits, PinLimits } from "./pin-budget.ts";
import { PinEviction, Unpinning } from "./pin-eviction.ts";
import { EndingPins, ExpiredLeases, PinTimer, type Purged } from "./pin-expiry.ts";
import {
  type FindBlock,
  type RememberedPins,
  type Restored,
  restorePins,
  rowsWithin,
} from "./pin-records.ts";
import { type Pin, PinTable } from "./pin-table.ts";
import {
  type AddedPin,
  type BudgetFigures,
  type EndedLease,
  type EndedPin,
  type MaybePromise,
  PIN_BLOCKS_PER_CALL,
  PinEvents,
  type PinEvictionLevel,
  type PinInfo,
  type PinKind,
  type PinLog,
  type PinPage,
  type PinRequest,
} from "./pins.ts";

/** Maximum number of owners, leases and sessions reported for one block. */
const HOLDERS_MAX = 64;
/**
 * Maximum number of pins, plus blocks of soft pins, visited for one page of a list. Takes about a
 * millisecond.
 */
const LIST_STEPS_MAX = 65_536;
/** Maximum priority of a soft pin. */
const PRIORITY_MAX = 99;

const DONE: BlockResult = Object.freeze({ outcome: "done" });
const ALREADY: BlockResult = Object.freeze({ outcome: "already" });
const MISSING: BlockResult = Object.freeze({ outcome: "missing" });

const NOTHING: RememberedPins = { holds: [], lastSeen: null };

export interface PinRegistryOptions extends BudgetLimits {
  readonly table: BlockTable;
  readonly clock: Clock;
  readonly events: EventLog;
  readonly log: PinLog;
  /**
   * Ledger in which pins survive a restart; null if pins end with the process. The registry does
   * not close the ledger.
   */
  readonly ledger: RetentionLedger | null;
  /** The store's clock in seconds, which also timestamps the use of blocks. */
  readonly nowSeconds: () => number;
  /** Maximum time to live of a lease, in milliseconds. Also the default if a request sets none. */
  readonly leaseTtlMaxMs: () => number;
  /** Default of `idleMs` for soft pins, in milliseconds. */
  readonly retainIdleMs: () => number;
  /** Maximum number of pins. Default: one million. */
  readonly pinsMax?: number;
  /**
   * Removes the blocks of an expired lease that nothing else protects. Called for leases with
   * `purges`, again and again until the removal is durable; then the lease's record is deleted. The
   * agent therefore completes a removal after a crash. At most four calls run at once. Default: the
   * blocks stay.
   */
  readonly onLeaseExpired?: (ended: EndedPin) => Promise<Purged>;
}

/**
 * Registry of the pins, soft pins and leases by which owners protect blocks of this host from
 * eviction, for a limited time and within a budget. In this folder the word pin stands for all
 * three kinds. Each is one record with a list of blocks, and the block table counts it as one pin
 * of each of them. Guarantees:
 *
 * - Pins are counted: a block pinned twice by one owner must be unpinned twice. One owner never
 *   ends the pin of another.
 * - A request beyond the budget of the owner or the host adds nothing. Leases count against the
 *   budget. Soft pins do not: pin eviction ends them first.
 * - Durations run on the boot clock. A jump of the wall clock or a restart ends nothing early or
 *   late. Time while the machine is off does not count.
 * - Every change is handed to the ledger before the next turn of the event loop. `commit` makes it
 *   durable.
 * - If a block does not fit and nothing else can be evicted, `relieve` ends the least valuable pin:
 *   soft pins by remaining priority, then pins and leases by the latest use of their blocks, oldest
 *   first. Each ended pin produces an event, a log line and a count.
 */
export class HoldRegistry implements AsyncDisposable {
  readonly #options: PinRegistryOptions;
  readonly pinTable: PinTable;
  readonly #budget: Budget;
  readonly #pinEvents: PinEvents;
  readonly #limits: PinLimits;
  readonly #eviction: PinEviction;
  readonly #ending: EndingPins;
  readonly #timer: PinTimer;
  /** Removes the blocks of expired leases; null if they stay. */
  readonly #expiring: ExpiredLeases | null;
  #relieved = 0;
  #expired = 0;
  #lost = 0;

  constructor(options: PinRegistryOptions) {
    const { table, clock, ledger, events, log } = options;
    this.#options = options;
    this.#pinEvents = new PinEvents(events, log);
    this.pinTable = new PinTable(options);
    this.#budget = new Budget(table, this.pinTable, options);
    this.#limits = new PinLimits(this.pinTable, options.pinsMax);
    this.#eviction = new PinEviction(table, this.pinTable, clock);
    this.#ending = new EndingPins(table, this.pinTable);
    this.#expiring = this.#createExpiring();
    const onEnd = (pin: Pin) => this.#expire(pin);
    this.#timer = new PinTimer({ pinTable: this.pinTable, clock, ledger, onEnd });
  }

  /**
   * Restores the pins from the ledger, or from `handed` without a ledger. Call once, after the
   * blocks are restored and before the first request. `find` returns the node of a block that is in
   * RAM or on SSD. The budget does not apply. A restored pin contains those of its blocks that are
   * resident, and ends if there are none. Missing blocks are reported as events, in the log and in
   * the counts.
   */
  async restore(find: FindBlock, handed: RememberedPins = NOTHING): Promise<Restored> {
    const from = this.#options.ledger?.contents ?? handed;
    const onEnd = (pin: Pin) => this.#expire(pin);
    const restored = await restorePins(this.pinTable, this.#options, {
      find,
      from,
      onEnd,
      pinEvents: this.#pinEvents,
    });
    this.#lost += restored.lostBlocks;
    this.#timer.arm();
    return restored;
  }

  /**
   * Returns the pins as ledger rows, for a process that takes over the blocks: pins and leases
   * first, then soft pins, each by ascending id, up to about `bytesMax` bytes. `leftOut`: number of
   * pins that did not fit.
   */
  handOver(bytesMax: number): RememberedPins & { readonly leftOut: number } {
    const { table, clock } = this.#options;
    const { bootId } = clock;
    const holds = rowsWithin(this.pinTable.after(0), bytesMax, table, bootId);
    const lastSeen = { bootId, bootMs: clock.bootMs() };
    return { holds, lastSeen, leftOut: this.pinTable.size - holds.length };
  }

  /**
   * Adds a pin, soft pin or lease on at most `PIN_BLOCKS_PER_CALL` nodes. Returns its id and one
   * result per node.
   */
  add(request: PinRequest): AddedPin {
    return this.#add(request, request.nodes, true);
  }

  /**
   * Adds a pin on any number of nodes. Processes `PIN_BLOCKS_PER_CALL` nodes per turn of the event
   * loop, the first of them before this method returns. A node that is removed before its turn is
   * `missing`. The pin is written to the ledger when it has all nodes, so a crash in between leaves
   * no part of it.
   */
  addAll(request: PinRequest): MaybePromise<AddedPin> {
    return request.nodes.length <= PIN_BLOCKS_PER_CALL ? this.add(request) : this.#addMany(request);
  }

  async #addMany(request: PinRequest): Promise<AddedPin> {
    let pin: Pin | undefined;
    const added = await inSlices(this.#options.table, request.nodes, (nodes) => {
      if (pin === undefined) {
        const first = this.#add(request, nodes, false);
        pin = first.id === null ? undefined : this.pinTable.get(first.id);
        return first;
      }
      if (pin.ended) return this.#refuse(request.owner, nodes, "missing: the pin ended meanwhile");
      return this.#join(pin, nodes);
    });
    // Yield first, because writing all parts takes a whole turn of the event loop.
    await yieldToLoop();
    if (pin === undefined || pin.ended) return { ...added, id: null };
    pin.isWhole = true;
    this.pinTable.records.changeAll(pin);
    return { ...added, id: pin.id };
  }

  /**
   * Removes one pin (or soft pin) of the owner from each node. If the owner has several on a node,
   * removes the one that expires first. Returns one result per node: false if the owner has none
   * there.
   */
  letGo(kind: "pin" | "retain", owner: string, nodes: readonly NodeId[]): boolean[] {
    const unpinning = new Unpinning(this.pinTable, kind, owner);
    const results = nodes.map((node) => unpinning.letGo(node));
    unpinning.record();
    return results;
  }

  /** Removes pins as `letGo` does, from any number of nodes, in slices like `addAll`. */
  letGoAll(
    kind: "pin" | "retain",
    owner: string,
    nodes: readonly NodeId[],
  ): MaybePromise<boolean[]> {
    const isSmall = nodes.length <= PIN_BLOCKS_PER_CALL;
    return isSmall ? this.letGo(kind, owner, nodes) : this.#letGoMany(kind, owner, nodes);
  }

  async #letGoMany(
    kind: "pin" | "retain",
    owner: string,
    nodes: readonly NodeId[],
  ): Promise<boolean[]> {
    const unpinning = new Unpinning(this.pinTable, kind, owner);
    const { results } = await inSlices(this.#options.table, nodes, (slice) => ({
      results: slice.map((node) => (unpinning.letGo(node) ? DONE : MISSING)),
    }));
    unpinning.record();
    return results.map((result) => result === DONE);
  }

  /** Returns the lease of this name, or null. */
  lease(name: string): PinInfo | null {
    const pin = this.pinTable.leases.get(name);
    return pin === undefined ? null : this.pinTable.infoOf(pin);
  }

  /**
   * Adds blocks to an existing lease. All blocks are `rejected` if the lease does not exist or
   * belongs to another owner.
   */
  extend(name: string, owner: string, nodes: readonly NodeId[]): AddedPin {
    const pin = this.pinTable.leases.get(name);
    if (pin === undefined) return this.#refuse(owner, nodes, "missing: no lease of this name");
    if (pin.owner !== owner)
      return this.#refuse(owner, nodes, "owner: the lease belongs to another owner");
    return this.#join(pin, nodes);
  }

  /**
   * Adds any number of blocks to a lease, `PIN_BLOCKS_PER_CALL` per turn of the event loop. After a
   * crash the lease may contain some of them.
   */
  extendAll(name: string, owner: string, nodes: readonly NodeId[]): MaybePromise<AddedPin> {
    if (nodes.length <= PIN_BLOCKS_PER_CALL) return this.extend(name, owner, nodes);
    return inSlices(this.#options.table, nodes, (slice) => this.extend(name, owner, slice));
  }

  /**
   * Sets the remaining time of a lease to `ttlMs`, whichever owner it has. Returns false if the
   * lease does not exist.
   */
  renew(name: string, ttlMs: number): boolean {
    const pin = this.pinTable.leases.get(name);
    if (pin === undefined) return false;
    pin.deadlineBootMs = this.#deadline(this.#leaseTtl(ttlMs));
    this.pinTable.schedule(pin);
    this.pinTable.records.change(pin);
    this.#timer.arm();
    return true;
  }

  /** Changes the lease so that its blocks stay when it expires. */
  keepBlocks(name: string): void {
    const pin = this.pinTable.leases.get(name);
    if (pin === undefined || !pin.purges) return;
    pin.purges = false;
    this.pinTable.records.change(pin);
  }

  /**
   * Ends a lease. Its name can be reused when this method returns; its blocks are released when the
   * result is available. Returns null if the lease does not exist. Its ledger record stays, marked
   * as expired, until the caller calls `forget`, so that a removal of its blocks that a crash
   * interrupts is completed after the next start.
   */
  endLease(name: string): MaybePromise<EndedLease | null> {
    const pin = this.pinTable.leases.get(name);
    if (pin === undefined) return null;
    const { promise, resolve } = Promise.withResolvers<EndedLease>();
    let atOnce: EndedLease | null = null;
    pin.deadlineBootMs = this.#options.clock.bootMs();
    // Recorded so that a removal interrupted by a crash is completed after the next start.
    pin.purges = true;
    this.pinTable.records.overdue(pin);
    this.#ending.end(pin, (ended) => {
      const forget = () => this.pinTable.records.forget(pin.id);
      atOnce = { ...ended, forget };
      resolve(atOnce);
    });
    return atOnce ?? promise;
  }

  /**
   * Returns the owners and leases that pin the node itself, at most 64 entries: one per owner with
   * pins, one per owner with soft pins, one per lease.
   */
  holdersOf(node: NodeId): HeldBy[] {
    return this.pinTable.index.holdersOf(node, HOLDERS_MAX);
  }

  /**
   * Ends the least valuable pin that prevents blocks from leaving `tier`. Returns false if there is
   * none. `level`: `soft` considers soft pins only, `hard` pins and leases. `why`: the block that
   * did not fit, with figures, for the event and the log.
   */
  relieve(tier: "ram" | "ssd", why: string, level: PinEvictionLevel): boolean {
    if (this.#ending.step()) return true;
    const pin = this.#eviction.least(tier, level);
    if (pin === null) return false;
    const info = this.#ending.end(pin, () => undefined);
    this.pinTable.records.forget(pin.id);
    this.#relieved++;
    this.#pinEvents.evicted(info, tier, why);
    return true;
  }

  /**
   * Reports that the last copy of a block was lost to every pin of the block or of a descendant,
   * once per turn of the event loop. The pins keep the block in their lists, so that it is pinned
   * again if it returns.
   */
  lost(node: NodeId, why: string): void {
    for (const by of subtreeHolders(this.#options.table, node, [this], HOLDERS_MAX)) {
      this.#lost++;
      this.#pinEvents.lost(by, why);
    }
  }

  /**
   * Returns one page of at most `max` pins with ids above `after`. `kind` or `owner` null: any. A
   * page may have fewer pins if many did not match.
   */
  list(options: {
    readonly kind: PinKind | null;
    readonly owner: string | null;
    readonly after: number;
    readonly max: number;
  }): PinPage {
    const { kind, owner, after, max } = options;
    const holds: PinInfo[] = [];
    let [next, steps] = [after, 0];
    for (const pin of this.pinTable.after(after)) {
      if (holds.length >= max || steps >= LIST_STEPS_MAX) return { holds, next };
      next = pin.id;
      // Count the blocks of a soft pin too: its remaining priority depends on each of them.
      steps += pin.kind === "retain" ? 1 + pin.nodes.size : 1;
      if (kind !== null && pin.kind !== kind) continue;
      if (owner === null || pin.owner === owner) holds.push(this.pinTable.infoOf(pin));
    }
    return { holds, next: null };
  }

  figures(owner: string | null): BudgetFigures {
    return this.#budget.figures(owner);
  }

  /**
   * Returns current totals and counters since the start. A block in two pins counts twice. `lost`:
   * lost blocks, counted once per pin owner or lease.
   */
  counts() {
    const { pin, retain, lease } = this.pinTable.totals;
    const [relieved, expired, lost] = [this.#relieved, this.#expired, this.#lost];
    const kinds = { pin: { ...pin }, retain: { ...retain }, lease: { ...lease } };
    return { ...kinds, relieved, expired, lost };
  }

  /** Position in the ledger after the changes made so far. Pass it to `commit` as `since`. */
  get mark(): number {
    return this.#options.ledger?.mark ?? 0;
  }

  /**
   * Waits until all changes so far are durable. Resolves to true then, and immediately without a
   * ledger. Resolves to false if a change since `since` was dropped. `since`: a `mark` taken before
   * the caller's first change; needed only if the caller has yielded to the event loop since.
   */
  async commit(since?: number): Promise<boolean> {
    return (await this.#options.ledger?.commit(since === undefined ? {} : { since })) ?? true;
  }

  /** Stops the expiry of pins. Pins stay in the ledger. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#timer[Symbol.dispose]();
    await this.#ending.drained();
    await this.#expiring?.[Symbol.asyncDispose]();
    const { ledger, clock } = this.#options;
    if (this.pinTable.due.size > 0) ledger?.seen(clock.bootId, clock.bootMs());
  }

  #add(request: PinRequest, nodes: readonly NodeId[], isWhole: boolean): AddedPin {
    const refusal = this.#limits.refusalOf(request);
    if (refusal !== null) return this.#refuse(request.owner, nodes, refusal);
    const { kind, owner, name, ttlMs } = request;
    const idleMs = kind === "retain" ? (request.idleMs ?? this.#options.retainIdleMs()) : null;
    const priority = request.priority === null ? null : clampPriority(request.priority);
    const deadlineBootMs = this.#deadline(kind === "lease" ? this.#leaseTtl(ttlMs) : ttlMs);
    const purges = kind === "lease" && request.purges === true;
    const times = { idleMs, deadlineBootMs, createdWallMs: null };
    const terms = { kind, owner, name, priority, purges, ...times };
    const pin = this.pinTable.begin(terms);
    pin.isWhole = isWhole;
    const added = this.#join(pin, nodes);
    if (pin.nodes.size === 0) {
      this.pinTable.drop(pin);
      return { ...added, id: null };
    }
    this.pinTable.schedule(pin);
    this.#timer.arm();
    return added;
  }

  #join(pin: Pin, nodes: readonly NodeId[]): AddedPin {
    const budgetCheck = pin.kind === "retain" ? () => null : this.#budget.budgetCheck(pin);
    let isAnyRejected = false;
    const results = nodes.map((node): BlockResult => {
      if (this.pinTable.index.mayHave(pin, node) && pin.nodes.has(node)) return ALREADY;
      const reason = this.#limits.limitOf(pin) ?? budgetCheck(node) ?? this.#pin(pin, node);
      if (reason === null) return DONE;
      isAnyRejected = true;
      return { outcome: "rejected", reason };
    });
    return { id: pin.id, results, figures: isAnyRejected ? this.figures(pin.owner) : null };
  }

  #pin(pin: Pin, node: NodeId): string | null {
    const part = this.pinTable.join(pin, node);
    if (part === null) return "limit: the block has the maximum number of pins";
    this.pinTable.records.changePart(pin, part);
    return null;
  }

  #refuse(owner: string, nodes: readonly NodeId[], reason: string): AddedPin {
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
      table,
      clock,
      purge: onLeaseExpired,
      onReported: ({ info }, purged, failure) => {
        if (failure !== null) this.#pinEvents.purgeFailed(info, failure);
        this.#pinEvents.expired(info, purged);
      },
      onPurged: ({ info: { id } }) => this.pinTable.records.forget(id),
    });
  }

  #expire(pin: Pin): void {
    this.#expired++;
    this.#ending.end(pin, (ended) => {
      if (pin.purges && this.#expiring !== null) {
        this.#expiring.add(ended);
        return;
      }
      this.pinTable.records.forget(pin.id);
      this.#pinEvents.expired(ended.info, 0);
    });
  }
}

/** The public methods of `HoldRegistry`. */
export type Holds = Pick<HoldRegistry, keyof HoldRegistry>;

function clampPriority(priority: number): number {
  return Math.min(PRIORITY_MAX, Math.max(0, priority));
}

interface SliceResult {
  readonly results: readonly BlockResult[];
}

/**
 * Processes nodes in slices, one per turn of the event loop. Processes the first slice before it
 * returns. A node that is removed before its turn is `missing`. Merges the results per node; takes
 * all other fields from the last slice with a rejection, or from the last slice if nothing was
 * rejected.
 */
async function inSlices<Result extends SliceResult>(
  table: BlockTable,
  nodes: readonly NodeId[],
  work: (nodes: readonly NodeId[]) => Result,
): Promise<Result> {
  const born = nodes.map((node) => table.generationOf(node));
  const results: BlockResult[] = [];
  let answer: Result | null = null;
  for (let from = 0; from < nodes.length; from += PIN_BLOCKS_PER_CALL) {
    if (from > 0) await yieldToLoop();
    const slice = nodes.slice(from, from + PIN_BLOCKS_PER_CALL);
    const isThere = slice.map((node, at) => table.isLive(node, born[from + at]));
    const done = work(slice.filter((_, at) => isThere[at]));
    let next = 0;
    for (const is of isThere) results.push(is ? done.results[next++] : MISSING);
    if (answer === null || !anyRejected(answer) || anyRejected(done)) answer = done;
  }
  return { ...answer!, results };
}

function anyRejected({ results }: SliceResult): boolean {
  return results.some(({ outcome }) => outcome === "rejected");
}

/** Maximum number of nodes visited per call. Takes some microseconds. */
const STEPS_MAX = 1_000;
const SUBTREE_HOLDERS_MAX = 16;

/**
 * Lists the owners, leases or sessions that protect a single node. Implemented by pins and by
 * sessions.
 */
interface HolderSource {
  holdersOf(node: NodeId): readonly HeldBy[];
}

/**
 * Returns which owners, leases and sessions protect the node or any of its descendants, without
 * duplicates, at most `max`. Descends only into pinned or locked nodes, and visits at most 1,000.
 * At that limit it returns those found so far, possibly none.
 */
export function subtreeHolders(
  table: BlockTable,
  node: NodeId,
  sources: readonly HolderSource[],
  max = SUBTREE_HOLDERS_MAX,
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
