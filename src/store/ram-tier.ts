import { type Clock, NO_NODE, type NodeId, yieldToLoop } from "../core/index.ts";
import { ANY_ZONE, type BlockTable, NO_SLOT, type SlotAllocator, Tier } from "./blocks/index.ts";
import { type Cause, type Departures, EVICTED } from "./departures.ts";
import type { Sessions } from "./pins/index.ts";
import type { VictimOrder } from "./policy/victim-order.ts";
import type { SsdTier } from "./ssd/ssd-tier.ts";

/** Maximum number of extents examined when a size class needs room that another class occupies. */
const EXTENTS_TRIED = 4;
/** Maximum number of blocks examined to find one of a given size. */
const NODES_LOOKED_AT = 256;
/**
 * Maximum number of tree paths that one request moves to the newest end of the table's recency
 * order. Further paths keep their positions.
 */
const PATHS_TOUCHED = 64;
/**
 * Maximum number of pins or leases ended to make room for one block. Several may protect the same
 * blocks.
 */
const PIN_EVICTIONS_MAX = 16;
/** Maximum number of blocks sent to SSD for one writer that needs room in RAM. */
const SENT_DOWN_AT_ONCE = 16;
/** Maximum number of blocks dropped at once to empty an extent: about a millisecond of work. */
const DROPS_AT_ONCE = 1024;

/** The tier below RAM (SSD). RAM offers blocks to it before dropping them. */
type TierBelow = Pick<SsdTier, "leaving" | "catchUp" | "leavingBytes" | "used">;

interface RamTierParts {
  readonly table: BlockTable;
  readonly slots: SlotAllocator;
  readonly order: VictimOrder;
  readonly stats: StoreStats;
  /** Unix time in seconds. Recorded in the block table as the time of a block's latest use. */
  nowSeconds(): number;
  readonly departures: Departures;
  /**
   * Ends one pin or lease and logs `why`. Called when every block is protected. Returns false if
   * there is none to end.
   */
  evictPins(why: string): boolean;
}

/**
 * Manages room in RAM: reserves slots, and frees slots by dropping the blocks that the eviction
 * order names. Dropping a block takes a microsecond and no I/O, so a writer that finds no free slot
 * drops a block immediately instead of waiting.
 */
export class RamTier {
  readonly #parts: RamTierParts;
  #below: TierBelow | null = null;
  /**
   * Blocks read from SSD for a request that is not answered yet. They are not in the eviction
   * order.
   */
  readonly #fresh = new Set<NodeId>();
  /**
   * Blocks that are dropped from RAM as soon as the request that had them read or fetched releases
   * them.
   */
  readonly #passing = new Set<NodeId>();

  constructor(parts: RamTierParts) {
    this.#parts = parts;
  }

  /** Sets the tier (SSD) to which blocks are offered before they leave RAM. */
  setBelow(below: TierBelow): void {
    this.#below = below;
  }

  /** Bytes of RAM that become free without further drops, when writes to SSD in progress end. */
  get leavingBytes(): number {
    return this.#below?.leavingBytes ?? 0;
  }

  /**
   * Reserves a slot of at least `bytes`. Returns NO_SLOT if no block may be dropped to make room.
   * `mayEvictPins`: whether pins and leases may be ended. `zone`: preferred allocator zone; a slot
   * freed by a drop keeps the zone of the dropped block.
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
    // Another size class may occupy the memory: empty one of its extents.
    if (this.#emptyExtentFor(bytes)) return slots.reserve(bytes);
    // If no extent can be emptied, drop the oldest block of the right size, even if blocks of other
    // sizes are older.
    return this.#dropOfSize(slots.slotBytesFor(bytes)) ? slots.reserve(bytes) : NO_SLOT;
  }

  #victim(bytes: number, mayEvictPins: boolean): NodeId {
    const { order } = this.#parts;
    let pinEvictions = 0;
    let sent = 0;
    while (true) {
      const victim = order.victim();
      if (victim === NO_NODE) {
        // Blocks being written to SSD are protected only briefly: end no pins for them.
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
   * Returns whether the block may be dropped now. If SSD wants the block, sends it there and
   * returns false.
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

  /**
   * Drops the blocks of an extent. Returns false if the extent has more blocks than one call may
   * drop; the next writer continues.
   */
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
   * Drops the block that the eviction order names next, or sends it to SSD. Returns `none` if every
   * block is protected or SSD is busy.
   */
  dropOne(): "dropped" | "sent" | "none" {
    const victim = this.#parts.order.victim();
    if (victim === NO_NODE) return "none";
    const answer = this.#below?.leaving(victim) ?? "go";
    if (answer === "go") this.drop(victim);
    return answer === "go" ? "dropped" : answer === "sent" ? "sent" : "none";
  }

  /**
   * Removes an unprotected block from RAM and frees its slot. If this was its last copy, the node
   * is removed from the table.
   */
  drop(node: NodeId, cause: Cause = EVICTED): void {
    const { table, slots, stats } = this.#parts;
    stats.evictedBlocks++;
    stats.evictedBytes += table.bytesOf(node);
    slots.release(this.#leave(node, cause));
  }

  /**
   * Removes a damaged block from RAM, even if it is protected. Its slot is freed when its readers
   * have released it. If this was its last copy, the node is removed from the table.
   */
  condemn(node: NodeId): void {
    this.#parts.slots.condemn(this.#leave(node, { reason: "quarantined", by: null }));
  }

  /** Marks the block in the table as not in RAM. Returns its slot, which the caller frees. */
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
   * Reports that a block was read from SSD into RAM. The caller reports its use with `touch` when
   * the request is answered.
   */
  promoted(node: NodeId): void {
    this.#fresh.add(node);
  }

  /**
   * Marks a block that was read or fetched: it is dropped from RAM when its last user releases it.
   */
  passes(node: NodeId): void {
    this.#passing.add(node);
  }

  /**
   * Reports that a user has released the block. Drops the block if `passes` marked it and nothing
   * protects it.
   */
  letGo(node: NodeId): void {
    const { table } = this.#parts;
    if (!this.#passing.has(node) || table.isProtected(node, Tier.ram)) return;
    this.#passing.delete(node);
    // Keep a block with stored descendants: they could not be found without it.
    if (table.isLeafOn(node, Tier.ram)) this.drop(node);
  }

  /**
   * Counts a use of each block and moves it to the newest end of the eviction order. `nodes` are
   * the blocks of a request from first to last, usually each the parent of the next; the first
   * becomes the newest.
   */
  touch(nodes: readonly NodeId[], event: "stored" | "used"): void {
    const { table, order, nowSeconds } = this.#parts;
    if (event === "stored") order.stored(nodes);
    else this.#used(nodes);
    const now = nowSeconds();
    let below: NodeId = NO_NODE;
    let paths = 0;
    for (let i = nodes.length - 1; i >= 0; i--) {
      const node = nodes[i];
      const before = table.lastUsedOf(node);
      table.markUsed(node, now);
      // Do not copy a block to SSD if it leaves RAM after this request anyway.
      const isHere = event === "used" && !this.#passing.has(node);
      if (isHere) this.#below?.used(node, before, now);
      // Touching a block's path includes its ancestors: one walk covers the whole chain.
      const touched = below !== NO_NODE && table.parentOf(below) === node;
      below = node;
      if (!touched && paths++ < PATHS_TOUCHED) table.touchPath(node);
    }
  }

  /**
   * Adds the blocks that were taken over from a previous process to the eviction order, path by
   * path. The path whose last block has been unused longest comes first.
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
   * Adds a block that was read from SSD to the eviction order. Call when no request waits for it
   * any longer.
   */
  settleFresh(node: NodeId): void {
    if (this.#fresh.delete(node)) this.#parts.order.stored([node]);
  }

  /**
   * Reports the blocks to the eviction order: those read from SSD for this request as stored, the
   * others as used. Leaves out blocks that are not in RAM.
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

/** Shares of the arena in use, 0 to 1. Eviction starts above `high` and stops at `low`. */
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

/** Blocks dropped before the event loop is yielded to: a fraction of a millisecond of work. */
const DROPS_A_SLICE = 128;

/**
 * Frees room in RAM in the background. Checks the arena every `intervalMs`, and immediately when a
 * writer finds it above the high-water mark.
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

  /** Reports that the arena does not grow further, whether or not it is complete. */
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
   * Returns whether usage exceeds this share of the arena. While the arena grows, the share is
   * taken of its final size, so that growth causes no drops.
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

/**
 * Counters of the store since the agent started. Written by the store, read by metrics and status.
 */
export class StoreStats {
  matchBlocks = 0;
  acquireHits = 0;
  /** Acquired blocks that were read from SSD. Also counted in `acquireHits`. */
  acquireHitsSsd = 0;
  /** Acquired blocks that were fetched from peers. Also counted in `acquireHits`. */
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
   * Blocks and bytes received from peers that passed verification, and blocks that failed it and
   * were discarded.
   */
  pulledBlocks = 0;
  pulledBytes = 0;
  peerCorruptBlocks = 0;
  /** Blocks sent to peers. */
  lentBlocks = 0;
  lentBytes = 0;
}
