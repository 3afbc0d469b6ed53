import { type Random, randomBelow } from "../../src/core/index.ts";

/** Names of prefixes that branch: prompts that share their beginnings, as conversations do. */
export class Chains {
  readonly #random: Random;
  readonly #chains: bigint[][] = [];

  constructor(random: Random, count: number, blocksMax: number) {
    this.#random = random;
    for (let made = 0; made < count; made++) {
      const from = made === 0 ? [] : this.#chains[randomBelow(random, made)]!;
      const chain = from.slice(0, randomBelow(random, from.length + 1));
      const length = 1 + randomBelow(random, blocksMax);
      while (chain.length < length) chain.push(this.#hash());
      this.#chains.push(chain);
    }
  }

  #hash(): bigint {
    return (BigInt(this.#random.u32()) << 32n) | BigInt(this.#random.u32());
  }

  any(): readonly bigint[] {
    return this.#chains[randomBelow(this.#random, this.#chains.length)]!;
  }

  /** Consecutive blocks of one of them, with the block before. */
  piece(): { readonly parent: bigint | null; readonly hashes: BigUint64Array } {
    const chain = this.any();
    const from = randomBelow(this.#random, chain.length);
    const count = 1 + randomBelow(this.#random, chain.length - from);
    const hashes = new BigUint64Array(chain.slice(from, from + count));
    return { parent: from === 0 ? null : chain[from - 1]!, hashes };
  }

  /** A prompt that begins as one of them and may go on with blocks that nobody knows. */
  prompt(): readonly bigint[] {
    const chain = this.any();
    const known = chain.slice(0, randomBelow(this.#random, chain.length + 1));
    const more = randomBelow(this.#random, 4);
    return [...known, ...Array.from({ length: more }, () => this.#hash())];
  }
}
