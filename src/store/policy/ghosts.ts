/**
 * Stretches of which no block is left, by the fingerprint of their shallowest block: the one that
 * went last, and the one that a request which comes back stores first. Sets of four; the one used
 * longest ago makes room.
 */
export class Ghosts {
  readonly tick: Uint32Array;
  readonly kind: Uint16Array;
  readonly size: Uint8Array;
  /** Blocks it stands for; 0 = the place is free. */
  readonly blocks: Uint16Array;
  readonly #fingerprint: Uint32Array;
  readonly #mask: number;

  /** Room for a power of two of ghosts, at most `max`. */
  constructor(max: number) {
    const length = 2 ** Math.floor(Math.log2(max));
    this.#mask = length / WAYS - 1;
    this.tick = new Uint32Array(length);
    this.kind = new Uint16Array(length);
    this.size = new Uint8Array(length);
    this.blocks = new Uint16Array(length);
    this.#fingerprint = new Uint32Array(length);
  }

  get bytes(): number {
    const { tick, kind, size, blocks } = this;
    const arrays = [tick, kind, size, blocks, this.#fingerprint];
    return arrays.reduce((sum, array) => sum + array.byteLength, 0);
  }

  /** The ghost with this fingerprint, or -1. */
  find(fingerprint: number): number {
    const from = (fingerprint & this.#mask) * WAYS;
    for (let at = from; at < from + WAYS; at++) {
      if (this.blocks[at] !== 0 && this.#fingerprint[at] === fingerprint) return at;
    }
    return -1;
  }

  /** The place for a new one: free, or of the ghost to be forgotten. */
  placeFor(fingerprint: number): number {
    const from = (fingerprint & this.#mask) * WAYS;
    let place = from;
    for (let at = from; at < from + WAYS; at++) {
      if (this.blocks[at] === 0) return at;
      if (this.tick[at]! < this.tick[place]!) place = at;
    }
    return place;
  }

  put(at: number, fingerprint: number, tick: number, kind: number, size: number, n: number): void {
    this.#fingerprint[at] = fingerprint;
    this.tick[at] = tick;
    this.kind[at] = kind;
    this.size[at] = size;
    this.blocks[at] = Math.min(n, 0xffff);
  }

  remove(at: number): void {
    this.blocks[at] = 0;
  }
}

const WAYS = 4;
