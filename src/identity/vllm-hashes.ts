import { assert, readU64BE } from "../core/index.ts";
import { encodeCbor } from "./cbor.ts";
import type { HashInput } from "./hash-input.ts";
import type { Hashing } from "./hashing.ts";
import { encodePickle } from "./pickle.ts";
import { sha256 } from "./sha256.ts";

/** Values of vLLM's `--prefix-caching-hash-algo`; `sha256` is the default. */
export type VllmHashAlgorithm = "sha256" | "sha256_cbor" | "xxhash" | "xxhash_cbor";

/** The seed of NONE_HASH where PYTHONHASHSEED is not set (SHA-256 kinds, vLLM from 2026-08 on). */
export const VLLM_DEFAULT_SEED = "vllm-none-hash";

/**
 * One of a block's extra keys, in vLLM's order: LoRA name (text, in every block), `[identifier,
 * offset]` of each multimodal item in the block, cache salt (text, in block 0 only), digest of
 * prompt embeddings.
 */
export type VllmExtraKey = string | Uint8Array | readonly [identifier: string, offset: number];

const ALGORITHMS: Record<
  VllmHashAlgorithm,
  { readonly encode: (value: HashInput) => Uint8Array; readonly digestBytes: 16 | 32 }
> = {
  sha256: { encode: encodePickle, digestBytes: 32 },
  sha256_cbor: { encode: encodeCbor, digestBytes: 32 },
  xxhash: { encode: encodePickle, digestBytes: 16 },
  xxhash_cbor: { encode: encodeCbor, digestBytes: 16 },
};

/** 32 for the SHA-256 kinds, 16 for the xxhash kinds. */
export function vllmDigestBytes(algorithm: VllmHashAlgorithm): 16 | 32 {
  return ALGORITHMS[algorithm].digestBytes;
}

function hashWith(hashing: Hashing, algorithm: VllmHashAlgorithm, value: HashInput): Uint8Array {
  const { encode, digestBytes } = ALGORITHMS[algorithm];
  const bytes = encode(value);
  return digestBytes === 32 ? sha256(bytes) : hashing.xxh3_128(bytes);
}

/**
 * What stands where the first block has no parent: the hash of the seed, which is PYTHONHASHSEED as
 * text or `VLLM_DEFAULT_SEED`. Where vLLM draws random bytes instead, those are the NONE_HASH
 * themselves.
 */
export function vllmNoneHash(
  hashing: Hashing,
  algorithm: VllmHashAlgorithm,
  seed: string = VLLM_DEFAULT_SEED,
): Uint8Array {
  return hashWith(hashing, algorithm, seed);
}

export interface VllmChain {
  readonly algorithm: VllmHashAlgorithm;
  /** Digest of the block before the first of `tokens`, or the NONE_HASH. */
  readonly parent: Uint8Array;
  readonly tokens: Uint32Array;
  readonly blockTokens: number;
  /**
   * Extra keys of block `index`, counted from the first of `tokens`; null or an empty list: none.
   */
  readonly extraKeys?: (index: number) => readonly VllmExtraKey[] | null;
}

/**
 * The chain of vLLM's block hashes, one for each full block:
 * `hash[i] = H((hash[i-1], (t0, t1, …), extra_keys or None))`.
 */
export function vllmBlockHashes(hashing: Hashing, chain: VllmChain): Uint8Array[] {
  const { algorithm, tokens, blockTokens } = chain;
  assert(Number.isInteger(blockTokens) && blockTokens > 0, "a block of at least one token");
  assert(chain.parent.length === vllmDigestBytes(algorithm), `a parent digest of ${algorithm}`);
  const hashes: Uint8Array[] = [];
  let parent = chain.parent;
  for (let at = 0; at + blockTokens <= tokens.length; at += blockTokens) {
    const extra = chain.extraKeys?.(hashes.length) ?? null;
    const extraOrNone = extra === null || extra.length === 0 ? null : extra;
    const block = tokens.subarray(at, at + blockTokens);
    parent = hashWith(hashing, algorithm, [parent, block, extraOrNone]);
    hashes.push(parent);
  }
  return hashes;
}

/** The number vLLM prints in its KV events: the last eight bytes, big endian, unsigned. */
export function vllmExternalHash(digest: Uint8Array): bigint {
  return readU64BE(digest, digest.length - 8);
}
