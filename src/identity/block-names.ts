import {
  digestsOfChainKeys,
  digestsOfPrompt,
  type Hashing,
  type PackedDigests,
} from "./digests.ts";
import {
  sglangPageHashes,
  sglangStorageSeed,
  type VllmHashAlgorithm,
  type VllmKeyFormat,
  vllmBlockHashes,
  vllmDigestBytes,
  vllmKeyFormatOf,
  vllmNoneHash,
} from "./engine-hashes.ts";
import type { NamespaceManifest } from "./manifest.ts";

/**
 * Describes how an engine computes the block keys of a namespace from tokens. Agents publish this
 * text: `vllm ALGORITHM FORMAT SEED`, or `sglang`.
 */
export type BlockChain = string;

/** Key in a manifest's `extra`. Its value says how the engine computes its block keys. */
const KEYS = "keys";
const VLLM_KEYS = "vllm-chain";
const SGLANG_KEYS = "sglang-pages";
const VLLM_CHAIN = /^vllm (sha256|sha256_cbor|xxhash|xxhash_cbor) (tagged|untagged) (.{0,256})$/s;

/**
 * Returns how the block keys of a namespace are computed. Null if its blocks are named by digests
 * of tokens, or by keys that cannot be computed from tokens.
 */
export function blockChainOf({ extra, layout }: NamespaceManifest): BlockChain | null {
  if (extra[KEYS] === SGLANG_KEYS) return "sglang";
  if (extra[KEYS] !== VLLM_KEYS) return null;
  const hash = extra.hash ?? "";
  const at = hash.indexOf(":");
  // The layout is `vllm:RELEASE:…`.
  const format = vllmKeyFormatOf(layout.split(":")[1] ?? "");
  const chain = `vllm ${hash.slice(0, at)} ${format} ${hash.slice(at + 1)}`;
  return at > 0 && VLLM_CHAIN.test(chain) ? chain : null;
}

/**
 * Limits on one block and on a salt. `PromptDigests` hashes nothing above them, because
 * `encodePickle` rejects pickles of 64 KiB or more.
 */
const BLOCK_TOKENS_MAX = 8_192;
const SALT_CHARACTERS_MAX = 4_096;

interface ChainPrompt {
  readonly tokens: Uint32Array;
  readonly blockTokens: number;
  /** Empty or absent if the prompt has no salt. */
  readonly cacheSalt?: string | undefined;
}

/** Keys that an engine computes for a prompt's full blocks, concatenated. */
interface ChainKeys {
  readonly keys: Uint8Array;
  readonly keyBytes: 16 | 32;
}

/**
 * Computes digests of a prompt's full blocks for several namespaces. An engine's keys are computed
 * once and used for all namespaces.
 */
export class PromptDigests {
  readonly #hashing: Hashing;
  readonly #prompt: ChainPrompt;
  readonly #keys = new Map<BlockChain, ChainKeys | null>();

  constructor(hashing: Hashing, prompt: ChainPrompt) {
    [this.#hashing, this.#prompt] = [hashing, prompt];
  }

  /**
   * Returns the digests of the prompt's blocks in one namespace. With `chain`, they are derived
   * from the engine's block keys; without, from the tokens. Null if the chain is unknown, if the
   * block or salt is too long, or if the prompt has a salt but no `chain`: the salt is then part of
   * the namespace.
   */
  in(namespaceKey: Uint8Array, chain: BlockChain | null = null): PackedDigests | null {
    const { tokens, blockTokens, cacheSalt } = this.#prompt;
    if (chain === null) {
      if (cacheSalt) return null;
      return digestsOfPrompt(this.#hashing, namespaceKey, tokens, blockTokens);
    }
    let known = this.#keys.get(chain);
    if (known === undefined) {
      known = chainKeysOf(this.#hashing, chain, this.#prompt);
      this.#keys.set(chain, known);
    }
    if (known === null) return null;
    return digestsOfChainKeys(this.#hashing, namespaceKey, known.keys, known.keyBytes);
  }
}

function chainKeysOf(hashing: Hashing, chain: BlockChain, prompt: ChainPrompt): ChainKeys | null {
  const { tokens, blockTokens, cacheSalt } = prompt;
  if ((cacheSalt?.length ?? 0) > SALT_CHARACTERS_MAX) return null;
  if (chain === "sglang") {
    const prior = sglangStorageSeed(null, cacheSalt ?? null);
    const full = tokens.subarray(0, tokens.length - (tokens.length % blockTokens));
    const pages = sglangPageHashes({ tokens: full, pageTokens: blockTokens, prior });
    return { keys: packed(pages.map(({ digest }) => digest)), keyBytes: 32 };
  }
  const match = VLLM_CHAIN.exec(chain);
  if (match === null || blockTokens > BLOCK_TOKENS_MAX) return null;
  const algorithm = match[1] as VllmHashAlgorithm;
  const hashes = vllmBlockHashes(hashing, {
    algorithm,
    tokens,
    blockTokens,
    keyFormat: match[2] as VllmKeyFormat,
    parent: vllmNoneHash(hashing, algorithm, match[3]),
    extraKeys: (index) =>
      index === 0 && cacheSalt ? [{ kind: "cache_salt", salt: cacheSalt }] : null,
  });
  return { keys: packed(hashes), keyBytes: vllmDigestBytes(algorithm) };
}

function packed(keys: readonly Uint8Array[]): Uint8Array {
  return new Uint8Array(Buffer.concat(keys));
}
