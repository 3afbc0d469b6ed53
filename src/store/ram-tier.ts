import { type Clock, NO_NODE, type NodeId, yieldToLoop } from "../core/index.ts";
import { ANY_ZONE, type BlockTable, NO_SLOT, type SlotAllocator, Tier } from "./blocks/index.ts";
import { type Cause, type Departures, EVICTED } from "./departures.ts";
import type { Sessions } from "./pins/index.ts";
import type { VictimOrder } from "./policy/victim-order.ts";
import type { SsdTier } from "./ssd/ssd-tier.ts";

/** Extents examined when a size class needs room that another class occupies. */
const EXTENTS_TRIED = 4;
/** Blocks examined to find one of the right size. */
const NODES_LOOKED_AT = 256;
/** Paths moved to the newest end of the order by one request. Further paths keep their place. */
const PATHS_TOUCHED = 64;
/** Pins or leases ended for one block. Several may protect the same blocks. */
const PIN_EVICTIONS_MAX = 16;
/** Blocks sent to the tier below for one writer that needs room. */
const SENT_DOWN_AT_ONCE = 16;
/** Blocks dropped at once to empty an extent: about a millisecond of work. */
const DROPS_AT_ONCE = 1024;

/** The tier below RAM, to which RAM offers blocks before it drops them. */
type TierBelow = Pick<SsdTier, "leaving" | "catchUp" | "leavingBytes" | "used">;

interface RamTierParts {
  readonly table: BlockTable;
  readonly slots: SlotAllocator;
  readonly order: VictimOrder;
  readonly stats: StoreStats;
  /** Unix time in seconds, recorded in the table as the time of a block's latest use. */
  nowSeconds(): number;
  readonly departures: Departures;
  /**
   * Called when every block is protected. Ends one pin or lease and logs `why`; false if there is
   * none to end.
   */
  evictPins(why: string): boolean;
}

/**
 * Manages room in RAM: reserves slots and frees them by dropping the order's victims. Dropping a
 * block takes a microsecond and no I/O. A writer that finds no free slot therefore takes the next
 * victim's immediately and never waits.
 */
export class RamTier {
  readonly #parts: RamTierParts;
  #below: TierBelow | null = null;
  /** Blocks read from the tier below, until the request that caused the read is answered. */
  readonly #fresh = new Set<NodeId>();
  /** Blocks that leave RAM when the request that caused the read or fetch releases them. */
  readonly #passing = new Set<NodeId>();

  constructor(parts: RamTierParts) {
    this.#parts = parts;
  }

  /** Sets the tier to which blocks are offered before they leave RAM. */
  setBelow(below: TierBelow): void {
    this.#below = below;
  }

  /** Bytes in use that become free without further drops. */
  get leavingBytes(): number {
    return this.#below?.leavingBytes ?? 0;
  }

  /**
   * Reserves a slot of at least `bytes`; NO_SLOT if no block may be dropped for it. `mayEvictPins`:
   * pins and leases may be ended for it. `zone`: preferred allocator zone; a slot freed by a drop
   * keeps the zone of the dropped block.
   */
  takeSlot(bytes: number, mayEvictPins = true, zone: number = ANY_ZONE): number {
    const slot = this.#parts.slots.reserve(bytes, zone);
    return slot === NO_SLOT ? this.#reclaim(bytes, mayEvictPins) : slot;
  }

  #reclaim(bytes: number, mayEvictPins: boolean): number {
    const { slots, table } = this.#parts;
    const victim = this.#victim(bytes, mayEvictPins);
    if (victim === NO_NODE) return NO_SLOT;
    if (slots.slotBytesOf(table.slotOf(victim)) === slots.slotBytesFor(bytes)) {
      this.drop(victim);
      return slots.reserve(bytes);
    }
    // The memory belongs to another size class: free a whole extent of that class.
    if (this.#emptyExtentFor(bytes)) return slots.reserve(bytes);
    // If no extent can be freed, drop the oldest block of the right size, though other blocks are
    // older.
    return this.#dropOfSize(slots.slotBytesFor(bytes)) ? slots.reserve(bytes) : NO_SLOT;
  }

  #victim(bytes: number, mayEvictPins: boolean): NodeId {
    const { order } = this.#parts;
    let pinEvictions = 0;
    let sent = 0;
    while (true) {
      const victim = order.victim();
      if (victim === NO_NODE) {
        // Blocks being written are locked only briefly: do not end pins for that.
        if (this.#below?.catchUp() || pinEvictions++ === PIN_EVICTIONS_MAX || !mayEvictPins)
          return NO_NODE;
        if (!this.#parts.evictPins(this.#shortage(bytes))) return NO_NODE;
      } else if (this.#below === null || this.#below.leaving(victim) !== "sent") {
        return victim;
      } else if (sent++ === SENT_DOWN_AT_ONCE) {
        return NO_NODE;
      }
    }
  }

  #shortage(bytes: number): string {
    const { slots, table } = this.#parts;
    const blocks = table.residentBlocks(Tier.ram);
    return (
      `all ${blocks} blocks in RAM are protected, ` +
      `${slots.usedBytes} of ${slots.readyBytes} bytes ` +
      `are in use, ${bytes} more are needed`
    );
  }

  /**
   * Whether the block may be dropped now. Sends the block to the tier below if that tier wants it.
   */
  #mayGo(node: NodeId): boolean {
    const { table } = this.#parts;
    if (table.isProtected(node, Tier.ram)) return false;
    return this.#below === null || this.#below.leaving(node) !== "sent";
  }

  #dropOfSize(slotBytes: number): boolean {
    const { slots, table } = this.#parts;
    let node = table.oldest(Tier.ram);
    for (let looked = 0; node !== NO_NODE && looked < NODES_LOOKED_AT; looked++) {
      const fits = slots.slotBytesOf(table.slotOf(node)) === slotBytes;
      const next = table.newerThan(node, Tier.ram);
      if (fits && table.isLeafOn(node, Tier.ram) && this.#mayGo(node)) {
        this.drop(node);
        return true;
      }
      node = next;
    }
    return false;
  }

  #emptyExtentFor(bytes: number): boolean {
    const { slots } = this.#parts;
    let extent = slots.cheapestExtent(bytes);
    for (let tried = 0; tried < EXTENTS_TRIED && extent >= 0; tried++) {
      if (this.#canEmpty(extent)) return this.#empty(extent);
      extent = slots.cheapestExtent(bytes, extent);
    }
    return false;
  }

  #canEmpty(extent: number): boolean {
    const { slots } = this.#parts;
    let slot = slots.nextUsedSlot(extent, NO_SLOT);
    let all = true;
    for (; slot !== NO_SLOT; slot = slots.nextUsedSlot(extent, slot)) {
      if (!this.#mayGo(slots.nodeOf(slot))) all = false;
    }
    return all;
  }

  /** False if the extent has more blocks than one call may drop. The next writer drops the rest. */
  #empty(extent: number): boolean {
    const { slots } = this.#parts;
    let slot = NO_SLOT;
    for (let dropped = 0; dropped < DROPS_AT_ONCE; dropped++) {
      slot = slots.nextUsedSlot(extent, slot);
      if (slot === NO_SLOT) return true;
      this.drop(slots.nodeOf(slot));
    }
    return false;
  }

  /**
   * Drops the order's next victim, or sends it to the tier below. `none`: every block is protected,
   * or the tier below is busy.
   */
  dropOne(): "dropped" | "sent" | "none" {
    const victim = this.#parts.order.victim();
    if (victim === NO_NODE) return "none";
    const answer = this.#below?.leaving(victim) ?? "go";
    if (answer === "go") this.drop(victim);
    return answer === "go" ? "dropped" : answer === "sent" ? "sent" : "none";
  }

  /** Removes an unprotected block from RAM and frees its slot. May remove the node. */
  drop(node: NodeId, cause: Cause = EVICTED): void {
    const { table, slots, stats } = this.#parts;
    stats.evictedBlocks++;
    stats.evictedBytes += table.bytesOf(node);
    slots.release(this.#leave(node, cause));
  }

  /**
   * Removes a damaged block from RAM, protected or not. Its slot is freed when its readers have
   * released it. May remove the node.
   */
  condemn(node: NodeId): void {
    this.#parts.slots.condemn(this.#leave(node, { reason: "quarantined", by: null }));
  }

  /** Removes the block from the table's RAM tier. Returns its slot, which the caller frees. */
  #leave(node: NodeId, cause: Cause): number {
    const { table, order, departures } = this.#parts;
    const slot = table.slotOf(node);
    if (!this.#fresh.delete(node)) order.removed(node);
    this.#passing.delete(node);
    if (!table.isResident(node, Tier.ssd)) departures.note(table, node, "ram", cause);
    table.removeResidency(node, Tier.ram);
    return slot;
  }

  /**
   * Call when a block has been read from the tier below. `touch` follows when the request is
   * answered.
   */
  promoted(node: NodeId): void {
    this.#fresh.add(node);
  }

  /** Marks a block that was read or fetched: it leaves RAM when its last user releases it. */
  passes(node: NodeId): void {
    this.#passing.add(node);
  }

  /**
   * Call when a user releases the block. Drops it if it is marked by `passes`. May remove the node.
   */
  letGo(node: NodeId): void {
    const { table } = this.#parts;
    if (!this.#passing.has(node) || table.isProtected(node, Tier.ram)) return;
    this.#passing.delete(node);
    // A stored descendant could not be found without this block.
    if (table.isLeafOn(node, Tier.ram)) this.drop(node);
  }

  /**
   * Counts a use of each node and moves it to the newest end of the order, the first node newest.
   * `nodes` are a request's blocks from first to last; usually each is the parent of the next.
   */
  touch(nodes: readonly NodeId[], event: "stored" | "used"): void {
    const { table, order, nowSeconds } = this.#parts;
    if (event === "stored") order.stored(nodes);
    else this.#used(nodes);
    const now = nowSeconds();
    let below: NodeId = NO_NODE;
    let paths = 0;
    for (let i = nodes.length - 1; i >= 0; i--) {
      const node = nodes[i]!;
      const before = table.lastUsedOf(node);
      table.markUsed(node, now);
      // A block that leaves RAM after this request is not worth a copy on the tier below.
      const isHere = event === "used" && !this.#passing.has(node);
      if (isHere) this.#below?.used(node, before, now);
      // Touching a block touches its ancestors: one walk covers the whole chain.
      const touched = below !== NO_NODE && table.parentOf(below) === node;
      below = node;
      if (!touched && paths++ < PATHS_TOUCHED) table.touchPath(node);
    }
  }

  /**
   * Adds blocks adopted with the memory of a previous process to the order, path by path, the path
   * whose last block was used longest ago first.
   */
  adopt(nodes: readonly NodeId[]): void {
    const { table, order } = this.#parts;
    const waiting = new Set(nodes);
    const parents = new Set(nodes.map((node) => table.parentOf(node)));
    const leaves = nodes.filter((node) => !parents.has(node));
    leaves.sort((a, b) => table.lastUsedOf(a) - table.lastUsedOf(b));
    for (const leaf of leaves) {
      const path: NodeId[] = [];
      for (let node = leaf; waiting.delete(node); node = table.parentOf(node)) path.push(node);
      order.stored(path.reverse());
    }
  }

  /**
   * Call when no request waits any longer for a block read from below: the block enters the order
   * alone.
   */
  settleFresh(node: NodeId): void {
    if (this.#fresh.delete(node)) this.#parts.order.stored([node]);
  }

  /**
   * Reports blocks read for this request to the order as stored, and the others as used. Blocks
   * that are not in RAM are left out.
   */
  #used(nodes: readonly NodeId[]): void {
    const { order, table } = this.#parts;
    const here =
      this.#below === null ? nodes : nodes.filter((node) => table.isResident(node, Tier.ram));
    if (this.#fresh.size === 0) {
      order.used(here);
      return;
    }
    const came = here.filter((node) => this.#fresh.has(node));
    order.used(here.filter((node) => !this.#fresh.has(node)));
    order.stored(came);
    for (const node of came) this.#fresh.delete(node);
  }
}

/** Shares of the arena in use: eviction starts above `high` and stops at `low`. */
export interface WaterMarks {
  readonly high: number;
  readonly low: number;
}

interface EvictorParts {
  readonly ram: RamTier;
  readonly slots: SlotAllocator;
  readonly stats: StoreStats;
  readonly clock: Clock;
  readonly sessions: Sessions;
}

/** Blocks dropped before the loop yields: a fraction of a millisecond of work. */
const DROPS_A_SLICE = 128;

/**
 * Frees room in the background. Checks the arena every `intervalMs`, and immediately when woken by
 * a writer that found it above the high-water mark.
 */
export class Evictor implements AsyncDisposable {
  readonly #parts: EvictorParts;
  #marks: WaterMarks;
  #timer: Disposable | null = null;
  #walk: Promise<void> | null = null;
  #stopped = false;
  #growthOver = false;

  constructor(parts: EvictorParts, marks: WaterMarks) {
    this.#parts = parts;
    this.#marks = marks;
  }

  start(intervalMs: number): void {
    this.#timer?.[Symbol.dispose]();
    this.#timer = this.#parts.clock.every(intervalMs, () => {
      this.#parts.sessions.endIdle();
      this.wake();
    });
  }

  setMarks(marks: WaterMarks): void {
    this.#marks = marks;
    this.wake();
  }

  /** Call when the arena does not grow further, complete or not. */
  growthIsOver(): void {
    this.#growthOver = true;
  }

  /** Starts an eviction run if the arena is above the high-water mark and no run is active. */
  wake(): void {
    if (this.#walk !== null || this.#stopped || !this.#above(this.#marks.high)) return;
    this.#parts.stats.evictionRuns++;
    this.#walk = this.#run().finally(() => {
      this.#walk = null;
    });
  }

  /**
   * Compares usage with the final arena size while the arena grows, so that growth does not cause
   * drops.
   */
  #above(share: number): boolean {
    const { usedBytes, readyBytes, arenaBytes } = this.#parts.slots;
    const grown = this.#growthOver || readyBytes === arenaBytes;
    return grown && usedBytes - this.#parts.ram.leavingBytes > share * readyBytes;
  }

  async #run(): Promise<void> {
    while (!this.#stopped) {
      for (let i = 0; i < DROPS_A_SLICE; i++) {
        if (!this.#above(this.#marks.low) || this.#parts.ram.dropOne() === "none") return;
      }
      await yieldToLoop();
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stopped = true;
    this.#timer?.[Symbol.dispose]();
    await this.#walk;
  }
}

/** Store counters since the start. Read by metrics and status; written only by the store. */
export class StoreStats {
  matchBlocks = 0;
  acquireHits = 0;
  /** Acquired blocks that were read from SSD. Included in `acquireHits`. */
  acquireHitsSsd = 0;
  /** Acquired blocks that were fetched from peers. Included in `acquireHits`. */
  acquireHitsPeer = 0;
  acquireMisses = 0;
  reservedBlocks = 0;
  presentBlocks = 0;
  fullBlocks = 0;
  committedBlocks = 0;
  committedBytes = 0;
  abortedBlocks = 0;
  corruptBlocks = 0;
  evictedBlocks = 0;
  evictedBytes = 0;
  evictionRuns = 0;
  quarantinedSlots = 0;
  /**
   * Blocks received from peers that passed verification, and those that failed it and were
   * discarded.
   */
  pulledBlocks = 0;
  pulledBytes = 0;
  peerCorruptBlocks = 0;
  /** Blocks served to peers. */
  lentBlocks = 0;
  lentBytes = 0;
}
