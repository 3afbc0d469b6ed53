import { SLOT_ALIGN } from "./slot-allocator.ts";

const EXTENT_BYTES = 64 * 2 ** 20;
const EXTENTS_WANTED = 64;
/** Slot numbers an arena has at most: they and their records must fit typed arrays. */
const GRANULES_MAX = 2 ** 27;

export interface ArenaLimits {
  /** A multiple of the granule. */
  readonly arenaBytes: number;
  /** Slots are multiples of this: 4096, or more in arenas above 512 GiB. */
  readonly granule: number;
  readonly slotBytesMax: number;
  /** Extents are at least this long. */
  readonly extentBytesMin: number;
  readonly extentsMax: number;
}

export function arenaLimits(
  arenaBytes: number,
  slotBytesMax: number,
  extentBytes: number | undefined,
): ArenaLimits {
  let granule = SLOT_ALIGN;
  while (arenaBytes / granule > GRANULES_MAX) granule *= 2;
  const usable = Math.floor(arenaBytes / granule) * granule;
  const longest = roundUp(slotBytesMax, granule);
  const wanted = extentBytes ?? Math.min(EXTENT_BYTES, usable / EXTENTS_WANTED);
  const extentBytesMin = Math.max(roundUp(wanted, granule), longest);
  return {
    arenaBytes: usable,
    granule,
    slotBytesMax: longest,
    extentBytesMin,
    extentsMax: Math.ceil(usable / extentBytesMin),
  };
}

/** Bytes of the extents of an empty arena whose first slot is this long: a multiple of the slot. */
export function extentBytesFor(limits: ArenaLimits, slotBytes: number): number {
  return Math.ceil(limits.extentBytesMin / slotBytes) * slotBytes;
}

export function roundUp(bytes: number, to: number): number {
  return Math.max(1, Math.ceil(bytes / to)) * to;
}
