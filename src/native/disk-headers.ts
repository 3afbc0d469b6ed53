import { assert } from "../core/index.ts";
import { HEADER_BYTES, type HeaderSlot } from "./block-disk.ts";
import { type NativeBuffer, nativeBuffer } from "./buffers.ts";

/** One of a disk's headers. Its bytes are readable for ever, its number means it until disposed. */
export interface NumberedHeader extends HeaderSlot {
  readonly index: number;
}

/** The headers of a disk: one piece of memory, aligned as direct I/O wants it. */
export class DiskHeaders {
  readonly #memory: NativeBuffer;
  readonly #first: number;
  readonly #free: number[];
  readonly #claimed = new Set<HeaderSlot>();

  constructor(count: number) {
    this.#memory = nativeBuffer((count + 1) * HEADER_BYTES);
    this.#first = (HEADER_BYTES - (this.#memory.address % HEADER_BYTES)) % HEADER_BYTES;
    this.#free = Array.from({ length: count }, (_, index) => count - 1 - index);
  }

  /** Of the first header. */
  get address(): number {
    return this.#memory.address + this.#first;
  }

  claim(): NumberedHeader | null {
    const index = this.#free.pop();
    if (index === undefined) return null;
    const from = this.#first + index * HEADER_BYTES;
    const bytes = this.#memory.bytes.subarray(from, from + HEADER_BYTES);
    const slot: NumberedHeader = {
      index,
      bytes,
      [Symbol.dispose]: () => {
        if (this.#claimed.delete(slot)) this.#free.push(index);
      },
    };
    this.#claimed.add(slot);
    return slot;
  }

  /** The number of a header that was claimed here and not disposed since. */
  indexOf(slot: HeaderSlot): number {
    assert(this.#claimed.has(slot), "the header is claimed from this disk");
    return (slot as NumberedHeader).index;
  }
}
