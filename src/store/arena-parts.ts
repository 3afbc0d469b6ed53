import { assert } from "../core/index.ts";

/** A part of the arena whose memory comes from one NUMA node. */
export interface ArenaPart {
  readonly offset: number;
  readonly bytes: number;
  readonly node: number;
}

/** Parts begin at a GiB where the arena is long enough: so do the slices that devices register. */
const UNIT_BYTES = 2 ** 30;
const HUGE_PAGE_BYTES = 2 * 2 ** 20;
/** As many as a slot allocator tells apart. */
const PARTS_MAX = 8;

/**
 * Which part of an arena lies near which devices: an equal one for each node that has any (`nodes`,
 * one entry a device, null where it is not known). Empty where there is nothing to choose: the host
 * has one node with memory, or no device says where it is.
 */
export function planArenaParts(
  arenaBytes: number,
  nodes: readonly (number | null)[],
  hostNodes: number,
): readonly ArenaPart[] {
  assert(arenaBytes > 0, "an arena has bytes");
  const near = [...new Set(nodes)].filter((node) => node !== null).sort((a, b) => a - b);
  if (hostNodes < 2 || near.length === 0 || near.length > PARTS_MAX) return [];
  const unit = arenaBytes >= near.length * UNIT_BYTES ? UNIT_BYTES : HUGE_PAGE_BYTES;
  if (arenaBytes < near.length * unit) return [];
  const ends = near.map((_, i) => Math.round((arenaBytes * (i + 1)) / near.length / unit) * unit);
  ends[near.length - 1] = arenaBytes;
  return near.map((node, i) => {
    const offset = ends[i - 1] ?? 0;
    return { offset, bytes: ends[i]! - offset, node };
  });
}
