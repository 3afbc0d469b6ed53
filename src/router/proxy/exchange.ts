import type { Clock, Random, WorkerId } from "../../core/index.ts";
import type { RouteRequest, Router, WorkerTable } from "../index.ts";
import type { ProxyCounts } from "./counts.ts";
import type { EndpointSpec } from "./endpoint.ts";
import type { Hints } from "./hints.ts";
import type { NamedModel } from "./models.ts";
import type { ProxyObserver, RequestEnd } from "./observer.ts";
import type { SeenPrompt } from "./prompt.ts";
import type { RequestBody } from "./request-body.ts";
import type { ProxySettings } from "./settings.ts";
import type { ResponseHomes } from "./side-paths.ts";
import type { Upstream } from "./upstream.ts";
import type { DownWorkers } from "./worker-health.ts";

/** Objects that all parts of the proxy use. */
export interface ProxyParts {
  readonly clock: Clock;
  readonly random: Random;
  readonly router: Router;
  readonly table: WorkerTable;
  readonly settings: ProxySettings;
  readonly upstream: Upstream;
  readonly counts: ProxyCounts;
  readonly homes: ResponseHomes;
  readonly down: DownWorkers;
}

/** A generation request, with everything known before a worker is chosen. */
export interface ProxyRequest {
  readonly spec: EndpointSpec;
  /** Request path with its query. */
  readonly path: string;
  readonly headers: Headers;
  readonly body: RequestBody;
  readonly named: NamedModel;
  readonly hints: Hints;
  readonly prompt: SeenPrompt;
  readonly tracker: RequestTracker;
  /** Fires if the client disconnects or the proxy cancels the request. */
  readonly signal: AbortSignal;
}

/**
 * Returns true if the proxy adds a usage request to a stream whose client sent none. The proxy
 * compares the usage with its own prompt token count. Engines that reject `stream_options` list it
 * in `strip_fields`.
 */
export function wantsUsage({ spec, body, named, prompt }: ProxyRequest): boolean {
  if (!body.isStream || prompt.tokens === null || !prompt.isCountKnown) return false;
  if (spec.prompt !== "chat" && spec.prompt !== "completions") return false;
  if (named.model.stripFields.includes("stream_options")) return false;
  const { stream_options: options = null } = body.fields;
  if (options === null) return true;
  const isPlain = typeof options === "object" && !Array.isArray(options);
  return isPlain && (options.include_usage ?? false) === false;
}

/** Builds the request to the router. `excluded`: workers that must not be chosen. */
export function routeRequestOf(
  incoming: ProxyRequest,
  excluded: readonly WorkerId[],
): RouteRequest {
  const { spec, named, prompt, hints, tracker } = incoming;
  const { loraName } = named;
  const { cacheSalt, sessionId, priority, expectedOutputTokens } = hints;
  return {
    model: named.base,
    prompt: prompt.prompt,
    // Without an id the router records no load: a request for which the worker computes nothing
    // adds none.
    ...(spec.isWork ? { requestId: tracker.id } : {}),
    ...(loraName === null ? {} : { loraName }),
    ...(cacheSalt === null ? {} : { cacheSalt }),
    ...(sessionId === null ? {} : { sessionId }),
    ...(priority === null ? {} : { priority }),
    ...(expectedOutputTokens === null ? {} : { expectedOutputTokens }),
    overrides: { ...hints.overrides, ...(excluded.length === 0 ? {} : { excluded }) },
  };
}

/** Minimum tokens between two output reports to the router: a block of the usual size. */
const OUTPUT_STEP = 16;

/**
 * Reports one request's progress to the router. Each change is reported once, in whatever order the
 * calls arrive.
 */
export class RequestTracker {
  readonly id: string;
  readonly #router: Router;
  readonly #observers: ReadonlySet<ProxyObserver>;
  #isRouted = false;
  #isPrefilled = false;
  #isEnded = false;
  #reportedTokens = 0;

  constructor(id: string, router: Router, observers: ReadonlySet<ProxyObserver>) {
    [this.id, this.#router, this.#observers] = [id, router, observers];
  }

  /** Records that the router has chosen a worker. */
  routed(): void {
    this.#isRouted = true;
    this.#isPrefilled = false;
    this.#reportedTokens = 0;
    if (this.#isEnded) this.leave();
  }

  prefilled(): void {
    if (this.#isPrefilled || !this.#isRouted) return;
    this.#isPrefilled = true;
    this.#router.markPrefillComplete(this.id);
  }

  /** Reports how many output tokens the request has produced so far. */
  output(tokens: number): void {
    if (!this.#isRouted || tokens - this.#reportedTokens < OUTPUT_STEP) return;
    this.#reportedTokens = tokens;
    this.#router.output(this.id, tokens);
  }

  /** Frees the request in the router. It may be routed again. */
  leave(): void {
    if (!this.#isRouted) return;
    this.#isRouted = false;
    this.#router.free(this.id);
  }

  /** Frees the request and notifies the observers of its end. */
  end(end: RequestEnd): void {
    if (this.#isEnded) return;
    this.#isEnded = true;
    this.leave();
    for (const observer of this.#observers) observer.ended?.(this.id, end);
  }

  get isEnded(): boolean {
    return this.#isEnded;
  }
}
