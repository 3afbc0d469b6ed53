import { type Clock, HearthError, type Random, type WorkerId } from "../core/index.ts";
import type { RouteDecision, RouteOutcome, Router, WorkerTable } from "../router/index.ts";
import {
  busy,
  invalid,
  type OpenAiError,
  unavailable,
  workerFailed,
  workerLate,
} from "./answers.ts";
import type { ProxyCounts } from "./counts.ts";
import type { DownWorkers } from "./down-workers.ts";
import { type Asked, routeRequestOf } from "./exchange.ts";
import type { ProxySettings } from "./settings.ts";
import type { UpstreamAnswer, UpstreamFailure, UpstreamPiece } from "./upstream/index.ts";

/** An answer that has begun, from whom. */
export interface Won {
  readonly kind: "won";
  readonly answer: UpstreamAnswer;
  readonly first: UpstreamPiece;
  readonly decision: RouteDecision;
}

export type Dispatched =
  | Won
  | { readonly kind: "lost"; readonly error: OpenAiError; readonly how: "busy" | "none" | "worker" }
  | { readonly kind: "left" };

export interface DispatchParts {
  readonly clock: Clock;
  readonly random: Random;
  readonly router: Router;
  readonly table: WorkerTable;
  readonly settings: ProxySettings;
  readonly down: DownWorkers;
  readonly counts: ProxyCounts;
  /** Sends it to the worker that was chosen; never rejects. */
  readonly attempt: (asked: Asked, decision: RouteDecision) => Promise<Attempted>;
  readonly onRouted: (asked: Asked, decision: RouteDecision) => void;
}

export type Attempted =
  | { readonly kind: "answer"; readonly answer: UpstreamAnswer; readonly first: UpstreamPiece }
  | {
      readonly kind: "failed";
      readonly failure: UpstreamFailure;
      /** Who failed: the prefill worker, where there is one, or the one that was to answer. */
      readonly worker: WorkerId;
    };

/**
 * Finds a worker that answers. One that cannot be connected to, or dies before its first byte, is
 * replaced; one that takes too long is not: it may well be at work on the request.
 */
export class Dispatch {
  readonly #parts: DispatchParts;
  readonly #asked: Asked;
  readonly #failed: WorkerId[] = [];
  /** Kept for the case that nobody has a better answer. */
  #unavailable: Won | null = null;
  #error: OpenAiError | null = null;

  constructor(parts: DispatchParts, asked: Asked) {
    [this.#parts, this.#asked] = [parts, asked];
  }

  async run(): Promise<Dispatched> {
    const { flight, signal } = this.#asked;
    const { counts, settings, onRouted, attempt } = this.#parts;
    for (let tries = 0; ; tries++) {
      const outcome = await this.#route();
      if (outcome === null || signal.aborted) return this.#left();
      if (outcome.kind !== "routed") return this.#given(outcome);
      flight.routed();
      onRouted(this.#asked, outcome);
      const attempted = await attempt(this.#asked, outcome);
      if (signal.aborted) return this.#left(attempted);
      const won = this.#judge(outcome, attempted);
      if (won !== null) return won;
      flight.leave();
      if (tries >= settings.retriesMax) return this.#given(null);
      counts.retries++;
    }
  }

  /** Null: another worker may be tried, and this one's failure is noted. */
  #judge(decision: RouteDecision, attempted: Attempted): Dispatched | null {
    const { settings, down } = this.#parts;
    const { worker } = decision.target;
    if (attempted.kind === "answer") {
      const won: Won = { ...attempted, kind: "won", decision };
      if (attempted.first.kind !== "failed") {
        down.worked(worker);
        if (!settings.retryStatuses.includes(attempted.answer.status)) return won;
        this.#unavailable?.answer.close();
        this.#unavailable = won;
        this.#failed.push(worker);
        return null;
      }
      return this.#failure(worker, attempted.first);
    }
    return this.#failure(attempted.worker, attempted.failure);
  }

  #failure(worker: WorkerId, { stage, why }: UpstreamFailure): Dispatched | null {
    const { settings, down } = this.#parts;
    const text = `The worker ${worker} failed: ${why}`;
    this.#error = stage === "late" ? workerLate(text) : workerFailed(text);
    this.#failed.push(worker);
    if (stage === "connect") down.failed(worker);
    const isFinal = stage === "late" || (stage === "sent" && !settings.isRetriedAfterSent);
    return isFinal ? { kind: "lost", error: this.#error, how: "worker" } : null;
  }

  #left(attempted: Attempted | null = null): Dispatched {
    if (attempted?.kind === "answer") attempted.answer.close();
    this.#unavailable?.answer.close();
    return { kind: "left" };
  }

  /** Nobody is left: the best that there was. */
  #given(outcome: Exclude<RouteOutcome, RouteDecision> | null): Dispatched {
    if (this.#unavailable !== null) return this.#unavailable;
    if (this.#error !== null) return { kind: "lost", error: this.#error, how: "worker" };
    const { busyStatus, retryAfterSeconds } = this.#parts.settings;
    if (outcome?.kind === "busy") {
      const error = busy(`All workers are busy: ${outcome.why}`, busyStatus, retryAfterSeconds);
      return { kind: "lost", error, how: "busy" };
    }
    const isUnknown = outcome?.kind === "unknown_worker";
    const why = outcome?.why ?? "no worker";
    return { kind: "lost", error: isUnknown ? invalid(why) : unavailable(why), how: "none" };
  }

  /** Null: the client left while it waited. */
  async #route(): Promise<RouteOutcome | null> {
    const { router, down } = this.#parts;
    const unreachable = this.#withoutUrl();
    const resting = down.now();
    try {
      const all = [...this.#failed, ...unreachable, ...resting];
      const outcome = await router.bestWorker(routeRequestOf(this.#asked, all), this.#asked.signal);
      // Better one that was away a moment ago than none.
      if (outcome.kind !== "none" || resting.length === 0) return outcome;
      const fewer = [...this.#failed, ...unreachable];
      return await router.bestWorker(routeRequestOf(this.#asked, fewer), this.#asked.signal);
    } catch (thrown) {
      if (thrown instanceof HearthError && thrown.code === "ABORTED") return null;
      throw thrown;
    }
  }

  /** Workers that take no requests from us. */
  #withoutUrl(): WorkerId[] {
    const { base } = this.#asked.named;
    const targets = this.#parts.table.targets.filter(({ model }) => model === base);
    return targets.flatMap(({ url, worker }) => (url === null ? [worker] : []));
  }
}
