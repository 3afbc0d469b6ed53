import { availableParallelism, loadavg } from "node:os";
import { quantile, round } from "./compare.ts";

const EVERY_MS = 5_000;

/** The host's load average of one minute, sampled while a lane runs. */
export class HostLoad implements Disposable {
  readonly #samples: number[] = [];
  readonly #timer: NodeJS.Timeout;

  constructor(everyMs = EVERY_MS) {
    this.#sample();
    this.#timer = setInterval(() => this.#sample(), everyMs);
  }

  #sample(): void {
    this.#samples.push(loadavg()[0]!);
  }

  /** Runnable processes: the median and the largest sample, beside the processors of this host. */
  summary(): { median: number; max: number; processors: number } {
    return {
      median: round(quantile(this.#samples, 0.5)),
      max: round(Math.max(...this.#samples)),
      processors: availableParallelism(),
    };
  }

  [Symbol.dispose](): void {
    clearInterval(this.#timer);
  }
}
