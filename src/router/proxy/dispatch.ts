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

/** A worker's answer that the client gets, complete or from its first piece on. */
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
  /** Called if a request could not be sent to a worker at all. */
  readonly onUnsendable: (worker: WorkerId, why: string) => void;
}

/**
 * Finds a worker that answers.
 * If a worker cannot be connected to, another one is tried, up to `retriesMax` times. If a worker
 * had the request and died or became silent before its first byte, the request is resent once only,
 * since the request itself may have killed the worker. The same holds for an answer that breaks off
 * before the client has seen any of it. A worker that is only late is not replaced, since it may be
 * computing.
 */
export class Dispatch {
  readonly #parts: DispatchParts;
  readonly #incoming: ProxyRequest;
  readonly #failed: WorkerId[] = [];
  /** Unavailable answer, returned if no worker gives a better one. */
  #unavailable: Won | null = null;
  #error: ProxyError | null = null;
  /** The request was sent to a second worker although the first one had received it. */
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
   * Sends the request, and gives the worker up if it becomes silent while another one could serve
   * the request.
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

  /** Whether another healthy worker could take the request. */
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
        // A stale worker may be healthy: only its events are missing.
        (state === "live" || state === "stale") &&
        !resting.has(worker) &&
        !health.out.has(worker),
    );
  }

  /**
   * Decides on an attempt's result. Null: the failure is recorded, and another worker may be tried.
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
   * Whether the request may be resent: once if a worker had received it, never if an answer began.
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

  /** No worker is left: returns the best result so far. */
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

  /** Asks the router for a worker. Null: the client disconnected meanwhile. */
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
      // A worker that failed a moment ago is better than none.
      if (outcome.kind !== "none" || resting.length === 0) return outcome;
      const fewer = [...this.#failed, ...unreachable];
      return await router.bestWorker(routeRequestOf(this.#incoming, fewer), this.#incoming.signal);
    } catch (thrown) {
      if (thrown instanceof HearthError && thrown.code === "ABORTED") return null;
      throw thrown;
    }
  }

  /** Workers without a URL, which accept no requests from the proxy. */
  #withoutUrl(): WorkerId[] {
    const { base } = this.#incoming.named;
    const targets = this.#parts.table.targets.filter(({ model }) => model === base);
    return targets.flatMap(({ url, worker }) => (url === null ? [worker] : []));
  }
}
