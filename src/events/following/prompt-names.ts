import { yieldToLoop } from "../../core/index.ts";
import {
  VLLM_DEFAULT_SEED,
  type VllmHashAlgorithm,
  vllmBlockHashes,
  vllmExternalHash,
  vllmNoneHash,
} from "../../identity/index.ts";
import type { Native } from "../../native/index.ts";
import { type BlockName, blockNameOf } from "./known-blocks.ts";

/** vLLM's default first. */
const ALGORITHMS: readonly VllmHashAlgorithm[] = ["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"];
/** Where the seed is not configured: vLLM's own, and the one that most set PYTHONHASHSEED to. */
const SEEDS = [VLLM_DEFAULT_SEED, "0"];
/** Blocks that are hashed in one turn of the event loop. */
const SLICE_BLOCKS = 16;

export interface NamedPrompt {
  readonly tokens: Uint32Array;
  readonly blockTokens: number;
  readonly cacheSalt: string | null;
}

interface VllmHashing {
  readonly algorithm: VllmHashAlgorithm;
  readonly seed: string;
}

/**
 * Names that vLLM gives to the blocks of a prompt without LoRA and media. Which algorithm and seed
 * an engine uses shows when a name is one that it used. Names under a seed that is neither
 * configured nor among the usual ones stay unknown.
 */
export class PromptNames {
  readonly #native: Native;
  #hashings: readonly VllmHashing[];

  /** `seed`: PYTHONHASHSEED of the engine; null: not known. */
  constructor(native: Native, seed: string | null = null) {
    this.#native = native;
    const seeds = seed === null ? SEEDS : [seed];
    this.#hashings = seeds.flatMap((one) =>
      ALGORITHMS.map((algorithm) => ({ algorithm, seed: one })),
    );
  }

  /** From the first block to the last that `isWanted`; none is: an empty list. */
  async find(
    prompt: NamedPrompt,
    isWanted: (name: BlockName) => boolean,
    signal: AbortSignal,
  ): Promise<readonly BlockName[]> {
    for (const hashing of this.#hashings) {
      const digests = await this.#digests(prompt, hashing, signal);
      for (const nameOf of [vllmExternalHash, blockNameOf]) {
        const names = digests.map((digest) => nameOf(digest));
        const last = names.findLastIndex((name) => isWanted(name));
        if (last < 0) continue;
        this.#hashings = [hashing];
        return names.slice(0, last + 1);
      }
    }
    return [];
  }

  async #digests(
    { tokens, blockTokens, cacheSalt }: NamedPrompt,
    { algorithm, seed }: VllmHashing,
    signal: AbortSignal,
  ): Promise<readonly Uint8Array[]> {
    const digests: Uint8Array[] = [];
    const step = SLICE_BLOCKS * blockTokens;
    for (let at = 0; at + blockTokens <= tokens.length && !signal.aborted; at += step) {
      const isFirst = at === 0;
      const slice = vllmBlockHashes(this.#native, {
        ...{ algorithm, blockTokens, tokens: tokens.subarray(at, at + step) },
        parent: digests.at(-1) ?? vllmNoneHash(this.#native, algorithm, seed),
        extraKeys: (index) =>
          isFirst && index === 0 && cacheSalt ? [{ kind: "cache_salt", salt: cacheSalt }] : null,
      });
      digests.push(...slice);
      await yieldToLoop();
    }
    return digests;
  }
}
