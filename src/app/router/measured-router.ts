import type { Clock } from "../../core/index.ts";
import type { RouterMetrics } from "../../observability/index.ts";
import type {
  BusyThresholds,
  PolicyAction,
  RouteDecision,
  RouteOutcome,
  RouteRequest,
  Router,
  RouterObserver,
} from "../../router/index.ts";

export interface MeasuredOptions {
  readonly metrics: RouterMetrics;
  readonly clock: Clock;
  /** Of the settings. */
  readonly blockTokens: number;
  /** Told of what was set here, for replicas. */
  readonly onThresholds: (model: string, thresholds: BusyThresholds) => void;
  /** Called with each request and each question. */
  readonly onPrompt: (request: RouteRequest) => void;
}

/** A router that counts what it decides, and tells what was set, whoever asks. */
export class MeasuredRouter implements Router {
  readonly #router: Router;
  readonly #metrics: RouterMetrics;
  readonly #clock: Clock;
  readonly #onThresholds: MeasuredOptions["onThresholds"];
  readonly #onPrompt: MeasuredOptions["onPrompt"];
  #waiting = 0;

  constructor(router: Router, options: MeasuredOptions) {
    const { metrics, clock, blockTokens } = options;
    this.#router = router;
    this.#metrics = metrics;
    this.#clock = clock;
    this.#onThresholds = options.onThresholds;
    this.#onPrompt = options.onPrompt;
    router.listen({
      routed: (_request, decision) => note(metrics, decision, blockTokens),
      freed: (_requestId, why) => metrics.ended(why),
    });
  }

  async bestWorker(request: RouteRequest, signal?: AbortSignal): Promise<RouteOutcome> {
    const startMs = this.#clock.monotonicMs();
    this.#onPrompt(request);
    this.#metrics.waiting(++this.#waiting);
    try {
      return this.#told(await this.#router.bestWorker(request, signal), startMs);
    } catch (thrown) {
      this.#metrics.answered("aborted", this.#secondsSince(startMs));
      throw thrown;
    } finally {
      this.#metrics.waiting(--this.#waiting);
    }
  }

  bestWorkerNow(request: RouteRequest): RouteOutcome {
    const startMs = this.#clock.monotonicMs();
    this.#onPrompt(request);
    return this.#told(this.#router.bestWorkerNow(request), startMs);
  }

  getPotentialLoads(request: RouteRequest) {
    return this.#router.getPotentialLoads(request);
  }

  markPrefillComplete(requestId: string): boolean {
    return this.#router.markPrefillComplete(requestId);
  }

  output(requestId: string, tokens: number): boolean {
    return this.#router.output(requestId, tokens);
  }

  free(requestId: string): boolean {
    return this.#router.free(requestId);
  }

  dumpEvents(): Iterable<string> {
    return this.#router.dumpEvents();
  }

  explain(requestId: string) {
    return this.#router.explain(requestId);
  }

  noteAction(requestId: string, action: PolicyAction): boolean {
    return this.#router.noteAction(requestId, action);
  }

  thresholds(model: string): BusyThresholds {
    return this.#router.thresholds(model);
  }

  setThresholds(model: string, thresholds: Partial<BusyThresholds>): boolean {
    const isSet = this.#router.setThresholds(model, thresholds);
    if (isSet) this.#onThresholds(model, this.#router.thresholds(model));
    return isSet;
  }

  listen(observer: RouterObserver): Disposable {
    return this.#router.listen(observer);
  }

  #told(outcome: RouteOutcome, startMs: number): RouteOutcome {
    this.#metrics.answered(outcome.kind, this.#secondsSince(startMs));
    return outcome;
  }

  #secondsSince(startMs: number): number {
    return (this.#clock.monotonicMs() - startMs) / 1_000;
  }
}

function note(metrics: RouterMetrics, decision: RouteDecision, blockTokens: number): void {
  const { terms, promptTokens, decidedBy = "none", reasons = [] } = decision;
  // Whole blocks: the last one of a tier never reaches beyond the prompt.
  const tokens = (blocks: number, before: number) =>
    Math.max(0, Math.min(blocks * blockTokens, promptTokens - before));
  const device = tokens(terms.deviceBlocks, 0);
  const host = tokens(terms.hostBlocks, device);
  const disk = tokens(terms.diskBlocks, device + host);
  metrics.routed({ prompt: promptTokens, device, host, disk }, decidedBy, reasons);
}
