import type { Stream } from "./module.ts";

/** What the runtime keeps of any finished stream. */
const STREAM_BYTES = 8 * 1024;

/**
 * The runtime keeps memory outside of its heap for each finished stream until it collects garbage,
 * and that memory does not make it collect. This counts what is outstanding, and makes it collect
 * where that is more than `bytesMax`.
 */
export class Litter {
  readonly #bytesMax: number;
  readonly #collect: () => void;
  readonly #streams = new FinalizationRegistry<number>((bytes) => {
    this.#bytes -= bytes;
  });
  /** Of streams that are finished and not collected. */
  #bytes = 0;
  /** Of streams that finished since the last collection of ours. */
  #fresh = 0;

  constructor(bytesMax: number, collect: () => void = () => Bun.gc(true)) {
    this.#bytesMax = bytesMax;
    this.#collect = collect;
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** A stream is finished. `waitingBytes`: the most that waited to be sent on it. */
  add(stream: Stream, waitingBytes: number): void {
    const bytes = STREAM_BYTES + waitingBytes;
    this.#streams.register(stream, bytes);
    this.#bytes += bytes;
    this.#fresh += bytes;
    if (this.#bytes <= this.#bytesMax || this.#fresh <= this.#bytesMax) return;
    this.#fresh = 0;
    this.#collect();
  }
}
