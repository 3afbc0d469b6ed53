import { LAYER_ALL, type Random, randomBelow } from "../../src/core/index.ts";

/** One block of a round: its address, and bytes that follow from it. */
export interface Block {
  readonly digest: Uint8Array;
  readonly parent: Uint8Array | null;
  readonly bytes: number;
  /** What the payload is made from. */
  readonly seed: bigint;
}

/** Blocks of one layer, as one request of an engine names them. */
export interface Round {
  readonly layer: number;
  readonly blocks: readonly Block[];
}

/** Whole pages and not, of one page to sixteen: each number of pages needs an extent of its own. */
const LENGTHS = [3_000, 4_096, 5_000, 8_192, 20_480, 65_000];

let made = 0;

/** Blocks that no round had before; nearly all are children of the first. */
export function makeRound(random: Random, count: number): Round {
  const layer = randomBelow(random, 2) === 0 ? LAYER_ALL : randomBelow(random, 80);
  const blocks: Block[] = [];
  for (let i = 0; i < count; i++) {
    const digest = new Bun.CryptoHasher("sha256").update(`${made++} ${random.u32()}`).digest();
    const parent = i === 0 || i % 10 === 0 ? null : blocks[0]!.digest;
    const bytes = LENGTHS[randomBelow(random, LENGTHS.length)]!;
    blocks.push({ digest, parent, bytes, seed: digest.readBigUInt64LE(0) });
  }
  return { layer, blocks };
}
