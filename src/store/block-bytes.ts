import { SLOT_ALIGN } from "./blocks/index.ts";

/** A block's length is a u32 on the wire and in the table. */
const U32_BLOCK_BYTES = 0xffff_f000;
/** What any arena takes that has room for it: 512 tokens of an 8B model. */
const USUAL_BLOCK_BYTES = 64 * 2 ** 20;
const SHARE_OF_ARENA = 1 / 64;

/**
 * The longest block decides how long the arena's extents are, and an extent is what passes from one
 * block size to another as a whole: so there are 64 of them, or fewer of 64 MiB.
 */
export function blockBytesMax(arenaBytes: number): number {
  const share = Math.floor((arenaBytes * SHARE_OF_ARENA) / SLOT_ALIGN) * SLOT_ALIGN;
  return Math.min(arenaBytes, U32_BLOCK_BYTES, Math.max(USUAL_BLOCK_BYTES, share));
}
