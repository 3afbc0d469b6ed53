import type { ExtentSlots } from "./create-slot-allocator.ts";

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
