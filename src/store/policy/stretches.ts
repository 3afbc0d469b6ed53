import { Part, partOf } from "./use-kind.ts";

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
