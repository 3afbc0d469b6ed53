import { assert } from "../core/index.ts";
import type { FunctionName } from "./library.ts";
import { EventReader, type NativeBuffer, nativeBuffer } from "./memory.ts";
import type { Native } from "./native.ts";

const REAP_MAX = 64;

export interface CompletionsOptions {
  /** Fills an array of entries: (handle, entries, maximum) → count. */
  readonly reap: FunctionName;
  readonly handle: number;
  readonly entryBytes: number;
  /** Written by the library after completions. The library owns it. */
  readonly eventFd: number;
  /** Handles the entry at this offset. */
  deliver(view: DataView, at: number): void;
  /** Called after each burst of completions. */
  drained?(): void;
}

/**
 * Work that native threads execute, by token, and the ring in which they report its completion. A
 * waiter stays referenced until then, and with it the memory that the work uses.
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

  /** Number of waiters. */
  get size(): number {
    return this.#waiting.size;
  }

  /** Registers a waiter. Returns its token. */
  wait(waiter: Waiter): number {
    const token = this.#nextToken++;
    this.#waiting.set(token, waiter);
    return token;
  }

  /** The waiter of a completion. */
  of(token: number): Waiter {
    const waiting = this.#waiting.get(token);
    assert(waiting !== undefined, "a completion has a waiter");
    return waiting;
  }

  /** Removes a waiter: its work is over, or was never begun. */
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

  /** Resolves when all work has completed. */
  idle(): Promise<void> {
    return this.#waiting.size === 0 ? Promise.resolve() : this.#idle.promise;
  }

  /** Once this has resolved, no entry is delivered any more. */
  stop(): Promise<void> {
    return this.#events.stop();
  }
}
