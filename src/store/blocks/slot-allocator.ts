import type { NodeId } from "../../core/index.ts";
import type { ExtentSlots } from "./create-slot-allocator.ts";

export const SLOT_ALIGN = 4096;
/** Maximum number of zones: parts of the arena that a caller can prefer. */
export const ZONES_MAX = 8;
/** Result of `reserve` if no slot is free. */
export const NO_SLOT = 0;

export const SlotState = { free: 0, reserved: 1, live: 2, quarantined: 3 } as const;
export type SlotState = (typeof SlotState)[keyof typeof SlotState];

export interface SlotAllocatorOptions {
  /** Arena size in bytes. The remainder of a division by 4096 is not used. */
  readonly arenaBytes: number;
  /** Size in bytes of the largest block that must fit. */
  readonly slotBytesMax: number;
  /** Requested extent size in bytes. Default: arena / 64, at most 64 MiB. */
  readonly extentBytes?: number;
  /**
   * End offset of each zone, ascending. The last one is the end of the arena. Default: one zone.
   */
  readonly zoneEnds?: readonly number[];
}

export interface SizeClass {
  readonly slotBytes: number;
  readonly extents: number;
  /** Slots of these extents, and those of them that are not free. */
  readonly slots: number;
  readonly used: number;
}

/**
 * Divides the RAM arena into slots. The arena is cut into extents of equal size (the last may be
 * shorter). An extent belongs to one size class or to none. The slots of a class are as long as its
 * blocks, rounded up to 4096. Guarantees:
 *
 * - If nothing is allocated, the next `reserve` chooses the extent size anew, as a multiple of its
 *   own slot size. So an arena of N slots holds exactly N blocks as long as one size is in use.
 *   Another class loses less than one of its slots at the end of each of its extents.
 * - An extent whose slots are all free belongs to no class. Slots come from the fullest extents of
 *   the class (to an eighth), so that the others empty. If a zone is requested, its extents come
 *   first, including extents that have to be opened, and then those of any zone.
 * - A slot number is unique among the slots in use. A generation is unique among the last 2^32
 *   reservations of all slots. Neither is reused before `release`. Only `bury` releases a
 *   quarantined slot.
 * - No call waits. No call except `classes` and `verifyIntegrity` allocates memory. `reserve`,
 *   `publish`, `release`, `quarantine` and `bury` take constant time.
 *
 * The allocator itself uses 20 bytes per slot, for the largest number of slots that ever existed at
 * once. In an arena above 512 GiB, slots are aligned to the power of two at or above arena / 2^27,
 * and at least as long, instead of 4096.
 */
export interface SlotAllocator {
  readonly arenaBytes: number;
  readonly readyBytes: number;
  /** Slots that are not free, their bytes, and how many of them are quarantined. */
  readonly usedSlots: number;
  readonly usedBytes: number;
  readonly quarantinedSlots: number;
  /** Number of extents. 0 before the first reservation. */
  readonly extentCount: number;

  /**
   * Reports that `bytes` more of the arena are backed by memory. An extent opens when all of it is.
   */
  addReady(bytes: number): void;

  /**
   * Reserves a slot for `bytes`. NO_SLOT: none is free, or `bytes` exceeds `slotBytesMax`. `zone`:
   * the preferred zone; other zones are used if it is full.
   */
  reserve(bytes: number, zone?: number): number;
  /** `reserved` → `live`. */
  publish(slot: number): void;
  /** `reserved` or `live` → `free`. */
  release(slot: number): void;
  /**
   * `reserved` or `live` → `quarantined`: an engine may still access the bytes. Clears the node.
   */
  quarantine(slot: number): void;
  /** `quarantined` → `free`. */
  bury(slot: number): void;
  /**
   * `live` → `free`, or `quarantined` while the slot has references: its bytes are damaged, and
   * readers may still look at them. Dropping the last reference frees it. Clears the node.
   */
  condemn(slot: number): void;

  /** Adds a reference to a `live` slot. It must not be released before `dropReference`. */
  addReference(slot: number): void;
  dropReference(slot: number): void;

  /** Whether the slot is in use and has this generation. Accepts any integers. */
  isCurrent(slot: number, generation: number): boolean;
  stateOf(slot: number): SlotState;
  generationOf(slot: number): number;
  /** Capacity in bytes of the slot that `reserve(bytes)` would return. */
  slotBytesFor(bytes: number): number;
  /** Byte offset in the arena. */
  offsetOf(slot: number): number;
  /** Capacity of the slot in bytes. */
  slotBytesOf(slot: number): number;
  /** The node whose block is in the slot. NO_NODE until it is set. */
  nodeOf(slot: number): NodeId;
  setNode(slot: number, node: NodeId): void;

  /** Number of slots that `reserve(bytes)` would return before NO_SLOT. */
  freeSlots(bytes: number): number;

  extentOf(slot: number): number;
  /**
   * The extent of another class that could contain a slot for `bytes` and has the fewest
   * bytes in use. -1: none. Extents with reserved or quarantined slots are excluded, because they
   * cannot be emptied now. `after`: an extent returned before; continues after it in that order.
   * Takes time linear in the number of extents.
   */
  cheapestExtent(bytes: number, after?: number): number;
  /**
   * The slot in use after `slot` within the extent. NO_SLOT as input: the first one; as result: the
   * end.
   */
  nextUsedSlot(extent: number, slot: number): number;

  /** Size of an extent in bytes. 0 before the first reservation. */
  readonly extentBytes: number;
  /**
   * Recreates a layout in an unused arena of the same size, all of which must be ready. Returns the
   * reserved slot of each entry. Null if the layout does not fit. In that case the caller must
   * discard the arena unless nothing was reserved.
   */
  restore(layout: SlotLayout): Int32Array | null;

  /** Size classes, for metrics. */
  classes(): SizeClass[];

  verifyIntegrity(): void;
}

/** Positions of blocks in an arena, by ascending offset. */
export interface SlotLayout {
  readonly extentBytes: number;
  readonly offsets: Float64Array;
  /** Length of each block in bytes. */
  readonly bytes: Uint32Array;
}

interface Extent {
  slotBytes: number;
  /** Indexes into the layout, ascending. */
  readonly entries: number[];
}

/** The extents that contain the blocks, by number. Null if the layout is invalid. */
function extentsOf(slots: ExtentSlots, layout: SlotLayout): Map<number, Extent> | null {
  const { extentBytes, offsets, bytes } = layout;
  const { granule, arenaBytes, slotBytesMax, extentBytesMin } = slots.limits;
  if (extentBytes < extentBytesMin || extentBytes % granule !== 0) return null;
  const extents = new Map<number, Extent>();
  let end = 0;
  for (let i = 0; i < offsets.length; i++) {
    const offset = offsets[i]!;
    const slotBytes = slots.slotBytesFor(bytes[i]!);
    const number = Math.floor(offset / extentBytes);
    const extent = extents.get(number) ?? { slotBytes, entries: [] };
    const inExtent = offset - number * extentBytes;
    const within = inExtent + slotBytes <= extentBytes && offset + slotBytes <= arenaBytes;
    const right = within && offset >= end && inExtent % slotBytes === 0;
    if (!right || bytes[i] === 0 || slotBytes > slotBytesMax) return null;
    if (extent.slotBytes !== slotBytes) return null;
    end = offset + slotBytes;
    extent.entries.push(i);
    extents.set(number, extent);
  }
  return extents;
}

/**
 * Recreates the layout in an unused arena. Returns the reserved slot of each entry. Null, without
 * any change, if the layout does not fit this arena.
 */
export function restoreSlots(slots: ExtentSlots, layout: SlotLayout): Int32Array | null {
  if (slots.usedSlots > 0 || slots.readyBytes !== slots.arenaBytes) return null;
  const extents = extentsOf(slots, layout);
  if (extents === null) return null;
  const restored = new Int32Array(layout.offsets.length);
  const spare: number[] = [];
  slots.divideInto(layout.extentBytes);
  const last = Math.max(-1, ...extents.keys());
  for (let number = 0; number <= last; number++) {
    // An extent without blocks is opened and closed again, because extents open in order.
    const { slotBytes, entries } = extents.get(number) ?? { slotBytes: 0, entries: [] };
    const unit = slotBytes === 0 ? slots.limits.granule : slotBytes;
    if (!slots.openNext(number, unit)) return null;
    let next = number * layout.extentBytes;
    for (const entry of entries) {
      for (; next < layout.offsets[entry]!; next += unit) spare.push(slots.takeNext(number, unit));
      restored[entry] = slots.takeNext(number, unit);
      next += unit;
    }
    if (entries.length === 0) spare.push(slots.takeNext(number, unit));
  }
  for (const slot of spare) slots.release(slot);
  return restored;
}
