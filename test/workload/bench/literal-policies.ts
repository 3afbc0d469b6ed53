import type { PolicyName } from "../../../src/workload/bench/policy/index.ts";

/** What the policies promise, written as plainly as it can be said, and as slowly. */

interface Entry {
  readonly block: number;
  readonly depth: number;
  readonly stored: number;
  used: number;
  uses: number;
}

/** `best` is `mostHits` below; `hearth` has no plainer description than itself. */
export type LiteralPolicy = Exclude<PolicyName, "best" | "hearth">;

type Prompts = readonly (readonly number[])[];
type Rank = (entry: Entry) => readonly number[];

/** The entry with the smallest rank goes. */
const RANKS: Readonly<Record<LiteralPolicy, Rank>> = {
  lru: ({ used }) => [used],
  "lru-head-first": ({ used }) => [used],
  fifo: ({ stored }) => [stored],
  lfu: ({ uses, used }) => [uses, used],
  "length-aware": ({ uses, depth, block }) => [uses, -depth, block],
};

function isBelow(a: readonly number[], b: readonly number[]): boolean {
  const at = a.findIndex((value, index) => value !== b[index]);
  return at >= 0 && a[at]! < b[at]!;
}

function leading(prompt: readonly number[], has: (block: number) => boolean): number {
  const miss = prompt.findIndex((block) => !has(block));
  return miss < 0 ? prompt.length : miss;
}

/** Blocks hit by a policy that looks back only. */
export function literalHits(policy: LiteralPolicy, capacity: number, prompts: Prompts): number {
  const rank = RANKS[policy];
  const cache = new Map<number, Entry>();
  let [hits, now] = [0, 0];
  for (const prompt of prompts) {
    hits += leading(prompt, (block) => cache.has(block));
    const places = [...prompt.keys()];
    for (const depth of policy === "lru-head-first" ? places : places.reverse()) {
      const block = prompt[depth]!;
      const known = cache.get(block);
      now++;
      if (known !== undefined) {
        known.used = now;
        known.uses++;
        continue;
      }
      if (cache.size === capacity) {
        const worst = [...cache.values()].reduce((a, b) => (isBelow(rank(b), rank(a)) ? b : a));
        cache.delete(worst.block);
      }
      cache.set(block, { block, depth, stored: now, used: now, uses: 1 });
    }
  }
  return hits;
}

/**
 * The most blocks that any cache could hit: every choice of what to keep after every request is
 * tried. Blocks must be few: a cache is a set of bits.
 */
export function mostHits(capacity: number, prompts: Prompts): number {
  let best = new Map<number, number>([[0, 0]]);
  for (const prompt of prompts) {
    const after = new Map<number, number>();
    for (const [cache, hits] of best) {
      const all = prompt.reduce((bits, block) => bits | (1 << block), cache);
      const total = hits + leading(prompt, (block) => (cache & (1 << block)) !== 0);
      for (let kept = all; ; kept = (kept - 1) & all) {
        if (bitCount(kept) <= capacity && (after.get(kept) ?? -1) < total) after.set(kept, total);
        if (kept === 0) break;
      }
    }
    best = after;
  }
  return Math.max(...best.values());
}

function bitCount(bits: number): number {
  return bits.toString(2).replaceAll("0", "").length;
}
