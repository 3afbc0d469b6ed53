import type { LifecycleContext } from "./context.ts";

/**
 * Lets reads for warm commands pass, so many at once and so many bytes on their way, all commands
 * together. One that is larger than the limit passes alone.
 */
export class WarmGate {
  readonly #limits: LifecycleContext["limits"];
  #reads = 0;
  #bytes = 0;
  readonly #waiting: (() => void)[] = [];

  constructor(limits: LifecycleContext["limits"]) {
    this.#limits = limits;
  }

  /** Resolves when a read of so many bytes may begin; false where the signal fired before. */
  async enter(bytes: number, signal: AbortSignal): Promise<boolean> {
    while (!signal.aborted && !this.#hasRoom(bytes)) {
      const turn = Promise.withResolvers<void>();
      this.#waiting.push(turn.resolve);
      signal.addEventListener("abort", turn.resolve as () => void, { once: true });
      await turn.promise;
      signal.removeEventListener("abort", turn.resolve as () => void);
    }
    if (signal.aborted) return false;
    this.#reads++;
    this.#bytes += bytes;
    return true;
  }

  leave(bytes: number): void {
    this.#reads--;
    this.#bytes -= bytes;
    // Each command has one at most in this line.
    for (const look of this.#waiting.splice(0)) look();
  }

  #hasRoom(bytes: number): boolean {
    const { warmReads, warmBytesMax } = this.#limits();
    if (this.#reads === 0) return true;
    return this.#reads < warmReads && this.#bytes + bytes <= warmBytesMax;
  }
}
