import type { NodeId } from "../../core/index.ts";
import type { ExtentSlots } from "./create-slot-allocator.ts";

export const SLOT_ALIGN = 4096;
/** Parts of an arena that may be wanted more than others. */
export const ZONES_MAX = 8;
/** No slot: what `reserve` answers when there is none. */
export const NO_SLOT = 0;

export const SlotState = { free: 0, reserved: 1, live: 2, quarantined: 3 } as const;
export type SlotState = (typeof SlotState)[keyof typeof SlotState];

export interface SlotAllocatorOptions {
  /** Bytes of the arena; what exceeds a multiple of 4096 is not used. */
  readonly arenaBytes: number;
  /** Bytes of the largest block that must find room. */
  readonly slotBytesMax: number;
  /** Wanted bytes of an extent. Default: arena / 64, but 64 MiB at most. */
  readonly extentBytes?: number;
  /** Where each zone of the arena ends, in order; the last where the arena does. Default: one. */
  readonly zoneEnds?: readonly number[];
}

export interface SizeClass {
  readonly slotBytes: number;
  readonly extents: number;
  /** Slots these extents have, and those of them that are not free. */
  readonly slots: number;
  readonly used: number;
}

/**
 * Divides the RAM arena into slots. The arena is cut into extents of equal size (the last may be
 * shorter), each belonging to one size class or to none; the slots of a class are as long as its
 * blocks, rounded up to 4096. Promises:
 *
 * - Whenever nothing is allocated, the next `reserve` chooses the extent size anew, as a multiple
 *   of its own slot. So an arena of N slots holds exactly N as long as one size is in use. Another
 *   class loses less than one of its slots at the end of each extent it takes.
 * - An extent whose slots are all free belongs to no class any more. Slots come from the fullest
 *   extents of the class (to an eighth), so that others empty out. Where a zone is asked for, its
 *   extents come first, also those that have to be opened; then those of any zone.
 * - A slot's number is unique among those in use, its generation unique among the last 2^32
 *   reservations of all slots. Neither is used again before `release`; a quarantined slot is
 *   released by `bury` alone.
 * - No call waits or (but for `classes` and `verifyIntegrity`) allocates memory. `reserve`,
 *   `publish`, `release`, `quarantine` and `bury` take constant time.
 *
 * The allocator's own memory is 20 bytes for each slot that ever existed at the same time. An arena
 * above 512 GiB keeps its slots aligned to, and at least as long as, the power of two at or above
 * arena / 2^27 instead of 4096.
 */
export interface SlotAllocator {
  readonly arenaBytes: number;
  readonly readyBytes: number;
  /** Slots not free, their bytes, and how many of them are quarantined. */
  readonly usedSlots: number;
  readonly usedBytes: number;
  readonly quarantinedSlots: number;
  /** Number of extents, once the first slot was reserved. */
  readonly extentCount: number;

  /** So many more bytes of the arena are backed by memory. Extents open when all of them is. */
  addReady(bytes: number): void;

  /**
   * A slot for `bytes` in state `reserved`, or NO_SLOT: nothing free (or longer than
   * `slotBytesMax`). `zone`: where it should lie, if there is room; else anywhere.
   */
  reserve(bytes: number, zone?: number): number;
  /** `reserved` → `live`. */
  publish(slot: number): void;
  /** `reserved` or `live` → `free`. */
  release(slot: number): void;
  /**
   * `reserved` or `live` → `quarantined`: somebody may still touch the bytes. The node is
   * forgotten.
   */
  quarantine(slot: number): void;
  /** `quarantined` → `free`. */
  bury(slot: number): void;
  /**
   * `live` → `free`, or `quarantined` while it has references: its bytes are damaged, and readers
   * may still look at them. The last reference that is dropped frees it. The node is forgotten.
   */
  condemn(slot: number): void;

  /** Somebody reads the slot, which is `live`: it may not be released before `dropReference`. */
  addReference(slot: number): void;
  dropReference(slot: number): void;

  /** Whether the slot is in use and has this generation; any whole numbers may be asked. */
  isCurrent(slot: number, generation: number): boolean;
  stateOf(slot: number): SlotState;
  generationOf(slot: number): number;
  /** Capacity of the slot that `reserve(bytes)` would give. */
  slotBytesFor(bytes: number): number;
  /** Byte offset in the arena. */
  offsetOf(slot: number): number;
  /** Capacity of the slot. */
  slotBytesOf(slot: number): number;
  /** The node whose block lies here; NO_NODE until told. */
  nodeOf(slot: number): NodeId;
  setNode(slot: number, node: NodeId): void;

  /** Slots that `reserve(bytes)` would give before it answers NO_SLOT. */
  freeSlots(bytes: number): number;

  extentOf(slot: number): number;
  /**
   * Among the extents of other classes that could hold a slot for `bytes`, the one with the fewest
   * bytes in use; -1: none. Extents with reserved or quarantined slots are left out: they cannot be
   * emptied now. `after` (an extent answered before) asks for the next one in that order. Takes
   * time linear in extents.
   */
  cheapestExtent(bytes: number, after?: number): number;
  /**
   * The slot in use that follows `slot` (NO_SLOT: the first) within the extent; NO_SLOT at the end.
   */
  nextUsedSlot(extent: number, slot: number): number;

  /** Bytes of an extent; 0 before the first slot was reserved. */
  readonly extentBytes: number;
  /**
   * Makes an unused arena, all of it ready, as one of the same size was: the reserved slot of each
   * entry. Null where the layout makes no sense here; then the arena is as good as before only if
   * nothing was reserved: the caller gives it up.
   */
  restore(layout: SlotLayout): Int32Array | null;

  /** For metrics. */
  classes(): SizeClass[];

  verifyIntegrity(): void;
}

/** Where blocks lay in an arena, by ascending offset. */
export interface SlotLayout {
  readonly extentBytes: number;
  readonly offsets: Float64Array;
  /** Length of each block. */
  readonly bytes: Uint32Array;
}

interface Extent {
  slotBytes: number;
  /** Entries of the layout, from first to last. */
  readonly entries: number[];
}

/** The extents that hold the blocks, by number; null where the layout makes no sense. */
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
 * Makes an unused arena as the layout says: the reserved slot of each entry. Null, and nothing
 * changed, where the layout makes no sense for this arena.
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
    // One without blocks is opened and closed again: extents are opened in their order.
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
