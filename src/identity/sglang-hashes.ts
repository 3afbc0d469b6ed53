import { asI64, assert, readU64BE } from "../core/index.ts";
import { ByteWriter } from "./byte-writer.ts";
import { sha256 } from "./sha256.ts";

const encoder = new TextEncoder();

export interface SglangChain {
  readonly tokens: Uint32Array;
  readonly pageTokens: number;
  /**
   * Digest of the page before the first of `tokens`, or a seed; null: the pages start a plain
   * prompt.
   */
  readonly prior: Uint8Array | null;
  /**
   * With EAGLE a position is a token and the one behind it, so the last token has none of its own.
   */
  readonly eagle?: boolean;
  /** Whether the last page may be short, as in KV events; storage keys are of full pages only. */
  readonly partialLast?: boolean;
}

export interface SglangPage {
  /** 32 bytes; as lower-case hex it is the page's storage key. */
  readonly digest: Uint8Array;
  /** Positions in the page: `pageTokens`, or fewer in a partial last one. */
  readonly positions: number;
}

/** Each token, or with EAGLE each pair, as u32 little endian. */
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

/** The chain of SGLang's page hashes: `SHA-256(prior digest if any ‖ each position)`. */
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

/** The number SGLang prints in its KV events: the first eight bytes, big endian, signed. */
export function sglangExternalHash(digest: Uint8Array): bigint {
  return asI64(readU64BE(digest));
}

/**
 * Where the chain of KV events starts for a salted request (from 0.5.18 on); an empty salt is none.
 */
export function sglangEventSeed(cacheSalt: string | null): Uint8Array | null {
  if (cacheSalt === null || cacheSalt === "") return null;
  return sha256(encoder.encode("sglang-cache-salt-v1\0"), encoder.encode(cacheSalt));
}

/**
 * Where the chain of storage keys starts; empty text is no text, and without any the chain is
 * plain.
 */
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
