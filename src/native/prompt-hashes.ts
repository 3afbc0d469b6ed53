import { assert } from "../core/index.ts";
import { STRUCTS } from "./abi.gen.ts";
import { nativeBuffer } from "./buffers.ts";
import type { Native } from "./native.ts";

/** How sequence hashes are to be computed: Dynamo's chain of XXH3-64 over the tokens. */
export interface SequenceHashing {
  readonly blockTokens: number;
  /** Of each block's own (local) hash. */
  readonly seed: bigint;
  /** The sequence hash before the first block; null where that is the first of a prompt. */
  readonly parent?: bigint | null;
  /** What a local hash is of, from the start of its block on; more than a block for EAGLE. */
  readonly windowTokens?: number;
}

const { size, fields } = STRUCTS.ChainRequest;
const REQUEST = nativeBuffer(size).bytes;
const VIEW = new DataView(REQUEST.buffer);

/** How many blocks `tokens` tokens have: those whose whole window is there. */
export function blocksOfTokens(
  tokens: number,
  { blockTokens, windowTokens = blockTokens }: SequenceHashing,
): number {
  return tokens < windowTokens ? 0 : Math.floor((tokens - windowTokens) / blockTokens) + 1;
}

/**
 * Local and sequence hashes of each full block of a prompt in one call; returns their number. Both
 * arrays have room for all of them.
 */
export function sequenceHashes(
  native: Native,
  tokens: Uint32Array,
  hashing: SequenceHashing,
  into: { readonly local: BigUint64Array; readonly sequence: BigUint64Array },
): number {
  const count = blocksOfTokens(tokens.length, hashing);
  const { local, sequence } = into;
  assert(local.length >= count && sequence.length >= count, "room for every hash");
  if (count === 0) return 0;
  const { blockTokens, seed, parent = null, windowTokens = blockTokens } = hashing;
  VIEW.setBigUint64(fields.seed.offset, seed, true);
  VIEW.setBigUint64(fields.parent.offset, parent ?? 0n, true);
  VIEW.setUint32(fields.token_count.offset, tokens.length, true);
  VIEW.setUint32(fields.block_tokens.offset, blockTokens, true);
  VIEW.setUint32(fields.window_tokens.offset, windowTokens, true);
  VIEW.setUint32(fields.has_parent.offset, parent === null ? 0 : 1, true);
  const call = native.symbols.hearth_sequence_hashes;
  return native.check("hearth_sequence_hashes", call(REQUEST, tokens, local, sequence, count));
}

/**
 * For each full block the first eight bytes, little-endian, of its BlockKey (layer: all) under a
 * namespace's key: digests and keys in one call. Returns their number.
 */
export function keyHashes(
  native: Native,
  namespaceKey: Uint8Array,
  tokens: Uint32Array,
  blockTokens: number,
  into: BigUint64Array,
): number {
  const count = Math.floor(tokens.length / blockTokens);
  assert(namespaceKey.length === 32 && into.length >= count, "a key, and room for every hash");
  if (count === 0) return 0;
  const call = native.symbols.hearth_key_hashes;
  const code = call(namespaceKey, tokens, tokens.length, blockTokens, into, count);
  return native.check("hearth_key_hashes", code);
}
