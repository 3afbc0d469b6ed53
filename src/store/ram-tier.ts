import { type Clock, NO_NODE, type NodeId, yieldToLoop } from "../core/index.ts";
import { ANY_ZONE, type BlockTable, NO_SLOT, type SlotAllocator, Tier } from "./blocks/index.ts";
import { type Cause, type Departures, EVICTED } from "./departures.ts";
import type { Sessions } from "./pins/index.ts";
import type { VictimOrder } from "./policy/victim-order.ts";

/** Extents looked at when a size class needs room that another class has. */
const EXTENTS_TRIED = 4;
/** Blocks looked at for one of the right size. */
const NODES_LOOKED_AT = 256;
/** Paths made the newest by one request; what a request names beyond them keeps its place. */
const PATHS_TOUCHED = 64;
/** Protections ended for one block: each may have been one of several on the same blocks. */
const RELIEFS = 16;
/** Blocks sent to the tier below for one that wants room. */
const SENT_DOWN_AT_ONCE = 16;
/** Blocks dropped at once to empty an extent: about a millisecond. */
const DROPS_AT_ONCE = 1024;

/** What the tier below says of a block that RAM would like to be rid of. */
export interface TierBelow {
  /**
   * `go`: it has the block, or does not want it. `sent`: the block is on its way down, locked until
   * it is there. `busy`: it wants the block and cannot take it now.
   */
  leaving(node: NodeId): "go" | "sent" | "busy";
  /**
   * RAM has no room and nothing to give up: takes of what may not leave RAM before it is below.
   * Whether blocks are on their way down, so that room is about to come.
   */
  catchUp(): boolean;
  /** Bytes of blocks that leave RAM as soon as they are down. */
  readonly leavingBytes: number;
  /** A request used the block at `now`, before that at `before`; seconds. */
  used(node: NodeId, before: number, now: number): void;
}

export interface RamTierParts {
  readonly table: BlockTable;
  readonly slots: SlotAllocator;
  readonly order: VictimOrder;
  readonly stats: StoreStats;
  /** Seconds; goes into the table as the time of a block's latest use. */
  nowSeconds(): number;
  readonly departures: Departures;
  /**
   * Called when everything is protected: ends one such protection, for what `why` says; false where
   * none can be.
   */
  relieve(why: string): boolean;
}

/**
 * Room in RAM: finds slots, and makes them by dropping what the order gives up. Dropping a block
 * from RAM takes a microsecond and no I/O, so a writer that finds no free slot takes the next
 * victim's at once; it never waits for one.
 */
export class RamTier {
  readonly #parts: RamTierParts;
  #below: TierBelow | null = null;
  /** Brought up from below, and not yet named by the request that wanted them. */
  readonly #fresh = new Set<NodeId>();
  /** Those that are here for the request that wanted them, and for nothing behind it. */
  readonly #passing = new Set<NodeId>();

  constructor(parts: RamTierParts) {
    this.#parts = parts;
  }

  /** From now on blocks that leave are offered to this tier first. */
  setBelow(below: TierBelow): void {
    this.#below = below;
  }

  /** Bytes in use that will be free without another drop. */
  get leavingBytes(): number {
    return this.#below?.leavingBytes ?? 0;
  }

  /**
   * A reserved slot for so many bytes, or NO_SLOT where nothing may be dropped for it.
   * `mayRelieve`: whether what somebody keeps may be let go of for it. `zone`: where it should lie;
   * what is dropped for it lies where it lay.
   */
  takeSlot(bytes: number, mayRelieve = true, zone: number = ANY_ZONE): number {
    const slot = this.#parts.slots.reserve(bytes, zone);
    return slot === NO_SLOT ? this.#reclaim(bytes, mayRelieve) : slot;
  }

  #reclaim(bytes: number, mayRelieve: boolean): number {
    const { slots, table } = this.#parts;
    const victim = this.#victim(bytes, mayRelieve);
    if (victim === NO_NODE) return NO_SLOT;
    if (slots.slotBytesOf(table.slotOf(victim)) === slots.slotBytesFor(bytes)) {
      this.drop(victim);
      return slots.reserve(bytes);
    }
    // The memory belongs to blocks of another size: an extent of theirs must go as a whole.
    if (this.#emptyExtentFor(bytes)) return slots.reserve(bytes);
    // None can go: then the oldest of the right size does, though younger than others.
    return this.#dropOfSize(slots.slotBytesFor(bytes)) ? slots.reserve(bytes) : NO_SLOT;
  }

  #victim(bytes: number, mayRelieve: boolean): NodeId {
    const { order } = this.#parts;
    let reliefs = 0;
    let sent = 0;
    while (true) {
      const victim = order.victim();
      if (victim === NO_NODE) {
        // What is being written is locked for a moment only: no reason to end anything else.
        if (this.#below?.catchUp() || reliefs++ === RELIEFS || !mayRelieve) return NO_NODE;
        if (!this.#parts.relieve(this.#shortage(bytes))) return NO_NODE;
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
      `all ${blocks} blocks in RAM are held, ${slots.usedBytes} of ${slots.readyBytes} bytes ` +
      `are in use, ${bytes} more are needed`
    );
  }

  /** Whether the block may be dropped now; if the tier below wants it, it is sent there. */
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

  /** False where it has so many blocks that the rest is left to the next writer. */
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
   * Drops the order's next victim, or sends it down. `none`: everything is protected, or the tier
   * below has to catch up first.
   */
  dropOne(): "dropped" | "sent" | "none" {
    const victim = this.#parts.order.victim();
    if (victim === NO_NODE) return "none";
    const answer = this.#below?.leaving(victim) ?? "go";
    if (answer === "go") this.drop(victim);
    return answer === "go" ? "dropped" : answer === "sent" ? "sent" : "none";
  }

  /** Takes an unprotected block out of RAM; its slot is free again. The node may vanish. */
  drop(node: NodeId, cause: Cause = EVICTED): void {
    const { table, slots, stats } = this.#parts;
    stats.evictedBlocks++;
    stats.evictedBytes += table.bytesOf(node);
    slots.release(this.#leave(node, cause));
  }

  /**
   * Takes a damaged block out of RAM, protected or not. Its slot is free again when its readers
   * have released it. The node may vanish.
   */
  condemn(node: NodeId): void {
    this.#parts.slots.condemn(this.#leave(node, { reason: "quarantined", by: null }));
  }

  /** The table forgets that the block is in RAM; its slot, which is the caller's to free. */
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
   * A block has come up from below; `touch` follows when the request that wanted it is answered.
   */
  promoted(node: NodeId): void {
    this.#fresh.add(node);
  }

  /** A block that came up, or from another host, leaves as soon as nobody holds it any more. */
  passes(node: NodeId): void {
    this.#passing.add(node);
  }

  /** Somebody held the block until now: it leaves where it was only passing. It may vanish. */
  letGo(node: NodeId): void {
    const { table } = this.#parts;
    if (!this.#passing.has(node) || table.isProtected(node, Tier.ram)) return;
    this.#passing.delete(node);
    // What was stored behind it could not be found without it.
    if (table.isLeafOn(node, Tier.ram)) this.drop(node);
  }

  /**
   * Counts a use of each node and makes them the newest, the first of `nodes` newest of all. They
   * are a request's blocks from first to last: as a rule each is the parent of the next.
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
      // What only passes is not worth a copy below.
      const isHere = event === "used" && !this.#passing.has(node);
      if (isHere) this.#below?.used(node, before, now);
      // Touching a block touches its ancestors: one walk serves the whole chain.
      const touched = below !== NO_NODE && table.parentOf(below) === node;
      below = node;
      if (!touched && paths++ < PATHS_TOUCHED) table.touchPath(node);
    }
  }

  /**
   * All of `nodes` came with the memory of an earlier process: tells the order of them, path by
   * path, those whose last block was used longest ago first.
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

  /** Nobody waits any more for a block that came up: the order hears of it alone. */
  settleFresh(node: NodeId): void {
    if (this.#fresh.delete(node)) this.#parts.order.stored([node]);
  }

  /**
   * Those that came up for this request are stored as far as the order knows; of those that stayed
   * below it hears nothing.
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

/** Shares of the arena: above `high` the walk begins, at `low` it stops. */
export interface WaterMarks {
  readonly high: number;
  readonly low: number;
}

/** Blocks dropped before other work gets its turn: a fraction of a millisecond. */
const DROPS_A_SLICE = 128;

/**
 * Keeps room free in the background: looks at least every `intervalMs`, and at once when woken by a
 * writer that found the arena above its high-water mark.
 */
export class Evictor implements AsyncDisposable {
  readonly #ram: RamTier;
  readonly #slots: SlotAllocator;
  readonly #stats: StoreStats;
  readonly #clock: Clock;
  readonly #sessions: Sessions;
  #marks: WaterMarks;
  #timer: Disposable | null = null;
  #walk: Promise<void> | null = null;
  #stopped = false;
  #growthOver = false;

  constructor(
    parts: {
      ram: RamTier;
      slots: SlotAllocator;
      stats: StoreStats;
      clock: Clock;
      sessions: Sessions;
    },
    marks: WaterMarks,
  ) {
    this.#ram = parts.ram;
    this.#slots = parts.slots;
    this.#stats = parts.stats;
    this.#clock = parts.clock;
    this.#sessions = parts.sessions;
    this.#marks = marks;
  }

  start(intervalMs: number): void {
    this.#timer?.[Symbol.dispose]();
    this.#timer = this.#clock.every(intervalMs, () => {
      this.#sessions.endIdle();
      this.wake();
    });
  }

  setMarks(marks: WaterMarks): void {
    this.#marks = marks;
    this.wake();
  }

  /** No more memory will come: what is ready is all there is. */
  growthIsOver(): void {
    this.#growthOver = true;
  }

  /** Begins a walk where the arena is above the mark and none is under way. */
  wake(): void {
    if (this.#walk !== null || this.#stopped || !this.#above(this.#marks.high)) return;
    this.#stats.evictionRuns++;
    this.#walk = this.#run().finally(() => {
      this.#walk = null;
    });
  }

  /** Memory that is still to come is no reason to drop anything. */
  #above(share: number): boolean {
    const { usedBytes, readyBytes, arenaBytes } = this.#slots;
    const grown = this.#growthOver || readyBytes === arenaBytes;
    return grown && usedBytes - this.#ram.leavingBytes > share * readyBytes;
  }

  async #run(): Promise<void> {
    while (!this.#stopped) {
      for (let i = 0; i < DROPS_A_SLICE; i++) {
        if (!this.#above(this.#marks.low) || this.#ram.dropOne() === "none") return;
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
 * What the store counted since it started. Read by metrics and status; written by the store alone.
 */
export interface StoreStats {
  matchBlocks: number;
  acquireHits: number;
  /** Of these, brought from SSD. */
  acquireHitsSsd: number;
  /** Brought from another host. */
  acquireHitsPeer: number;
  acquireMisses: number;
  reservedBlocks: number;
  presentBlocks: number;
  fullBlocks: number;
  committedBlocks: number;
  committedBytes: number;
  abortedBlocks: number;
  corruptBlocks: number;
  evictedBlocks: number;
  evictedBytes: number;
  evictionRuns: number;
  quarantinedSlots: number;
  /** From other hosts, whole and right; and those that were not, of which nothing was kept. */
  pulledBlocks: number;
  pulledBytes: number;
  peerCorruptBlocks: number;
  /** Lent to other hosts. */
  lentBlocks: number;
  lentBytes: number;
}

export function emptyStats(): StoreStats {
  return {
    matchBlocks: 0,
    acquireHits: 0,
    acquireHitsSsd: 0,
    acquireHitsPeer: 0,
    acquireMisses: 0,
    reservedBlocks: 0,
    presentBlocks: 0,
    fullBlocks: 0,
    committedBlocks: 0,
    committedBytes: 0,
    abortedBlocks: 0,
    corruptBlocks: 0,
    evictedBlocks: 0,
    evictedBytes: 0,
    evictionRuns: 0,
    quarantinedSlots: 0,
    pulledBlocks: 0,
    pulledBytes: 0,
    peerCorruptBlocks: 0,
    lentBlocks: 0,
    lentBytes: 0,
  };
}
