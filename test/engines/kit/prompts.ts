import { type Random, randomBelow, seededRandom } from "../../../src/core/index.ts";
import { BLOCK_TOKENS } from "./model.ts";

/** Token ids below this are special tokens of the tokenizer. */
const FIRST_TOKEN = 16;

/** Prompts of one seed. Equal seeds give equal prompts. */
export class Prompts {
  readonly #random: Random;
  readonly #vocabulary: number;

  constructor(seed: number, vocabulary: number) {
    this.#random = seededRandom(seed);
    this.#vocabulary = vocabulary;
  }

  /** A whole number, `min` ≤ number ≤ `max`. */
  between(min: number, max: number): number {
    return min + randomBelow(this.#random, max - min + 1);
  }

  tokens(count: number): number[] {
    return Array.from({ length: count }, () => this.between(FIRST_TOKEN, this.#vocabulary - 1));
  }

  pick<T>(items: readonly T[]): T {
    return items[this.between(0, items.length - 1)]!;
  }

  shuffle<T>(items: readonly T[]): T[] {
    const order = [...items];
    for (let at = order.length - 1; at > 0; at--) {
      const other = this.between(0, at);
      [order[at], order[other]] = [order[other]!, order[at]!];
    }
    return order;
  }

  /**
   * Prompts of `min` to `max` tokens with mixed shared prefixes: a third starts with one of a few
   * system prompts, a third continues an earlier prompt, a third shares nothing.
   */
  mixed(count: number, min: number, max: number): number[][] {
    const length = () => Math.round(min * (max / min) ** (randomBelow(this.#random, 1_000) / 999));
    const systems = Array.from({ length: 6 }, () => this.tokens(this.between(min, max / 3)));
    const prompts: number[][] = [];
    for (let index = 0; index < count; index++) {
      const kind = index % 3;
      const base =
        kind === 0
          ? this.pick(systems)
          : kind === 1 && prompts.length > 0
            ? this.pick(prompts)
            : [];
      const kept = base.slice(0, Math.min(base.length, max - 16));
      const wanted = Math.max(kept.length + 16, Math.min(length(), max));
      prompts.push([...kept, ...this.tokens(Math.min(wanted, max) - kept.length)]);
    }
    return prompts;
  }
}

/**
 * Full blocks of a prompt that a cache can serve: an engine computes the last token in any case.
 */
export function servableBlocks(prompt: readonly number[]): number {
  return Math.floor((prompt.length - 1) / BLOCK_TOKENS);
}

/** Distinct servable blocks of all prompts: blocks with equal tokens and equal prefixes are one. */
export function distinctBlocks(prompts: readonly (readonly number[])[]): number {
  const seen = new Set<string>();
  for (const prompt of prompts) {
    let chain = 0n;
    for (let block = 0; block < servableBlocks(prompt); block++) {
      const tokens = prompt.slice(block * BLOCK_TOKENS, (block + 1) * BLOCK_TOKENS);
      chain = Bun.hash.xxHash64(tokens.join(","), chain);
      seen.add(`${block}:${chain}`);
    }
  }
  return seen.size;
}
