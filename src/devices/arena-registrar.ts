import { assert } from "../core/index.ts";
import type { GpuFault, Gpus } from "../native/index.ts";

/**
 * Bytes registered per call. Large enough that an arena needs few calls, small enough that one call
 * does not delay shutdown.
 */
const SLICE_BYTES = 2 ** 30;

export interface ArenaRegistrarOptions {
  readonly gpus: Pick<Gpus, "register">;
  readonly arenaBytes: number;
  readonly sliceBytes?: number;
  /**
   * Called at most once, when the driver refuses a slice. The registrar registers no further
   * slices.
   */
  onFault(fault: GpuFault): void;
}

/**
 * Registers an arena with the GPU driver while its memory is being allocated, in consecutive slices
 * from its start. GPUs can also copy memory that is not registered, but more slowly.
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

  /**
   * Reports that the first `bytes` bytes of the arena are backed by memory, and registers slices
   * that are now complete.
   */
  ready(bytes: number): void {
    assert(bytes >= this.#readyBytes && bytes <= this.#options.arenaBytes, "an arena only grows");
    this.#readyBytes = bytes;
    if (this.#work === null && this.#next() !== null) this.#work = this.#run();
  }

  /** Stops before the next slice. Resolves when the running registration has ended. */
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

  /**
   * Returns the length of the next slice in bytes. Null if its memory is not ready, if all are
   * registered, or after a stop.
   */
  #next(): number | null {
    if (this.#stopped) return null;
    const bytes = Math.min(this.#sliceBytes, this.#options.arenaBytes - this.#registeredBytes);
    return bytes > 0 && this.#registeredBytes + bytes <= this.#readyBytes ? bytes : null;
  }
}
