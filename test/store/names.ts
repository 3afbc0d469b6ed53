import { LAYER_ALL } from "../../src/core/index.ts";
import {
  type AddressBatch,
  BlockFlag,
  BlockOutcome,
  createAddressBatch,
} from "../../src/store/index.ts";

/**
 * Block names of tests: "a/b/c" is the block "c" after the prefix "a/b", which is its parent.
 * Digest and bytes are derived from the whole name.
 */
export type BlockName = string;

export interface BlockSpec {
  readonly name: BlockName;
  readonly bytes?: number;
  readonly alias?: bigint;
  readonly transient?: boolean;
}

/** Not a multiple of the page size, so that length and capacity differ. */
export const BLOCK_BYTES = 5_000;

const digests = new Map<BlockName, Uint8Array>();

export function digestOf(name: BlockName): Uint8Array {
  let digest = digests.get(name);
  if (digest === undefined) {
    digest = new Bun.CryptoHasher("sha256").update(name).digest();
    digests.set(name, digest);
  }
  return digest;
}

/** Seed of the block's bytes. */
export function seedOf(name: BlockName): bigint {
  const { buffer, byteOffset } = digestOf(name);
  return new DataView(buffer, byteOffset).getBigUint64(0, true);
}

export function parentOf(name: BlockName): BlockName | null {
  const end = name.lastIndexOf("/");
  return end < 0 ? null : name.slice(0, end);
}

/** "a/b/c" → "a", "a/b", "a/b/c". */
export function chain(name: BlockName): BlockName[] {
  const parent = parentOf(name);
  return parent === null ? [name] : [...chain(parent), name];
}

export function specOf(block: BlockName | BlockSpec): BlockSpec {
  return typeof block === "string" ? { name: block } : block;
}

export function batchOf(
  blocks: readonly (BlockName | BlockSpec)[],
  layer = LAYER_ALL,
): AddressBatch {
  const batch = createAddressBatch(Math.max(1, blocks.length));
  batch.count = blocks.length;
  batch.layer = layer;
  blocks.map(specOf).forEach(({ name, bytes, alias, transient }, i) => {
    batch.digests.set(digestOf(name), i * 32);
    const parent = parentOf(name);
    if (parent !== null) batch.parents.set(digestOf(parent), i * 32);
    batch.bytes[i] = bytes ?? BLOCK_BYTES;
    batch.flags[i] =
      (transient ? BlockFlag.transient : 0) | (alias === undefined ? 0 : BlockFlag.aliasGiven);
    batch.aliasLo[i] = Number((alias ?? 0n) & 0xffff_ffffn);
    batch.aliasHi[i] = Number((alias ?? 0n) >> 32n);
  });
  return batch;
}

export type OutcomeName = keyof typeof BlockOutcome;

const NAMES = new Map<number, OutcomeName>(
  (Object.keys(BlockOutcome) as OutcomeName[]).map((name) => [BlockOutcome[name], name]),
);

export function outcomeOf(outcome: number): OutcomeName {
  const name = NAMES.get(outcome);
  if (name === undefined) throw new Error(`outcome ${outcome} has no name`);
  return name;
}
