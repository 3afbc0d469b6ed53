import { assert } from "../core/index.ts";
import type { GpuFault, Gpus } from "../native/index.ts";

/** Few registrations for a large arena, none so long that it holds up the end of the agent. */
const SLICE_BYTES = 2 ** 30;

export interface ArenaRegistrarOptions {
  readonly gpus: Pick<Gpus, "register">;
  readonly arenaBytes: number;
  readonly sliceBytes?: number;
  /** Nothing more is registered after it. */
  onFault(fault: GpuFault): void;
}

/**
 * Registers an arena with the driver as it grows, one slice after the other from its start. What is
 * not registered can be copied from and to all the same, only slower.
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

  /** So many bytes from the arena's start are backed by memory. */
  ready(bytes: number): void {
    assert(bytes >= this.#readyBytes && bytes <= this.#options.arenaBytes, "an arena only grows");
    this.#readyBytes = bytes;
    if (this.#work === null && this.#next() !== null) this.#work = this.#run();
  }

  /** Begins no other slice; resolves when the one under way has ended. */
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

  /** Length of the next slice; null where there is none yet, or none any more. */
  #next(): number | null {
    if (this.#stopped) return null;
    const bytes = Math.min(this.#sliceBytes, this.#options.arenaBytes - this.#registeredBytes);
    return bytes > 0 && this.#registeredBytes + bytes <= this.#readyBytes ? bytes : null;
  }
}
