import type { WorkerId } from "../../core/index.ts";

/** Where a worker has a block: GPU memory, the RAM tier, the SSD tier. The fastest first. */
export const RESIDENCY_TIERS = ["device", "host", "disk"] as const;
export type ResidencyTier = (typeof RESIDENCY_TIERS)[number];

/**
 * Which blocks of a worker changed their place. A block is named by a 64-bit **sequence hash**: it
 * stands for the block and all blocks before it, so that equal hashes are equal prefixes. What it
 * is computed from is its `KeySpace`.
 *
 * `stored`: the hashes are consecutive blocks of one prefix; `parent` is the one before the first,
 * null where that is the first of a prompt. Whether a block is held never depends on its parent.
 * Storing what is stored, and removing what is not, changes nothing. `cleared`: nothing is left of
 * that tier; null: of any tier.
 */
export type ResidencyChange =
  | {
      readonly kind: "stored";
      readonly tier: ResidencyTier;
      readonly parent: bigint | null;
      readonly hashes: BigUint64Array;
      /** Of each block's own tokens (Dynamo's local hash); null where the tokens are not known. */
      readonly tokenHashes: BigUint64Array | null;
    }
  | { readonly kind: "removed"; readonly tier: ResidencyTier; readonly hashes: BigUint64Array }
  | { readonly kind: "cleared"; readonly tier: ResidencyTier | null };

/**
 * What sequence hashes are computed from.
 *
 * `tokens`: Dynamo's chain of XXH3 over the tokens, seeded by LoRA and salt: what engines' own
 * events lead to. `blocks`: the first eight bytes, little-endian, of the `BlockKey` (layer: all) of
 * Hearth's digest under that namespace: what an agent has below the GPU. Digests are those of the
 * tokens, or, with `chain`, of an engine's chain keys (`BlockChain`).
 */
export type KeySpace =
  | { readonly kind: "tokens"; readonly model: string; readonly blockTokens: number }
  | {
      readonly kind: "blocks";
      readonly model: string;
      readonly blockTokens: number;
      /** 32 bytes. */
      readonly namespaceKey: Uint8Array;
      readonly chain?: string;
    };

/** One run of one rank's publisher: a restart is another incarnation, with numbers from 1 again. */
export interface ResidencySource {
  readonly worker: WorkerId;
  /** Data parallel rank. */
  readonly rank: number;
  /** Later runs have larger ones; never 0. */
  readonly incarnation: bigint;
}

/** Changes with consecutive numbers: the first has `firstSequence`. */
export interface ResidencyBatch {
  readonly source: ResidencySource;
  /** From 1, without gaps within an incarnation. */
  readonly firstSequence: number;
  readonly changes: readonly ResidencyChange[];
}

/**
 * What a set of blocks comes to, whatever the order in which it was made: for comparing two
 * pictures of one worker without sending either. `mix` is the XOR of `mixHash` of each hash.
 */
export interface ResidencyDigest {
  readonly blocks: number;
  readonly mix: bigint;
}

/** What a publisher says regularly, also when nothing happens. */
export interface ResidencyHeartbeat {
  readonly source: ResidencySource;
  /** The latest number there is; 0 before the first change. */
  readonly lastSequence: number;
  /** `stream`: events are kept by the broker too, and a consumer may read them from there. */
  readonly mode: "ring" | "stream";
  readonly everyMs: number;
  readonly spaces: readonly KeySpace[];
  /** At `lastSequence`, in the order of RESIDENCY_TIERS. */
  readonly digests: readonly ResidencyDigest[];
  /** All that the device holds is told; false: an engine holds more than its agent has heard of. */
  readonly isDeviceKnown: boolean;
  /** It is the last one: the publisher ends. */
  readonly isClosing: boolean;
}

const MASK = (1n << 64n) - 1n;

/** The finaliser of MurmurHash3 (Austin Appleby, public domain), a bijection of 64 bits. */
export function mixHash(hash: bigint): bigint {
  let mixed = hash ^ (hash >> 33n);
  mixed = (mixed * 0xff51afd7ed558ccdn) & MASK;
  mixed ^= mixed >> 33n;
  mixed = (mixed * 0xc4ceb9fe1a85ec53n) & MASK;
  return mixed ^ (mixed >> 33n);
}

/**
 * A `ResidencyDigest` that follows a set as it changes. The same mix as `mixHash`, in halves of 32
 * bits: some 20 ns a hash, where 64-bit numbers take ten times as long.
 */
export class RunningDigest {
  #blocks = 0;
  #lo = 0;
  #hi = 0;

  /** The hash of these low and high words came into the set (1), or left it (-1). */
  count(lo: number, hi: number, by: 1 | -1): void {
    this.#blocks += by;
    let [low, high] = [lo ^ (hi >>> 1), hi];
    high = (highOf(low, FIRST_LO) + Math.imul(low, FIRST_HI) + Math.imul(high, FIRST_LO)) | 0;
    low = Math.imul(low, FIRST_LO);
    low ^= high >>> 1;
    high = (highOf(low, SECOND_LO) + Math.imul(low, SECOND_HI) + Math.imul(high, SECOND_LO)) | 0;
    low = Math.imul(low, SECOND_LO);
    low ^= high >>> 1;
    this.#lo ^= low;
    this.#hi ^= high;
  }

  clear(): void {
    this.#blocks = 0;
    this.#lo = 0;
    this.#hi = 0;
  }

  get blocks(): number {
    return this.#blocks;
  }

  get value(): ResidencyDigest {
    return { blocks: this.#blocks, mix: (BigInt(this.#hi >>> 0) << 32n) | BigInt(this.#lo >>> 0) };
  }
}

/** Those of `mixHash`, in words. */
const FIRST_LO = 0xed558ccd;
const FIRST_HI = 0xff51afd7;
const SECOND_LO = 0x1a85ec53;
const SECOND_HI = 0xc4ceb9fe;

/** The upper 32 bits of the product of two words, as a signed number. */
function highOf(a: number, b: number): number {
  const aLo = a & 0xffff;
  const aHi = a >>> 16;
  const bLo = b & 0xffff;
  const bHi = b >>> 16;
  const middle = (Math.imul(aHi, bLo) >>> 0) + ((Math.imul(aLo, bLo) >>> 0) >>> 16);
  const carried = (middle & 0xffff) + (Math.imul(aLo, bHi) >>> 0);
  return (Math.imul(aHi, bHi) + ((middle / 0x10000) | 0) + ((carried / 0x10000) | 0)) | 0;
}
