import { assert } from "../core/index.ts";
import type { GpuFault, Gpus } from "../native/index.ts";

/** Large enough for few registrations per arena, small enough that one does not delay shutdown. */
const SLICE_BYTES = 2 ** 30;

export interface ArenaRegistrarOptions {
  readonly gpus: Pick<Gpus, "register">;
  readonly arenaBytes: number;
  readonly sliceBytes?: number;
  /** Called once. No further slice is registered after it. */
  onFault(fault: GpuFault): void;
}

/**
 * Registers an arena with the GPU driver as it grows, in consecutive slices from its start. Memory
 * that is not registered can be copied too, but more slowly.
 */
export class ArenaRegistrar {
  readonly #options: ArenaRegistrarOptions;
  readonly #sliceBytes: number;
  #readyBytes = 0;
  #registeredBytes = 0;
  #stopped = false;
  #work: Promise<void> | null = null;

  constructor(options: ArenaRegistrarOptions) {
    this.#options = options;
    this.#sliceBytes = options.sliceBytes ?? SLICE_BYTES;
  }

  get registeredBytes(): number {
    return this.#registeredBytes;
  }

  /** Reports that this many bytes from the start of the arena are backed by memory. */
  ready(bytes: number): void {
    assert(bytes >= this.#readyBytes && bytes <= this.#options.arenaBytes, "an arena only grows");
    this.#readyBytes = bytes;
    if (this.#work === null && this.#next() !== null) this.#work = this.#run();
  }

  /** Starts no further slice. Resolves when the current one has ended. */
  async stop(): Promise<void> {
    this.#stopped = true;
    await this.#work;
  }

  async #run(): Promise<void> {
    for (let next = this.#next(); next !== null; next = this.#next()) {
      const outcome = await this.#options.gpus.register(this.#registeredBytes, next);
      if (outcome.ok) {
        this.#registeredBytes += next;
      } else {
        this.#stopped = true;
        this.#options.onFault(outcome);
      }
    }
    this.#work = null;
  }

  /** Length of the next slice. Null if none is ready or none is left. */
  #next(): number | null {
    if (this.#stopped) return null;
    const bytes = Math.min(this.#sliceBytes, this.#options.arenaBytes - this.#registeredBytes);
    return bytes > 0 && this.#registeredBytes + bytes <= this.#readyBytes ? bytes : null;
  }
}
