/**
 * A set of whole numbers below a bound that knows its largest: a bit for each number, and above it,
 * level by level, a bit for each word that is not zero. Every operation touches at most six words.
 */
export interface Positions {
  add(position: number): void;
  remove(position: number): void;
  /** The largest; only of a set that is not empty. */
  last(): number;
}

export function createPositions(below: number): Positions {
  const levels: Uint32Array[] = [];
  for (let bits = Math.max(below, 1); levels.length === 0 || bits > 1; ) {
    const words = Math.ceil(bits / 32);
    levels.push(new Uint32Array(words));
    bits = words;
  }
  return {
    add(position) {
      let at = position;
      for (const words of levels) {
        const before = words[at >>> 5]!;
        words[at >>> 5] = before | (1 << (at & 31));
        if (before !== 0) return;
        at >>>= 5;
      }
    },
    remove(position) {
      let at = position;
      for (const words of levels) {
        const left = words[at >>> 5]! & ~(1 << (at & 31));
        words[at >>> 5] = left;
        if (left !== 0) return;
        at >>>= 5;
      }
    },
    last() {
      let at = 0;
      for (let level = levels.length - 1; level >= 0; level--)
        at = at * 32 + 31 - Math.clz32(levels[level]![at]!);
      return at;
    },
  };
}
