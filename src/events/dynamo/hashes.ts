import { assert } from "../../core/index.ts";
import { xxh3 } from "./xxh3.ts";

const MASK = (1n << 64n) - 1n;
/** Dynamo's seed of block and sequence hashes. */
const SEED = 1_337n;
const LORA_SEED = 0n;
const SALT_SEED = 1n;
const MEDIA_SEED = 0n;

const utf8 = new TextEncoder();

function textHash(text: string | null, seed: bigint): bigint {
  return text === null || text === "" ? 0n : xxh3(utf8.encode(text), seed);
}

/** What a LoRA adapter and a cache salt add to the seed of block hashes; empty ones are none. */
export function saltSeed(loraName: string | null, cacheSalt: string | null): bigint {
  return (SEED + textHash(loraName, LORA_SEED) + textHash(cacheSalt, SALT_SEED)) & MASK;
}

/** The share of the salt alone: a chain inherits it from its first block. */
export function saltShare(cacheSalt: string | null): bigint {
  return textHash(cacheSalt, SALT_SEED);
}

/** The number of a picture or the like by its identifier: 64 hex digits are its own hash. */
export function mediaHash(identifier: string): bigint {
  if (/^[0-9a-fA-F]{64}$/.test(identifier)) return BigInt(`0x${identifier.slice(0, 16)}`);
  return xxh3(utf8.encode(identifier), MEDIA_SEED);
}

/** Of one block's tokens; `media`: of what reaches into it, in any order. */
export function localHash(
  tokens: Uint32Array,
  seed: bigint = SEED,
  media: readonly bigint[] = [],
): bigint {
  const bytes = new Uint8Array(tokens.length * 4 + media.length * 8);
  const view = new DataView(bytes.buffer);
  for (const [i, token] of tokens.entries()) view.setUint32(i * 4, token, true);
  const ascending = [...media].sort((a, b) => (a < b ? -1 : a > b ? 1 : 0));
  for (const [i, hash] of ascending.entries()) {
    view.setBigUint64(tokens.length * 4 + i * 8, hash, true);
  }
  return xxh3(bytes, seed);
}

/**
 * Of each complete block. With EAGLE a block's window is one token longer, so that the last
 * complete one needs the token behind it.
 */
export function localHashes(
  tokens: Uint32Array,
  blockTokens: number,
  options: { readonly seed?: bigint; readonly isEagle?: boolean } = {},
): BigUint64Array {
  assert(Number.isInteger(blockTokens) && blockTokens > 0, "blocks of tokens");
  const window = blockTokens + (options.isEagle ? 1 : 0);
  const hashes: bigint[] = [];
  for (let at = 0; at + window <= tokens.length; at += blockTokens) {
    hashes.push(localHash(tokens.subarray(at, at + window), options.seed));
  }
  return BigUint64Array.from(hashes);
}

const pair = new Uint8Array(16);
const pairView = new DataView(pair.buffer);

/** The name of a block together with all before it: null where it is the first. */
export function sequenceHash(parent: bigint | null, local: bigint): bigint {
  if (parent === null) return local;
  pairView.setBigUint64(0, parent, true);
  pairView.setBigUint64(8, local, true);
  return xxh3(pair, SEED);
}

export function sequenceHashes(
  locals: BigUint64Array,
  parent: bigint | null = null,
): BigUint64Array {
  const hashes = new BigUint64Array(locals.length);
  let last = parent;
  for (let i = 0; i < locals.length; i++) {
    last = sequenceHash(last, locals[i]!);
    hashes[i] = last;
  }
  return hashes;
}
