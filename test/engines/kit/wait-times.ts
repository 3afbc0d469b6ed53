import type { Vllm } from "./vllm.ts";

const NAME = "vllm:hearth_excess_wait_seconds";

/** The connector's histogram of excess waits, summed over the lives of an engine. */
export class WaitTimes {
  count = 0;
  max = 0;
  readonly #buckets = new Map<number, number>();

  /** Adds the figures of an engine's life; call it once, before the engine ends. */
  async read(server: Vllm): Promise<void> {
    const metrics = await server.metrics();
    this.count += metrics.sum(`${NAME}_count`);
    this.max = Math.max(this.max, metrics.sum(`${NAME}_max`));
    for (const [sample, count] of Object.entries(metrics.starting(`${NAME}_bucket`))) {
      const bound = Number(/le="([^"]+)"/.exec(sample)?.[1]?.replace("+Inf", "Infinity"));
      this.#buckets.set(bound, (this.#buckets.get(bound) ?? 0) + count);
    }
  }

  /** Share of the waits of at most `seconds`, which must be a bound of a bucket. */
  shareWithin(seconds: number): number {
    return this.count === 0 ? 0 : (this.#buckets.get(seconds) ?? 0) / this.count;
  }

  /** Waits by upper bound, `{"<= 0.1 s": n}`, cumulative. */
  buckets(): Record<string, number> {
    const sorted = [...this.#buckets].sort(([a], [b]) => a - b);
    return Object.fromEntries(sorted.map(([bound, count]) => [`<= ${bound} s`, count]));
  }
}
