import { assert, DIGEST_BYTES } from "../../core/index.ts";

const WORDS = DIGEST_BYTES / 4;

/** The digests of a prompt's full blocks in one namespace, one after the other. */
export interface ChainDigests {
  readonly blockTokens: number;
  readonly digests: Uint8Array;
}

/**
 * A prompt's full blocks under the names that an agent knows them by. An agent has one namespace
 * for each shard of its model; blocks are counted in the first one, and named in all. A digest
 * stands for all before it, so two chains with equal blocks at one place are equal up to there.
 */
export class PromptChain {
  readonly blocks: number;
  readonly blockTokens: number;
  /** Chains of one group name equal prefixes alike. */
  readonly group: string;
  readonly #spaces: readonly ChainDigests[];
  readonly #words: Uint32Array;

  /** `spaces`: one at least; digests are kept, not copied. */
  constructor(group: string, spaces: readonly ChainDigests[]) {
    const first = spaces[0];
    assert(first !== undefined && first.digests.byteOffset % 4 === 0, "aligned digests");
    this.group = group;
    this.blockTokens = first.blockTokens;
    this.blocks = first.digests.length / DIGEST_BYTES;
    this.#spaces = spaces;
    const { buffer, byteOffset } = first.digests;
    this.#words = new Uint32Array(buffer, byteOffset, this.blocks * WORDS);
  }

  /** The first 32 bits of a block's digest. */
  lo(block: number): number {
    return this.#words[block * WORDS]!;
  }

  /** The 32 bits behind them. */
  hi(block: number): number {
    return this.#words[block * WORDS + 1]!;
  }

  has(block: number, lo: number, hi: number): boolean {
    return block < this.blocks && this.lo(block) === lo && this.hi(block) === hi;
  }

  /** How many leading blocks both have. */
  common(other: PromptChain): number {
    if (other.group !== this.group) return 0;
    let same = 0;
    let differs = Math.min(this.blocks, other.blocks);
    while (same < differs) {
      const middle = (same + differs) >>> 1;
      if (other.has(middle, this.lo(middle), this.hi(middle))) same = middle + 1;
      else differs = middle;
    }
    return same;
  }

  /** Names of the blocks [from, to), in all spaces; of those that lie wholly inside. */
  names(from: number, to: number): string[] {
    const names: string[] = [];
    for (const { blockTokens, digests } of this.#spaces) {
      const first = Math.ceil((from * this.blockTokens) / blockTokens);
      const end = Math.floor((to * this.blockTokens) / blockTokens);
      for (let block = first; block < end; block++) {
        const at = block * DIGEST_BYTES;
        if (at + DIGEST_BYTES > digests.length) break;
        names.push(digests.subarray(at, at + DIGEST_BYTES).toHex());
      }
    }
    return names;
  }

  /** Packed digests of the blocks [from, to) in the first space: a view. */
  digests(from: number, to: number): Uint8Array {
    return this.#spaces[0]!.digests.subarray(from * DIGEST_BYTES, to * DIGEST_BYTES);
  }
}
