import { type Clock, sleep, type WorkerId } from "../../core/index.ts";
import type { Logger } from "../../observability/index.ts";
import { askEngine, type EngineAnswer, type EngineFacts } from "./engine-facts.ts";

export interface DiscoveryOptions {
  readonly clock: Clock;
  readonly logger: Logger;
  /** The `Authorization` header that engines want; null: none. */
  readonly authorization: string | null;
  /** Whether nothing more is to be learned of a worker that has answered. */
  isSettled(worker: WorkerId): boolean;
  /** Whether they are news. */
  onFacts(worker: WorkerId, facts: EngineFacts): boolean;
  /** Its API answered with another status than success; it is asked again. */
  onRefused(worker: WorkerId, status: number): void;
}

const ANSWER_MS = 5_000;
const RETRY_MIN_MS = 500;
const RETRY_MAX_MS = 15_000;

/**
 * Asks engines by their URLs how they are set up, until they answer and what follows from the
 * answer holds: an engine that comes back may publish elsewhere, or serve another model.
 */
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
    const { clock, isSettled, onFacts } = this.#options;
    let warned: string | null = null;
    for (let delayMs = RETRY_MIN_MS; !signal.aborted; ) {
      const answer = await this.#answer(url, signal);
      if (signal.aborted) return;
      // News may mix two runs of an engine: the same must be heard twice.
      const isSame = answer.kind === "facts" && !onFacts(worker, answer.facts);
      if (answer.kind !== "facts") warned = this.#failed(worker, url, answer, warned);
      await sleep(clock, delayMs, signal).catch(() => undefined);
      if (isSame && isSettled(worker)) return;
      delayMs = Math.min(delayMs * 2, RETRY_MAX_MS);
    }
  }

  async #answer(url: string, signal: AbortSignal): Promise<EngineAnswer> {
    const { clock, authorization } = this.#options;
    const late = new AbortController();
    using _timer = clock.after(ANSWER_MS, () => late.abort());
    return await askEngine(url, authorization, AbortSignal.any([signal, late.signal]));
  }

  /** The line that was logged last: the same one is not logged again. */
  #failed(
    worker: WorkerId,
    url: string,
    answer: Exclude<EngineAnswer, { kind: "facts" }>,
    warned: string | null,
  ): string {
    const { logger, onRefused } = this.#options;
    const isLost = answer.kind === "lost";
    const line = isLost
      ? "the worker's API is not reached"
      : `the worker's API answered ${answer.status} and is asked again`;
    if (line !== warned) logger.warn(line, { worker, url });
    if (!isLost) onRefused(worker, answer.status);
    return line;
  }
}
