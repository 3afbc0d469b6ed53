/** Literal models of the simulated policies: as plain as possible, and slow. */

type Prompts = readonly (readonly number[])[];
function leading(prompt: readonly number[], has: (block: number) => boolean): number {
  const miss = prompt.findIndex((block) => !has(block));
  return miss < 0 ? prompt.length : miss;
}

/** Blocks hit by an LRU cache that uses each prompt from its last block to its first. */
export function lruHits(capacity: number, prompts: Prompts): number {
  const usedAt = new Map<number, number>();
  let [hits, now] = [0, 0];
  for (const prompt of prompts) {
    hits += leading(prompt, (block) => usedAt.has(block));
    for (const block of prompt.toReversed()) {
      if (!usedAt.has(block) && usedAt.size === capacity) {
        const [oldest] = [...usedAt].reduce((a, b) => (b[1] < a[1] ? b : a));
        usedAt.delete(oldest);
      }
      usedAt.set(block, ++now);
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
