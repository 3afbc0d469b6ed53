const KEPT = 128;
/** With fewer there is no telling what is usual. */
const KNOWN_MIN = 8;
const QUANTILE = 0.95;

/** The latest waits for something, in milliseconds, and how long it takes at most as a rule. */
export class Latencies {
  readonly #ring = new Float64Array(KEPT);
  #count = 0;
  #p95: number | null = null;
  #stale = false;

  add(ms: number): void {
    this.#ring[this.#count++ % KEPT] = ms;
    this.#stale = true;
  }

  /** 95th percentile of the latest; null: too few are known. */
  get p95(): number | null {
    if (!this.#stale) return this.#p95;
    this.#stale = false;
    const kept = Math.min(this.#count, KEPT);
    if (kept < KNOWN_MIN) return this.#p95;
    const sorted = this.#ring.slice(0, kept).sort();
    this.#p95 = sorted[Math.min(Math.ceil(kept * QUANTILE), kept) - 1]!;
    return this.#p95;
  }
}
