import { assert, readU64BE } from "../core/index.ts";
import type { Hashing } from "./digests.ts";
import { ByteWriter, encodeCbor, encodePickle, type HashInput } from "./hash-encodings.ts";

const encoder = new TextEncoder();

/** Returns the SHA-256 hash of the concatenated parts: 32 bytes. */
function sha256(...parts: readonly Uint8Array[]): Uint8Array {
  const hasher = new Bun.CryptoHasher("sha256");
  for (const part of parts) hasher.update(part);
  return new Uint8Array(hasher.digest());
}

/** Values of vLLM's option `--prefix-caching-hash-algo`, whose default is `sha256`. */
export type VllmHashAlgorithm = "sha256" | "sha256_cbor" | "xxhash" | "xxhash_cbor";

/**
 * vLLM's seed for NONE_HASH, the parent of each first block, if PYTHONHASHSEED is not set and the
 * algorithm uses SHA-256 (vLLM from 2026-08 on).
 */
export const VLLM_DEFAULT_SEED = "vllm-none-hash";

/**
 * An additional value that vLLM hashes into a block. Order in vLLM: LoRA, multimodal items, cache
 * salt, embeddings.
 */
export type VllmExtraKey =
  /**
   * Present in every block of a request with a LoRA adapter. In the untagged form, only the name is
   * hashed.
   */
  | { readonly kind: "lora"; readonly name: string; readonly path: string }
  /**
   * One per multimodal item in the block. `offset` is the item's position in tokens relative to the
   * start of the block.
   */
  | { readonly kind: "mm"; readonly identifier: string; readonly offset: number }
  /** Present in the first block of a prompt only. */
  | { readonly kind: "cache_salt"; readonly salt: string }
  /** SHA-256 of the block's prompt embeddings. */
  | { readonly kind: "prompt_embeds"; readonly digest: Uint8Array };

/**
 * How vLLM hashes an extra key. `tagged`: as a pair `("cache_salt", "tenant-a")`, in vLLM 0.32 and
 * later. `untagged`: as `"tenant-a"`, in earlier releases. vLLM's KV events report untagged keys in
 * all releases.
 */
export type VllmKeyFormat = "tagged" | "untagged";

/** The first vLLM release (major, minor) that hashes extra keys in the tagged form. */
const TAGGED_SINCE = [0, 32] as const;

/**
 * Returns the key format of a vLLM release, given as the engine reports it: "0.32.0", "0.31.1rc2",
 * "v0.33.0+cpu". Returns `tagged` for text without a version number.
 */
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

/**
 * Returns the digest length in bytes: 32 for algorithms that use SHA-256, 16 for those that use
 * XXH3-128.
 */
export function vllmDigestBytes(algorithm: VllmHashAlgorithm): 16 | 32 {
  return ALGORITHMS[algorithm].digestBytes;
}

function hashWith(hashing: Hashing, algorithm: VllmHashAlgorithm, value: HashInput): Uint8Array {
  const { encode, digestBytes } = ALGORITHMS[algorithm];
  const bytes = encode(value);
  return digestBytes === 32 ? sha256(bytes) : hashing.xxh3_128(bytes);
}

/**
 * Computes NONE_HASH, which vLLM uses as the parent of each first block: the hash of the seed. The
 * seed is PYTHONHASHSEED as text, or `VLLM_DEFAULT_SEED`. Do not call this if vLLM runs with a
 * random NONE_HASH.
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
  /** Digest of the block that precedes `tokens` in the prompt. NONE_HASH if there is none. */
  readonly parent: Uint8Array;
  readonly tokens: Uint32Array;
  readonly blockTokens: number;
  /**
   * Returns the extra keys of block `index`, where block 0 starts at the first of `tokens`. Null or
   * empty if the block has none.
   */
  readonly extraKeys?: (index: number) => readonly VllmExtraKey[] | null;
  /** Form in which extra keys are hashed. Default: `tagged`. */
  readonly keyFormat?: VllmKeyFormat;
}

/**
 * Marks a tag as a shared object: vLLM's tags are constants, and pickle encodes a repeated Python
 * object as a reference.
 */
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
 * Computes vLLM's hash of each full block. Each hash covers the previous one: `hash[i] =
 * H((hash[i-1], (t0, t1, …), extra_keys or None))`.
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

/**
 * Returns the number that identifies a block in vLLM's KV events: the digest's last eight bytes,
 * big-endian, unsigned.
 */
export function vllmExternalHash(digest: Uint8Array): bigint {
  return readU64BE(digest, digest.length - 8);
}

export interface SglangChain {
  readonly tokens: Uint32Array;
  readonly pageTokens: number;
  /**
   * Digest of the page that precedes `tokens` in the prompt, or the seed of the hash chain. Null at
   * the start of a prompt without a seed.
   */
  readonly prior: Uint8Array | null;
  /**
   * If true, each token is hashed together with the next token, as for EAGLE speculative decoding.
   * The last token then has no position of its own.
   */
  readonly eagle?: boolean;
  /**
   * If true, also hashes a partial last page, as SGLang's KV events do. Storage keys cover full
   * pages only.
   */
  readonly partialLast?: boolean;
}

export interface SglangPage {
  /**
   * SHA-256 hash of 32 bytes. Written in lower-case hex, it is the page's key in SGLang's storage.
   */
  readonly digest: Uint8Array;
  /**
   * Number of hashed positions in the page: `pageTokens`, or fewer in a partial last page. A
   * position is a token, or a pair of adjacent tokens with EAGLE.
   */
  readonly positions: number;
}

/**
 * Encodes each token, or each pair of adjacent tokens with EAGLE, as u32 little-endian. `width` is
 * the bytes per position.
 */
function positionBytes(tokens: Uint32Array, eagle: boolean): { bytes: Uint8Array; width: number } {
  if (!eagle) {
    const into = new ByteWriter();
    for (const token of tokens) into.u32(token, true);
    return { bytes: into.done(), width: 4 };
  }
  const into = new ByteWriter();
  for (let i = 0; i + 1 < tokens.length; i++) into.u32(tokens[i], true).u32(tokens[i + 1], true);
  return { bytes: into.done(), width: 8 };
}

/**
 * Computes SGLang's hash of each page. Each hash covers the previous one: `SHA-256(previous digest,
 * if any ‖ tokens of the page)`.
 */
export function sglangPageHashes(chain: SglangChain): SglangPage[] {
  const { pageTokens, prior } = chain;
  assert(Number.isInteger(pageTokens) && pageTokens > 0, "a page of at least one token");
  assert(prior === null || prior.length === 32, "a prior digest of 32 bytes");
  const { bytes, width } = positionBytes(chain.tokens, chain.eagle ?? false);
  const pages: SglangPage[] = [];
  let digest = prior;
  for (let at = 0; at < bytes.length; at += pageTokens * width) {
    const page = bytes.subarray(at, at + pageTokens * width);
    const positions = page.length / width;
    if (positions < pageTokens && chain.partialLast !== true) break;
    digest = digest === null ? sha256(page) : sha256(digest, page);
    pages.push({ digest, positions });
  }
  return pages;
}

/** Start of the chain of storage keys. Empty text counts as none. Null if both are absent. */
export function sglangStorageSeed(
  extraKey: string | null,
  cacheSalt: string | null,
): Uint8Array | null {
  const parts = [extraKey, cacheSalt].map((text) => (text === "" ? null : text));
  if (parts.every((text) => text === null)) return null;
  const into = new ByteWriter().bytes(encoder.encode("sglang-cache-namespace-v1"));
  for (const text of parts) {
    if (text === null) {
      into.u8(0);
      continue;
    }
    const bytes = encoder.encode(text);
    into.u8(1).u64(BigInt(bytes.length), true).bytes(bytes);
  }
  return sha256(into.done());
}
