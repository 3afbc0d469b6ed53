import { type Random, randomBelow } from "../../src/core/index.ts";

/** Blocks come in prompts of so many: each is the parent of the next. */
export const PROMPT_BLOCKS = 8;
export const PROMPTS = 40;
export const BLOCKS = PROMPTS * PROMPT_BLOCKS;

/** All of one slot size: a small arena holds blocks of one at a time. */
const BYTES_MIN = 28 * 1024 + 1;
const BYTES_SPREAD = 4 * 1024;

/** One content of a block: its bytes follow from the address and the generation. */
export interface Content {
  readonly id: number;
  readonly generation: number;
  readonly bytes: number;
  readonly seed: bigint;
}

function mixed(id: number, generation: number): bigint {
  return Bun.hash.xxHash3(`${id}/${generation}`);
}

/** Another generation has other bytes and another length. */
export function contentOf(id: number, generation: number): Content {
  const seed = mixed(id, generation);
  return { id, generation, seed, bytes: BYTES_MIN + Number(seed % BigInt(BYTES_SPREAD)) };
}

const digests = Array.from({ length: BLOCKS }, (_, id) =>
  new Bun.CryptoHasher("sha256").update(`block ${id}`).digest(),
);

export function digestOf(id: number): Uint8Array {
  return digests[id]!;
}

/** Null: the first of its prompt. */
export function parentOf(id: number): Uint8Array | null {
  return id % PROMPT_BLOCKS === 0 ? null : digestOf(id - 1);
}

/** Blocks that are never written to SSD. */
export function isTransient(id: number): boolean {
  return Math.floor(id / PROMPT_BLOCKS) % 10 === 9;
}

export function idsOfPrompt(prompt: number): number[] {
  return Array.from({ length: PROMPT_BLOCKS }, (_, i) => prompt * PROMPT_BLOCKS + i);
}

/** Some prompts are asked for again and again, most now and then. */
export function choosePrompt(random: Random): number {
  return Math.min(randomBelow(random, PROMPTS), randomBelow(random, PROMPTS));
}

export function isOneIn(random: Random, count: number): boolean {
  return randomBelow(random, count) === 0;
}
