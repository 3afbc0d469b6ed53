import {
  type BlockTable,
  NO_SLOT,
  type RecencyTier,
  type SlotAllocator,
  Tier,
} from "../blocks/index.ts";
import { NO_NODE, type NodeId } from "../core/index.ts";
import type { EvictionPolicy } from "./policy/index.ts";
import type { StoreStats } from "./stats.ts";

const RAM: RecencyTier = Tier.ram;
/** Extents looked at when a size class needs room that another class has. */
const EXTENTS_TRIED = 4;
/** Blocks looked at for one of the right size. */
const NODES_LOOKED_AT = 256;
/** Paths made the newest by one request; what a request names beyond them keeps its place. */
const PATHS_TOUCHED = 64;
/** Protections ended for one block: each may have been one of several on the same blocks. */
const RELIEFS = 16;
/** Blocks dropped at once to empty an extent: about a millisecond. */
const DROPS_AT_ONCE = 1024;

export interface RamTierParts {
  readonly table: BlockTable;
  readonly slots: SlotAllocator;
  readonly policy: EvictionPolicy;
  readonly stats: StoreStats;
  /** Called when everything is protected: ends one such protection; false where none can be. */
  relieve(): boolean;
}

/**
 * Room in RAM: finds slots, and makes them by dropping what the policy gives up. Dropping a block
 * from RAM takes a microsecond and no I/O, so a writer that finds no free slot takes the next
 * victim's at once; it never waits for one.
 */
export class RamTier {
  readonly #parts: RamTierParts;
  #tick = 0;

  constructor(parts: RamTierParts) {
    this.#parts = parts;
  }

  /** A number that grows with each request: recency in the table's terms. */
  nextTick(): number {
    this.#tick = (this.#tick + 1) >>> 0;
    return this.#tick;
  }

  /** A reserved slot for so many bytes, or NO_SLOT where nothing may be dropped for it. */
  takeSlot(bytes: number): number {
    const slot = this.#parts.slots.reserve(bytes);
    return slot === NO_SLOT ? this.#reclaim(bytes) : slot;
  }

  #reclaim(bytes: number): number {
    const { slots, table } = this.#parts;
    const victim = this.#victim();
    if (victim === NO_NODE) return NO_SLOT;
    if (slots.slotBytesOf(table.slotOf(victim)) === slots.slotBytesFor(bytes)) {
      this.drop(victim);
      return slots.reserve(bytes);
    }
    // The memory belongs to blocks of another size: an extent of theirs must go as a whole.
    if (this.#emptyExtentFor(bytes)) return slots.reserve(bytes);
    // None can go: then the oldest of the right size does, though younger than others.
    return this.#dropOfSize(slots.slotBytesFor(bytes), victim) ? slots.reserve(bytes) : NO_SLOT;
  }

  #victim(): NodeId {
    const { table, policy, relieve } = this.#parts;
    let victim = policy.victim(table, RAM);
    for (let tries = 0; victim === NO_NODE && tries < RELIEFS && relieve(); tries++) {
      victim = policy.victim(table, RAM);
    }
    return victim;
  }

  #dropOfSize(slotBytes: number, oldest: NodeId): boolean {
    const { slots, table } = this.#parts;
    let node = oldest;
    for (let looked = 0; node !== NO_NODE && looked < NODES_LOOKED_AT; looked++) {
      const fits = slots.slotBytesOf(table.slotOf(node)) === slotBytes;
      if (fits && table.isLeafOn(node, RAM)) {
        this.drop(node);
        return true;
      }
      node = table.newerThan(node, RAM);
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
    const { slots, table } = this.#parts;
    let slot = slots.nextUsedSlot(extent, NO_SLOT);
    for (; slot !== NO_SLOT; slot = slots.nextUsedSlot(extent, slot)) {
      if (table.isProtected(slots.nodeOf(slot))) return false;
    }
    return true;
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

  /** Drops the policy's next victim; false where everything is protected. */
  dropOne(): boolean {
    const { table, policy } = this.#parts;
    const victim = policy.victim(table, RAM);
    if (victim === NO_NODE) return false;
    this.drop(victim);
    return true;
  }

  /** Takes an unprotected block out of RAM; its slot is free again. The node may vanish. */
  drop(node: NodeId): void {
    const { table, slots, stats } = this.#parts;
    const slot = table.slotOf(node);
    stats.evictedBlocks++;
    stats.evictedBytes += table.bytesOf(node);
    table.removeResidency(node, RAM);
    slots.release(slot);
  }

  /**
   * Counts a use of each node and makes them the newest, the first of `nodes` newest of all. They
   * are a request's blocks from first to last: as a rule each is the parent of the next.
   */
  touch(nodes: readonly NodeId[], event: "stored" | "used"): void {
    const { table, policy } = this.#parts;
    const tick = this.nextTick();
    let below: NodeId = NO_NODE;
    let paths = 0;
    for (let i = nodes.length - 1; i >= 0; i--) {
      const node = nodes[i]!;
      table.markUsed(node, tick);
      // Touching a block touches its ancestors: one walk serves the whole chain.
      const touched = below !== NO_NODE && table.parentOf(below) === node;
      below = node;
      if (touched) continue;
      const ask = event === "stored" ? policy.onStored : policy.onUsed;
      if (paths < PATHS_TOUCHED && ask(table, node, RAM) === "refresh") {
        paths++;
        table.touchPath(node);
      }
    }
  }
}
