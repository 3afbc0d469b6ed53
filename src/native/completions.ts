import { assert } from "../core/index.ts";
import type { FunctionName } from "./library.ts";
import { EventReader, type NativeBuffer, nativeBuffer } from "./memory.ts";
import type { Native } from "./native.ts";

const REAP_MAX = 64;

export interface CompletionsOptions {
  /**
   * Native function that moves completions from the ring into an array: (handle, entries, maximum)
   * → count.
   */
  readonly reap: FunctionName;
  readonly handle: number;
  readonly entryBytes: number;
  /** Descriptor that the library writes to after completions. The library owns it. */
  readonly eventFd: number;
  /** Handles the completion at byte offset `at` of `view`. */
  deliver(view: DataView, at: number): void;
  /** Called after all completions of one wake-up have been delivered. */
  drained?(): void;
}

/**
 * Tracks work that native threads execute. Each piece of work has a token and a waiter. Completions
 * arrive through a ring of the library. A waiter stays referenced until `forget`, and so does the
 * memory that it references for the native threads.
 */
export class Completions<Waiter> {
  readonly #native: Native;
  readonly #options: CompletionsOptions;
  readonly #entries: NativeBuffer;
  readonly #view: DataView;
  readonly #waiting = new Map<number, Waiter>();
  readonly #events: EventReader;
  #nextToken = 1;
  #idle = Promise.withResolvers<void>();

  constructor(native: Native, options: CompletionsOptions) {
    this.#native = native;
    this.#options = options;
    this.#entries = nativeBuffer(options.entryBytes * REAP_MAX);
    this.#view = new DataView(this.#entries.bytes.buffer);
    this.#events = new EventReader(options.eventFd, () => this.#drain());
  }

  /** Number of pieces of work that have not completed. */
  get size(): number {
    return this.#waiting.size;
  }

  /** Registers a waiter for new work. Returns the token to pass to the library. */
  wait(waiter: Waiter): number {
    const token = this.#nextToken++;
    this.#waiting.set(token, waiter);
    return token;
  }

  /** Returns the waiter registered under `token`. */
  of(token: number): Waiter {
    const waiting = this.#waiting.get(token);
    assert(waiting !== undefined, "a completion has a waiter");
    return waiting;
  }

  /** Removes a waiter whose work has completed or was not started. */
  forget(token: number): void {
    this.#waiting.delete(token);
  }

  #drain(): void {
    const { reap, handle, entryBytes } = this.#options;
    let count: number;
    do {
      const code = this.#native.symbols[reap](handle, this.#entries.bytes, REAP_MAX);
      count = this.#native.check(reap, code);
      for (let i = 0; i < count; i++) this.#options.deliver(this.#view, i * entryBytes);
    } while (count === REAP_MAX);
    this.#options.drained?.();
    if (this.#waiting.size > 0) return;
    this.#idle.resolve();
    this.#idle = Promise.withResolvers();
  }

  /** Resolves when no work is left. */
  idle(): Promise<void> {
    return this.#waiting.size === 0 ? Promise.resolve() : this.#idle.promise;
  }

  /** Stops delivery. After the promise has resolved, `deliver` is not called any more. */
  stop(): Promise<void> {
    return this.#events.stop();
  }
}
