/**
 * A stretch is what one request last used of one part of its path: its blocks share time and kind,
 * and only the deepest resident one of them can go next. So whatever is decided is decided for
 * stretches, of which there are far fewer than blocks.
 */
export class Stretches {
  /** When its blocks were last used. */
  readonly tick: Uint32Array;
  readonly kind: Uint16Array;
  /** Its blocks that are resident. */
  readonly blocks: Uint32Array;
  /** Its blocks that were evicted since, at most 65535. */
  readonly gone: Uint16Array;
  /** Blocks it had at first, in half octaves. */
  readonly size: Uint8Array;
  /** First of its blocks that could go next, 0 = none. */
  readonly leaf: Uint32Array;
  /** All stretches are below. */
  end = 1;
  readonly #marks: Uint8Array;
  readonly #free: number[] = [];
  /** The one opened last of each part. */
  readonly #newest: Record<Part, number> = { [Part.known]: 0, [Part.fresh]: 0, [Part.last]: 0 };

  constructor(max: number) {
    const length = max + 1;
    this.tick = new Uint32Array(length);
    this.kind = new Uint16Array(length);
    this.blocks = new Uint32Array(length);
    this.gone = new Uint16Array(length);
    this.size = new Uint8Array(length);
    this.leaf = new Uint32Array(length);
    this.#marks = new Uint8Array(length);
  }

  get bytes(): number {
    const { tick, kind, blocks, gone, size, leaf } = this;
    const arrays = [tick, kind, blocks, gone, size, leaf, this.#marks];
    return arrays.reduce((sum, array) => sum + array.byteLength, 0);
  }

  isOpen(stretch: number): boolean {
    return (this.#marks[stretch]! & OPEN) !== 0;
  }

  isQueued(stretch: number): boolean {
    return (this.#marks[stretch]! & QUEUED) !== 0;
  }

  /**
   * A new stretch; where all are in use, the youngest of the same part, whose time and kind it then
   * shares: that costs precision, never correctness.
   */
  open(kind: number, tick: number): number {
    const part = partOf(kind);
    const stretch = this.#free.pop() ?? this.#unused() ?? this.#shared(part);
    if (!this.isOpen(stretch)) {
      this.#marks[stretch] = OPEN;
      this.blocks[stretch] = 0;
      this.gone[stretch] = 0;
      this.size[stretch] = 0;
      this.leaf[stretch] = 0;
    }
    this.tick[stretch] = tick;
    this.kind[stretch] = kind;
    this.#newest[part] = stretch;
    return stretch;
  }

  /** The earliest time of any that has a leaf, or `now`. */
  eldest(now: number): number {
    const { tick, leaf, end } = this;
    let eldest = now;
    for (let at = 1; at < end; at++) if (leaf[at] !== 0 && tick[at]! < eldest) eldest = tick[at]!;
    return eldest;
  }

  #unused(): number | undefined {
    return this.end < this.tick.length ? this.end++ : undefined;
  }

  #shared(part: Part): number {
    const own = this.#newest[part];
    if (this.isOpen(own)) return own;
    for (let stretch = 1; stretch < this.end; stretch++) if (this.isOpen(stretch)) return stretch;
    return 1;
  }

  /** It has no block left. While it is queued, nobody gets it. */
  close(stretch: number): void {
    this.#marks[stretch] = this.#marks[stretch]! & ~OPEN;
    if (this.#marks[stretch] === 0) this.#free.push(stretch);
  }

  setQueued(stretch: number, queued: boolean): void {
    if (queued) this.#marks[stretch] = this.#marks[stretch]! | QUEUED;
    else {
      this.#marks[stretch] = this.#marks[stretch]! & ~QUEUED;
      if (this.#marks[stretch] === 0) this.#free.push(stretch);
    }
  }

  /** It has all the blocks it will have. */
  seal(stretch: number, kind: number): void {
    this.kind[stretch] = kind;
    const blocks = this.blocks[stretch]!;
    this.size[stretch] = blocks < 2 ? 0 : Math.round(2 * Math.log2(blocks));
  }
}

const OPEN = 1;
const QUEUED = 2;

/**
 * What one block counts for as experience. Blocks of a stretch return together, so n of them are
 * more than one observation and less than n: their square root.
 */
export const WEIGHT_OF_SIZE: Float64Array = Float64Array.from(
  { length: 64 },
  (_, size) => 2 ** (-size / 4),
);

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
