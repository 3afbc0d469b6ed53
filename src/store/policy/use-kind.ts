/**
 * Kinds of use: what is known of a request's blocks when the request is over, as far as it tells
 * when they will be used again. Levels are few and coarse: each is soon known by experience.
 */

/** Which part of its request's path a block was in. */
export const Part = {
  /** Up to the deepest block that was known before. */
  known: 0,
  /** What the request added. */
  fresh: 1,
  /** The last block: part full as a rule, and replaced by another when the prompt grows. */
  last: 2,
} as const;
export type Part = (typeof Part)[keyof typeof Part];

const PARTS = 3;
const TURNS = 4;
/** Powers of four: below 4, 16, 64, 256, 1024, and beyond. */
const SCALES = 6;
/** A conversation's first turn has no gap before it. */
const TURNS_AND_GAPS = 1 + (TURNS - 1) * SCALES;

export const KINDS: number = PARTS * TURNS_AND_GAPS * SCALES;

function scale(size: number): number {
  return size < 4 ? 0 : Math.min(SCALES - 1, (31 - Math.clz32(size)) >> 1);
}

/**
 * `turn`: how often the conversation has come back, at most 3; `gap`: requests since it was here;
 * `added`: blocks behind the deepest that was known.
 */
export function useKind(part: Part, turn: number, gap: number, added: number): number {
  const turnAndGap = turn === 0 ? 0 : 1 + (Math.min(turn, TURNS - 1) - 1) * SCALES + scale(gap);
  return (part * TURNS_AND_GAPS + turnAndGap) * SCALES + scale(added);
}

export function partOf(kind: number): Part {
  return Math.floor(kind / (TURNS_AND_GAPS * SCALES)) as Part;
}

export function turnOf(kind: number): number {
  const turnAndGap = Math.floor(kind / SCALES) % TURNS_AND_GAPS;
  return turnAndGap === 0 ? 0 : 1 + Math.floor((turnAndGap - 1) / SCALES);
}

function gapLevelOf(kind: number): number {
  const turnAndGap = Math.floor(kind / SCALES) % TURNS_AND_GAPS;
  return turnAndGap === 0 ? 0 : 1 + ((turnAndGap - 1) % SCALES);
}

/** Kinds whose returns are spread over time alike: by the gap before; last blocks by themselves. */
export const SHAPES = SCALES + 2;
export const SHAPE_OF: Uint8Array = Uint8Array.from({ length: KINDS }, (_, kind) =>
  partOf(kind) === Part.last ? SHAPES - 1 : gapLevelOf(kind),
);

/** Levels at most of one trait. */
export const LEVELS = 8;
/** What multiplies the chance of a return: for each trait, the level of each kind. */
export const TRAITS: readonly Uint8Array[] = [
  Uint8Array.from({ length: KINDS }, (_, kind) => turnOf(kind)),
  Uint8Array.from({ length: KINDS }, (_, kind) => kind % SCALES),
  Uint8Array.from({ length: KINDS }, (_, kind) => partOf(kind)),
];
