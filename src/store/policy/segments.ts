/**
 * Segments of request paths. A segment contains the blocks of a path that were last used by one
 * request in the same part of it. Its blocks share time and kind of use, and only its deepest
 * resident block can be evicted. The order therefore decides per segment; there are far fewer
 * segments than blocks.
 */
export class Segments {
  /** Per segment: request number of the last use of its blocks. */
  readonly tick: Uint32Array;
  readonly kind: Uint16Array;
  /** Per segment: number of its resident blocks. */
  readonly blocks: Uint32Array;
  /** Per segment: number of its blocks evicted since it was opened, at most 65,535. */
  readonly gone: Uint16Array;
  /** Per segment: number of its blocks when it was complete, in half octaves. */
  readonly size: Uint8Array;
  /** Per segment: first block in its list of leaves; 0 for none. */
  readonly leaf: Uint32Array;
  /** One more than the highest segment number in use. */
  end = 1;
  readonly #marks: Uint8Array;
  readonly #free: number[] = [];
  /** The segment of each part that was opened last. */
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

  isOpen(segment: number): boolean {
    return (this.#marks[segment] & OPEN) !== 0;
  }

  isQueued(segment: number): boolean {
    return (this.#marks[segment] & QUEUED) !== 0;
  }

  /**
   * Opens a segment and returns its number. If all are in use, returns the latest segment of the
   * same part, whose time and kind its blocks then share: that makes decisions less precise, but
   * not wrong.
   */
  open(kind: number, tick: number): number {
    const part = partOf(kind);
    const segment = this.#free.pop() ?? this.#unused() ?? this.#shared(part);
    if (!this.isOpen(segment)) {
      this.#marks[segment] = OPEN;
      this.blocks[segment] = 0;
      this.gone[segment] = 0;
      this.size[segment] = 0;
      this.leaf[segment] = 0;
    }
    this.tick[segment] = tick;
    this.kind[segment] = kind;
    this.#newest[part] = segment;
    return segment;
  }

  /**
   * Returns the earliest time of last use among the segments with a leaf; `now` if there is none.
   */
  eldest(now: number): number {
    const { tick, leaf, end } = this;
    let eldest = now;
    for (let at = 1; at < end; at++) if (leaf[at] !== 0 && tick[at] < eldest) eldest = tick[at];
    return eldest;
  }

  #unused(): number | undefined {
    return this.end < this.tick.length ? this.end++ : undefined;
  }

  #shared(part: Part): number {
    const own = this.#newest[part];
    if (this.isOpen(own)) return own;
    for (let segment = 1; segment < this.end; segment++) if (this.isOpen(segment)) return segment;
    return 1;
  }

  /** Closes a segment that has no blocks left. Its number is not reused while it is queued. */
  close(segment: number): void {
    this.#marks[segment] = this.#marks[segment] & ~OPEN;
    if (this.#marks[segment] === 0) this.#free.push(segment);
  }

  setQueued(segment: number, queued: boolean): void {
    if (queued) this.#marks[segment] = this.#marks[segment] | QUEUED;
    else {
      this.#marks[segment] = this.#marks[segment] & ~QUEUED;
      if (this.#marks[segment] === 0) this.#free.push(segment);
    }
  }

  /** Sets kind and size of a segment. Call when the segment is complete. */
  seal(segment: number, kind: number): void {
    this.kind[segment] = kind;
    const blocks = this.blocks[segment];
    this.size[segment] = blocks < 2 ? 0 : Math.round(2 * Math.log2(blocks));
  }
}

const OPEN = 1;
const QUEUED = 2;

/**
 * Weight of one block as an observation, by the size of its segment: 1 / √n in a segment of n
 * blocks, so that the segment weighs √n. Its blocks return together, so they are more than one
 * observation and less than n.
 */
export const WEIGHT_OF_SIZE: Float64Array = Float64Array.from(
  { length: 64 },
  (_, size) => 2 ** (-size / 4),
);

/**
 * Kinds of use: features of a finished request that predict when its blocks are used again. The
 * features have few and coarse levels, so that each level collects data quickly.
 */

/** Part of its request's path to which a block belongs. */
export const Part = {
  /** Blocks up to the deepest one that was known before the request. */
  known: 0,
  /** Blocks that the request added. */
  fresh: 1,
  /**
   * The last block of the request. It is usually partly filled, and another block replaces it when
   * the prompt grows.
   */
  last: 2,
} as const;
export type Part = (typeof Part)[keyof typeof Part];

const PARTS = 3;
const TURNS = 4;
/** Number of levels of a scale by powers of four: below 4, 16, 64, 256, 1024, and above. */
const SCALES = 6;
/**
 * Number of combined levels of turn and gap. The first turn of a conversation has no gap before it.
 */
const TURNS_AND_GAPS = 1 + (TURNS - 1) * SCALES;

export const KINDS: number = PARTS * TURNS_AND_GAPS * SCALES;

function scale(size: number): number {
  return size < 4 ? 0 : Math.min(SCALES - 1, (31 - Math.clz32(size)) >> 1);
}

/**
 * Returns the kind of use. `turn`: number of returns of the conversation so far, capped at 3.
 * `gap`: number of requests since its last one. `added`: number of blocks after the deepest known
 * one.
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

/**
 * Groups of kinds (shapes) with a similar distribution of returns over time: one per level of the
 * gap, and one for last blocks.
 */
export const SHAPES = SCALES + 2;
export const SHAPE_OF: Uint8Array = Uint8Array.from({ length: KINDS }, (_, kind) =>
  partOf(kind) === Part.last ? SHAPES - 1 : gapLevelOf(kind),
);

/** Maximum number of levels of a trait. */
export const LEVELS = 8;
/** Traits multiply the probability of a return. One array per trait: the level of each kind. */
export const TRAITS: readonly Uint8Array[] = [
  Uint8Array.from({ length: KINDS }, (_, kind) => turnOf(kind)),
  Uint8Array.from({ length: KINDS }, (_, kind) => kind % SCALES),
  Uint8Array.from({ length: KINDS }, (_, kind) => partOf(kind)),
];
