import { yieldToLoop } from "../../core/index.ts";
import {
  type VllmHashAlgorithm,
  vllmBlockHashes,
  vllmExternalHash,
  vllmNoneHash,
} from "../../identity/index.ts";
import type { Native } from "../../native/index.ts";
import { type BlockName, blockNameOf } from "./known-blocks.ts";

/** vLLM's default first. */
const ALGORITHMS: readonly VllmHashAlgorithm[] = ["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"];
/** Blocks that are hashed in one turn of the event loop. */
const SLICE_BLOCKS = 16;

export interface NamedPrompt {
  readonly tokens: Uint32Array;
  readonly blockTokens: number;
  readonly cacheSalt: string | null;
}

/**
 * Names that vLLM gives to the blocks of a prompt without LoRA and media, as far as it hashes them
 * with its default seed. Which algorithm an engine uses shows when a name is one that it used.
 */
export class PromptNames {
  readonly #native: Native;
  #algorithm: VllmHashAlgorithm | null = null;

  constructor(native: Native) {
    this.#native = native;
  }

  /** From the first block to the last that `isWanted`; none is: an empty list. */
  async find(
    prompt: NamedPrompt,
    isWanted: (name: BlockName) => boolean,
    signal: AbortSignal,
  ): Promise<readonly BlockName[]> {
    const algorithms = this.#algorithm === null ? ALGORITHMS : [this.#algorithm];
    for (const algorithm of algorithms) {
      const digests = await this.#digests(prompt, algorithm, signal);
      for (const nameOf of [vllmExternalHash, blockNameOf]) {
        const names = digests.map((digest) => nameOf(digest));
        const last = names.findLastIndex((name) => isWanted(name));
        if (last < 0) continue;
        this.#algorithm = algorithm;
        return names.slice(0, last + 1);
      }
    }
    return [];
  }

  async #digests(
    { tokens, blockTokens, cacheSalt }: NamedPrompt,
    algorithm: VllmHashAlgorithm,
    signal: AbortSignal,
  ): Promise<readonly Uint8Array[]> {
    const digests: Uint8Array[] = [];
    const step = SLICE_BLOCKS * blockTokens;
    for (let at = 0; at + blockTokens <= tokens.length && !signal.aborted; at += step) {
      const isFirst = at === 0;
      const slice = vllmBlockHashes(this.#native, {
        ...{ algorithm, blockTokens, tokens: tokens.subarray(at, at + step) },
        parent: digests.at(-1) ?? vllmNoneHash(this.#native, algorithm),
        extraKeys: (index) =>
          isFirst && index === 0 && cacheSalt ? [{ kind: "cache_salt", salt: cacheSalt }] : null,
      });
      digests.push(...slice);
      await yieldToLoop();
    }
    return digests;
  }
}
