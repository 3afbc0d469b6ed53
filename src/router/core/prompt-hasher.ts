import { LAYER_ALL } from "../../core/index.ts";
import { blockKeys, PromptDigests } from "../../identity/index.ts";
import { blocksOfTokens, keyHashes, type Native, sequenceHashes } from "../../native/index.ts";

/** Sequence hashes of a prompt's full blocks, in either key space; the arrays are the caller's. */
export interface PromptHasher {
  tokens(tokens: Uint32Array, blockTokens: number, salt: bigint): BigUint64Array;
  blocks(tokens: Uint32Array, blockTokens: number, namespaceKey: Uint8Array): BigUint64Array;
  /**
   * Of namespaces whose blocks are named by chain keys: for each namespace its hashes, or null if
   * the chain is not known. Chain keys are computed once for all of them.
   */
  chained(
    tokens: Uint32Array,
    blockTokens: number,
    cacheSalt: string | undefined,
  ): (namespaceKey: Uint8Array, chain: string) => BigUint64Array | null;
}

const KEY_BYTES = 32;

const SEED = 1_337n;

/** Seed of a block's own hash, as Dynamo has it: LoRA and salt make other prefixes of one text. */
export function tokenSalt(loraName: string | undefined, cacheSalt: string | undefined): bigint {
  const lora = loraName ? Bun.hash.xxHash3(loraName, 0n) : 0n;
  const salt = cacheSalt ? Bun.hash.xxHash3(cacheSalt, 1n) : 0n;
  return BigInt.asUintN(64, SEED + lora + salt);
}

export function createPromptHasher(native: Native): PromptHasher {
  let local = new BigUint64Array(1_024);
  return {
    tokens(tokens, blockTokens, salt) {
      const hashing = { blockTokens, seed: salt };
      const sequence = new BigUint64Array(blocksOfTokens(tokens.length, hashing));
      if (local.length < sequence.length) local = new BigUint64Array(sequence.length * 2);
      sequenceHashes(native, tokens, hashing, { local, sequence });
      return sequence;
    },
    blocks(tokens, blockTokens, namespaceKey) {
      const hashes = new BigUint64Array(Math.floor(tokens.length / blockTokens));
      keyHashes(native, namespaceKey, tokens, blockTokens, hashes);
      return hashes;
    },
    chained(tokens, blockTokens, cacheSalt) {
      const prompt = new PromptDigests(native, { tokens, blockTokens, cacheSalt });
      return (namespaceKey, chain) => {
        const digests = prompt.in(namespaceKey, chain);
        return digests === null ? null : firstWords(blockKeys(native, digests, LAYER_ALL));
      };
    },
  };
}

/** The first eight bytes of each key, little endian. */
function firstWords(keys: Uint8Array): BigUint64Array {
  const view = new DataView(keys.buffer, keys.byteOffset, keys.byteLength);
  return BigUint64Array.from({ length: keys.length / KEY_BYTES }, (_, i) =>
    view.getBigUint64(i * KEY_BYTES, true),
  );
}
