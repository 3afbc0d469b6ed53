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

/** One of a block's extra keys. vLLM's order: LoRA, multimodal items, cache salt, embeddings. */
export type VllmExtraKey =
  /** In every block. Untagged: the name alone. */
  | { readonly kind: "lora"; readonly name: string; readonly path: string }
  /** One per multimodal item in the block; `offset` counts from the start of the block. */
  | { readonly kind: "mm"; readonly identifier: string; readonly offset: number }
  /** In block 0 only. */
  | { readonly kind: "cache_salt"; readonly salt: string }
  /** SHA-256 of the block's prompt embeddings. */
  | { readonly kind: "prompt_embeds"; readonly digest: Uint8Array };

/**
 * How vLLM writes extra keys into a hash. `tagged`: `("cache_salt", "tenant-a")`, vLLM 0.32 and
 * later. `untagged`: `"tenant-a"`, earlier releases. KV events have the untagged form in both.
 */
export type VllmKeyFormat = "tagged" | "untagged";

/** The first release with tagged keys. */
const TAGGED_SINCE = [0, 32] as const;

/** The format of a version as the engine reports it: "0.32.0", "0.31.1rc2", "v0.33.0+cpu". */
export function vllmKeyFormatOf(version: string): VllmKeyFormat {
  const match = /^v?(\d+)\.(\d+)/.exec(version);
  if (match === null) return "tagged";
  const [major, minor] = [Number(match[1]), Number(match[2])];
  const isTagged = major > TAGGED_SINCE[0] || minor >= TAGGED_SINCE[1];
  return isTagged ? "tagged" : "untagged";
}

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
  /** `tagged` if left out. */
  readonly keyFormat?: VllmKeyFormat;
}

/** vLLM's tags are constants of its program: one object each, however often they occur. */
function tag(name: VllmExtraKey["kind"]): HashInput {
  return { shared: name };
}

function keyInput(key: VllmExtraKey, format: VllmKeyFormat): HashInput {
  const isTagged = format === "tagged";
  switch (key.kind) {
    case "lora":
      return isTagged ? [tag(key.kind), key.name, key.path] : key.name;
    case "mm":
      return [...(isTagged ? [tag(key.kind)] : []), key.identifier, key.offset];
    case "cache_salt":
      return isTagged ? [tag(key.kind), key.salt] : key.salt;
    case "prompt_embeds":
      return isTagged ? [tag(key.kind), key.digest] : key.digest;
    default:
      return key satisfies never;
  }
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
    const extra = chain.extraKeys?.(hashes.length) ?? [];
    const keys = extra.map((key) => keyInput(key, chain.keyFormat ?? "tagged"));
    const extraOrNone = keys.length === 0 ? null : keys;
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
