import { type Clock, sleep, type WorkerId } from "../../core/index.ts";
import type { Logger } from "../../observability/index.ts";
import { askEngine, type EngineFacts } from "./engine-facts.ts";

export interface DiscoveryOptions {
  readonly clock: Clock;
  readonly logger: Logger;
  onFacts(worker: WorkerId, facts: EngineFacts): void;
}

const ANSWER_MS = 5_000;
const RETRY_MIN_MS = 500;
const RETRY_MAX_MS = 15_000;

/** Asks engines by their URLs how they are set up, until they answer. */
export class EngineDiscovery implements AsyncDisposable {
  readonly #options: DiscoveryOptions;
  readonly #asking = new Map<WorkerId, AbortController>();
  readonly #ending = new Set<Promise<void>>();

  constructor(options: DiscoveryOptions) {
    this.#options = options;
  }

  /** Asks anew, in the place of what is under way for that worker. */
  ask(worker: WorkerId, url: string): void {
    this.stop(worker);
    const stopping = new AbortController();
    this.#asking.set(worker, stopping);
    const asking = this.#ask(worker, url, stopping.signal).finally(() => {
      this.#ending.delete(asking);
    });
    this.#ending.add(asking);
  }

  stop(worker: WorkerId): void {
    this.#asking.get(worker)?.abort();
    this.#asking.delete(worker);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const worker of [...this.#asking.keys()]) this.stop(worker);
    await Promise.allSettled(this.#ending);
  }

  async #ask(worker: WorkerId, url: string, signal: AbortSignal): Promise<void> {
    const { clock, logger, onFacts } = this.#options;
    for (let delayMs = RETRY_MIN_MS; !signal.aborted; ) {
      const late = new AbortController();
      using _timer = clock.after(ANSWER_MS, () => late.abort());
      const facts = await askEngine(url, AbortSignal.any([signal, late.signal]));
      if (signal.aborted) return;
      if (facts !== null) {
        onFacts(worker, facts);
        return;
      }
      if (delayMs === RETRY_MIN_MS) logger.warn("the worker's API is not reached", { worker, url });
      await sleep(clock, delayMs, signal).catch(() => undefined);
      delayMs = Math.min(delayMs * 2, RETRY_MAX_MS);
    }
  }
}
