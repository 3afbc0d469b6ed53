/** So many at a time; the others wait for their turn, in order, and not too many of them. */
export class Slots {
  readonly #waiting: ((got: boolean) => void)[] = [];
  readonly #waitingMax: number;
  #free: number;

  constructor(slots: number, waitingMax: number) {
    this.#free = slots;
    this.#waitingMax = waitingMax;
  }

  get isCrowded(): boolean {
    return this.#waiting.length >= this.#waitingMax;
  }

  /** False: the signal came first, or nobody gets one any more. */
  take(signal: AbortSignal | undefined): Promise<boolean> | boolean {
    if (this.#free > 0) {
      this.#free--;
      return true;
    }
    return new Promise((resolve) => {
      const settle = (got: boolean) => {
        signal?.removeEventListener("abort", onAbort);
        resolve(got);
      };
      const onAbort = () => {
        this.#waiting.splice(this.#waiting.indexOf(settle), 1);
        settle(false);
      };
      this.#waiting.push(settle);
      signal?.addEventListener("abort", onAbort, { once: true });
    });
  }

  give(): void {
    const next = this.#waiting.shift();
    if (next === undefined) this.#free++;
    else next(true);
  }

  /** Those who wait get none. */
  close(): void {
    for (const settle of this.#waiting.splice(0)) settle(false);
  }
}
