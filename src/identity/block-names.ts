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
 * Describes how the chain keys of a namespace are computed from tokens, in the text form that
 * agents publish: `vllm ALGORITHM FORMAT SEED` or `sglang`.
 */
export type BlockChain = string;

/** The entry of a manifest's `extra` that names the kind of chain keys. */
const KEYS = "keys";
const VLLM_KEYS = "vllm-chain";
const SGLANG_KEYS = "sglang-pages";
const VLLM_CHAIN = /^vllm (sha256|sha256_cbor|xxhash|xxhash_cbor) (tagged|untagged) (.{0,256})$/s;

/**
 * Null: the blocks are named by digests of tokens, or by keys that cannot be computed from tokens.
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
 * Longer blocks and salts are not hashed, because `encodePickle` rejects pickles of 64 KiB or more.
 */
const BLOCK_TOKENS_MAX = 8_192;
const SALT_CHARACTERS_MAX = 4_096;

interface ChainPrompt {
  readonly tokens: Uint32Array;
  readonly blockTokens: number;
  /** Empty or absent: no salt. */
  readonly cacheSalt?: string | undefined;
}

/** Chain keys of a prompt's full blocks, packed. */
interface ChainKeys {
  readonly keys: Uint8Array;
  readonly keyBytes: 16 | 32;
}

/**
 * Digests of a prompt's full blocks in several namespaces. Chain keys are computed once and shared
 * by all namespaces. Without a `chain` the digests are those of the tokens.
 */
export class PromptDigests {
  readonly #hashing: Hashing;
  readonly #prompt: ChainPrompt;
  readonly #keys = new Map<BlockChain, ChainKeys | null>();

  constructor(hashing: Hashing, prompt: ChainPrompt) {
    [this.#hashing, this.#prompt] = [hashing, prompt];
  }

  /** Null if the chain is unknown, or if the salt is part of the namespace instead of the keys. */
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
