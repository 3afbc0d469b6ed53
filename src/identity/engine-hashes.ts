import { assert, readU64BE } from "../core/index.ts";
import type { Hashing } from "./digests.ts";
import { ByteWriter, encodeCbor, encodePickle, type HashInput } from "./hash-encodings.ts";

const encoder = new TextEncoder();

/** SHA-256 of the concatenated parts: 32 bytes. */
function sha256(...parts: readonly Uint8Array[]): Uint8Array {
  const hasher = new Bun.CryptoHasher("sha256");
  for (const part of parts) hasher.update(part);
  return new Uint8Array(hasher.digest());
}

/** Values of vLLM's `--prefix-caching-hash-algo`. vLLM's default is `sha256`. */
export type VllmHashAlgorithm = "sha256" | "sha256_cbor" | "xxhash" | "xxhash_cbor";

/** Seed of NONE_HASH if PYTHONHASHSEED is not set (SHA-256 kinds, vLLM from 2026-08 on). */
export const VLLM_DEFAULT_SEED = "vllm-none-hash";

/** One extra key of a block. Order in vLLM: LoRA, multimodal items, cache salt, embeddings. */
export type VllmExtraKey =
  /** Present in every block. Untagged form: the name alone. */
  | { readonly kind: "lora"; readonly name: string; readonly path: string }
  /**
   * One per multimodal item in the block. `offset`: position relative to the start of the block.
   */
  | { readonly kind: "mm"; readonly identifier: string; readonly offset: number }
  /** Present in block 0 only. */
  | { readonly kind: "cache_salt"; readonly salt: string }
  /** SHA-256 of the block's prompt embeddings. */
  | { readonly kind: "prompt_embeds"; readonly digest: Uint8Array };

/**
 * Form of the extra keys in a hash. `tagged`: `("cache_salt", "tenant-a")`, vLLM 0.32 and later.
 * `untagged`: `"tenant-a"`, earlier releases. KV events use the untagged form in both.
 */
export type VllmKeyFormat = "tagged" | "untagged";

/** The first release with tagged keys. */
const TAGGED_SINCE = [0, 32] as const;

/** The format for a version as the engine reports it: "0.32.0", "0.31.1rc2", "v0.33.0+cpu". */
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
 * Parent of the first block (NONE_HASH): the hash of the seed, which is PYTHONHASHSEED as text or
 * `VLLM_DEFAULT_SEED`. If vLLM uses random bytes instead, those are the NONE_HASH.
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
  /** Extra keys of block `index`, counted from the first of `tokens`. Null or empty: none. */
  readonly extraKeys?: (index: number) => readonly VllmExtraKey[] | null;
  /** Default: `tagged`. */
  readonly keyFormat?: VllmKeyFormat;
}

/** vLLM's tags are constants of its program, so every occurrence is the same Python object. */
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
 * vLLM's chain of block hashes, one per full block: `hash[i] = H((hash[i-1], (t0, t1, …),
 * extra_keys or None))`.
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

/** The number in vLLM's KV events: the last eight bytes, big-endian, unsigned. */
export function vllmExternalHash(digest: Uint8Array): bigint {
  return readU64BE(digest, digest.length - 8);
}

export interface SglangChain {
  readonly tokens: Uint32Array;
  readonly pageTokens: number;
  /**
   * Digest of the page before the first of `tokens`, or a seed. Null: the start of a prompt without
   * a seed.
   */
  readonly prior: Uint8Array | null;
  /** With EAGLE a position is a token and its successor, so that the last token has no position. */
  readonly eagle?: boolean;
  /**
   * Whether to include a partial last page, as KV events do. Storage keys cover full pages only.
   */
  readonly partialLast?: boolean;
}

export interface SglangPage {
  /** 32 bytes. In lower-case hex it is the page's storage key. */
  readonly digest: Uint8Array;
  /** Positions in the page: `pageTokens`, or fewer in a partial last page. */
  readonly positions: number;
}

/** Each token, or each pair with EAGLE, as u32 little-endian. */
function positionBytes(tokens: Uint32Array, eagle: boolean): { bytes: Uint8Array; width: number } {
  if (!eagle) {
    const into = new ByteWriter();
    for (const token of tokens) into.u32(token, true);
    return { bytes: into.done(), width: 4 };
  }
  const into = new ByteWriter();
  for (let i = 0; i + 1 < tokens.length; i++) into.u32(tokens[i]!, true).u32(tokens[i + 1]!, true);
  return { bytes: into.done(), width: 8 };
}

/** SGLang's chain of page hashes: `SHA-256(prior digest, if any ‖ each position)`. */
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
