import { HearthError, type WorkerId } from "../../core/index.ts";
import type { RouteDecision, RouteOutcome } from "../index.ts";
import {
  busy,
  invalid,
  ownFault,
  type ProxyError,
  unavailable,
  workerFailed,
  workerLate,
} from "./answers.ts";
import { Attempt, type Attempted, type AttemptFailure, type WorkerAnswer } from "./attempt.ts";
import type { ProxyOutcome } from "./counts.ts";
import { type ProxyParts, type ProxyRequest, routeRequestOf } from "./exchange.ts";
import { hashOf } from "./request-body.ts";
import type { WorkerHealth } from "./worker-health.ts";

/**
 * The worker's answer that the client receives. It is either complete or read up to its first
 * piece.
 */
export interface Won extends WorkerAnswer {
  readonly kind: "won";
  readonly decision: RouteDecision;
}

const SERVER_ERROR = 500;

export type Dispatched =
  | Won
  | { readonly kind: "lost"; readonly error: ProxyError; readonly outcome: ProxyOutcome }
  | { readonly kind: "left" };

export interface DispatchParts extends ProxyParts {
  readonly health: Pick<WorkerHealth, "out" | "listen">;
  readonly onRouted: (incoming: ProxyRequest, decision: RouteDecision) => void;
  /** Called if the proxy could not send a request to any worker. */
  readonly onUnsendable: (worker: WorkerId, why: string) => void;
}

/**
 * Finds a worker that answers the request. If the proxy cannot connect to a worker, it tries
 * another one, up to `retriesMax` times. If a worker received the request but died or became silent
 * before its first byte, the request is resent once, because the request itself may have killed the
 * worker. The same applies if an answer breaks off before the client has received any of it. A late
 * worker is not replaced, because it may be computing.
 */
export class Dispatch {
  readonly #parts: DispatchParts;
  readonly #incoming: ProxyRequest;
  readonly #failed: WorkerId[] = [];
  /**
   * Answer with a status of `retryStatuses`. The client gets it if no worker gives a better one.
   */
  #unavailable: Won | null = null;
  #error: ProxyError | null = null;
  /** True if a second worker was tried although the first one had received the request. */
  #isResent = false;

  constructor(parts: DispatchParts, incoming: ProxyRequest) {
    [this.#parts, this.#incoming] = [parts, incoming];
  }

  async run(): Promise<Dispatched> {
    const { tracker, signal, spec } = this.#incoming;
    const { counts, settings, onRouted } = this.#parts;
    for (let tries = 0; ; tries++) {
      const outcome = await this.#route();
      if (outcome === null || signal.aborted) return this.#left();
      if (outcome.kind !== "routed") return this.#given(outcome);
      if (spec.isWork) {
        tracker.routed();
        onRouted(this.#incoming, outcome);
      }
      const attempted = await this.#attempt(outcome);
      if (signal.aborted) return this.#left(attempted);
      const won = this.#evaluate(outcome, attempted);
      if (won !== null) return won;
      tracker.leave();
      if (tries >= settings.retriesMax) return this.#given(null);
      counts.retries++;
    }
  }

  /**
   * Sends the request to the chosen worker. Cancels it if the worker becomes silent while another
   * worker could serve the request.
   */
  async #attempt(decision: RouteDecision): Promise<Attempted> {
    const { health, down } = this.#parts;
    const incoming = this.#incoming;
    down.tried(decision.target.worker);
    const lost = new AbortController();
    const workers = [decision.prefill?.worker, decision.target.worker];
    let [silent, why]: [WorkerId | null, string] = [null, ""];
    const look = () => {
      const found = workers.find((worker) => worker !== undefined && health.out.has(worker));
      if (found === undefined || !this.#hasOther(decision.target.worker)) return;
      [silent, why] = [found, health.out.get(found) ?? ""];
      lost.abort();
    };
    using _listening = health.listen(look);
    look();
    const signal = AbortSignal.any([incoming.signal, lost.signal]);
    const attempted = await new Attempt(this.#parts, { ...incoming, signal }).run(decision);
    const isLost = silent !== null && !incoming.signal.aborted;
    if (!isLost || (attempted.kind === "answer" && attempted.first.kind !== "failed")) {
      return attempted;
    }
    return { kind: "failed", worker: silent!, failure: { stage: "silent", why } };
  }

  /** Returns true if another healthy worker could serve the request. */
  #hasOther(chosen: WorkerId): boolean {
    const { table, health, down, settings } = this.#parts;
    const { named, hints } = this.#incoming;
    if (this.#isResent || !settings.isRetriedAfterSent) return false;
    if (hints.overrides.worker !== undefined) return false;
    const resting = new Set<WorkerId>([...down.now(), ...this.#failed, chosen]);
    return table.targets.some(
      ({ worker, model, url, role, state }) =>
        model === named.base &&
        url !== null &&
        role !== "prefill" &&
        // A stale worker may be healthy: only its KV events are missing.
        (state === "live" || state === "stale") &&
        !resting.has(worker) &&
        !health.out.has(worker),
    );
  }

  /**
   * Evaluates the result of an attempt. Returns the final result, or null if the attempt failed and
   * another worker may be tried.
   */
  #evaluate(decision: RouteDecision, attempted: Attempted): Dispatched | null {
    const { settings, down } = this.#parts;
    const { worker } = decision.target;
    if (attempted.kind === "answer") {
      const won: Won = { ...attempted, kind: "won", decision };
      if (attempted.first.kind !== "failed") {
        if (attempted.answer.status >= SERVER_ERROR)
          down.broke(worker, hashOf(this.#incoming.body));
        else down.worked(worker);
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

  #failure(worker: WorkerId, { stage, why }: AttemptFailure): Dispatched | null {
    const { down, onUnsendable } = this.#parts;
    if (stage === "unsendable") {
      onUnsendable(worker, why);
      const error = ownFault("The proxy could not send the request.");
      return { kind: "lost", error, outcome: "refused" };
    }
    const text = `The worker ${worker} failed: ${why}`;
    this.#error = stage === "late" ? workerLate(text) : workerFailed(text);
    this.#failed.push(worker);
    if (stage === "connect") down.failed(worker);
    if (stage === "sent" || stage === "garbled") down.broke(worker, hashOf(this.#incoming.body));
    if (stage === "connect" || this.#mayResend(stage)) return null;
    return { kind: "lost", error: this.#error, outcome: "worker_failed" };
  }

  /**
   * Returns true if the request may be resent: once if a worker had received it, never after an
   * answer began.
   */
  #mayResend(stage: AttemptFailure["stage"]): boolean {
    if (stage !== "sent" && stage !== "silent") return false;
    if (this.#isResent || !this.#parts.settings.isRetriedAfterSent) return false;
    this.#isResent = true;
    return true;
  }

  #left(attempted: Attempted | null = null): Dispatched {
    if (attempted?.kind === "answer") attempted.answer.close();
    this.#unavailable?.answer.close();
    return { kind: "left" };
  }

  /** Returns the best result so far, because no worker is left to try. */
  #given(outcome: Exclude<RouteOutcome, RouteDecision> | null): Dispatched {
    if (this.#unavailable !== null) return this.#unavailable;
    if (this.#error !== null) return { kind: "lost", error: this.#error, outcome: "worker_failed" };
    const { busyStatus, retryAfterSeconds } = this.#parts.settings;
    if (outcome?.kind === "busy") {
      const error = busy(`All workers are busy: ${outcome.why}`, busyStatus, retryAfterSeconds);
      return { kind: "lost", error, outcome: "busy" };
    }
    const isUnknown = outcome?.kind === "unknown_worker";
    const why = outcome?.why ?? "no worker";
    const error = isUnknown ? invalid(why) : unavailable(why);
    return { kind: "lost", error, outcome: "no_worker" };
  }

  /** Requests a worker from the router. Returns null if the client disconnected meanwhile. */
  async #route(): Promise<RouteOutcome | null> {
    const { router, down, health } = this.#parts;
    const unreachable = this.#withoutUrl();
    const resting = [...down.now(), ...health.out.keys()];
    try {
      const all = [...new Set([...this.#failed, ...unreachable, ...resting])];
      const outcome = await router.bestWorker(
        routeRequestOf(this.#incoming, all),
        this.#incoming.signal,
      );
      // A worker that failed recently is better than none, so allow excluded workers.
      if (outcome.kind !== "none" || resting.length === 0) return outcome;
      const fewer = [...this.#failed, ...unreachable];
      return await router.bestWorker(routeRequestOf(this.#incoming, fewer), this.#incoming.signal);
    } catch (thrown) {
      if (thrown instanceof HearthError && thrown.code === "ABORTED") return null;
      throw thrown;
    }
  }

  /** Returns the model's workers without a URL. The proxy cannot send requests to them. */
  #withoutUrl(): WorkerId[] {
    const { base } = this.#incoming.named;
    const targets = this.#parts.table.targets.filter(({ model }) => model === base);
    return targets.flatMap(({ url, worker }) => (url === null ? [worker] : []));
  }
}
