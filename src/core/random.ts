/** Chance as a parameter. */
export interface Random {
  /** A whole number in [0, 2^32). */
  u32(): number;
}

export const systemRandom: Random = {
  u32() {
    const word = new Uint32Array(1);
    crypto.getRandomValues(word);
    return word[0]!;
  },
};

/**
 * The same numbers for the same seed: mulberry32 (Tommy Ettinger, public domain), enough for tests,
 * jitter and simulations, not for secrets.
 */
export function seededRandom(seed: number): Random {
  let state = seed >>> 0;
  return {
    u32() {
      state = (state + 0x6d2b79f5) >>> 0;
      let mixed = Math.imul(state ^ (state >>> 15), state | 1);
      mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
      return (mixed ^ (mixed >>> 14)) >>> 0;
    },
  };
}

/** A whole number in [0, below). */
export function randomBelow(random: Random, below: number): number {
  return Math.floor((random.u32() / 2 ** 32) * below);
}
