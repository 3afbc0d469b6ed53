import { DIGEST_BYTES, type Digest } from "../core/index.ts";
import { digestAt, digestsOfPrompt } from "./digests.ts";
import type { Hashing } from "./hashing.ts";
import { type SglangChain, sglangExternalHash, sglangPageHashes } from "./sglang-hashes.ts";
import { type VllmChain, vllmBlockHashes, vllmExternalHash } from "./vllm-hashes.ts";

/** A block's name in an engine: the whole digest, and the number its KV events carry. */
export interface EngineName {
  readonly digest: Uint8Array;
  /** vLLM: u64 of the last eight bytes. SGLang: i64 of the first eight. */
  readonly external: bigint;
}

/** All names of one full block of a prompt. */
export interface BlockNames {
  /** Tokens from the start of the prompt to the end of the block. */
  readonly endToken: number;
  readonly digest: Digest;
  /**
   * Null where no chain was asked for, or where it does not reach this block (EAGLE's last token).
   */
  readonly vllm: EngineName | null;
  readonly sglang: EngineName | null;
}

export interface NamesRequest {
  readonly namespaceKey: Uint8Array;
  readonly tokens: Uint32Array;
  readonly blockTokens: number;
  readonly vllm?: Pick<VllmChain, "algorithm" | "parent" | "extraKeys" | "keyFormat">;
  readonly sglang?: Pick<SglangChain, "prior" | "eagle">;
}

/**
 * Tokens lead to engine hashes: one row for each full block, with its digest and what vLLM and
 * SGLang call it. A table of aliases built from these rows leads back.
 */
export function namesOfPrompt(hashing: Hashing, request: NamesRequest): BlockNames[] {
  const { namespaceKey, tokens, blockTokens } = request;
  const digests = digestsOfPrompt(hashing, namespaceKey, tokens, blockTokens);
  const vllm =
    request.vllm === undefined
      ? []
      : vllmBlockHashes(hashing, { ...request.vllm, tokens, blockTokens });
  const sglang =
    request.sglang === undefined
      ? []
      : sglangPageHashes({ ...request.sglang, tokens, pageTokens: blockTokens });
  return Array.from({ length: digests.length / DIGEST_BYTES }, (_, index) => ({
    endToken: (index + 1) * blockTokens,
    digest: digestAt(digests, index),
    vllm: nameOf(vllm[index], vllmExternalHash),
    sglang: nameOf(sglang[index]?.digest, sglangExternalHash),
  }));
}

function nameOf(
  digest: Uint8Array | undefined,
  external: (digest: Uint8Array) => bigint,
): EngineName | null {
  return digest === undefined ? null : { digest, external: external(digest) };
}
