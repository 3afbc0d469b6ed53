import type { WorkerId } from "../../core/index.ts";
import type { RouteRequest, Router } from "../index.ts";
import type { AskSpec } from "./endpoint.ts";
import type { Hints } from "./hints.ts";
import type { NamedModel } from "./models.ts";
import type { ProxyObserver, RequestEnd } from "./observer.ts";
import type { SeenPrompt } from "./prompt.ts";
import type { RequestBody } from "./request-body.ts";

/** One request for tokens, as far as it is known before a worker is chosen. */
export interface Asked {
  readonly spec: AskSpec;
  /** With its query. */
  readonly path: string;
  readonly headers: Headers;
  readonly body: RequestBody;
  readonly named: NamedModel;
  readonly hints: Hints;
  readonly prompt: SeenPrompt;
  readonly flight: Flight;
  /** Fires when the client leaves, and when the proxy gives the request up. */
  readonly signal: AbortSignal;
}

/**
 * Whether the proxy asks for the usage of a stream beside its client, to compare its count of the
 * prompt. Engines that do not know `stream_options` have it among their `strip_fields`.
 */
export function wantsUsage({ spec, body, named, prompt }: Asked): boolean {
  if (!body.isStream || prompt.tokens === null || !prompt.isCountKnown) return false;
  if (spec.prompt !== "chat" && spec.prompt !== "completions") return false;
  if (named.model.stripFields.includes("stream_options")) return false;
  const { stream_options: options = null } = body.fields;
  if (options === null) return true;
  const isPlain = typeof options === "object" && !Array.isArray(options);
  return isPlain && (options.include_usage ?? false) === false;
}

/** The question to the router; `excluded`: workers that must not be chosen. */
export function routeRequestOf(asked: Asked, excluded: readonly WorkerId[]): RouteRequest {
  const { spec, named, prompt, hints, flight } = asked;
  const { loraName } = named;
  const { cacheSalt, sessionId, priority, expectedOutputTokens } = hints;
  return {
    model: named.base,
    prompt: prompt.prompt,
    // Without an id nothing is remembered: a request that computes nothing is no load.
    ...(spec.isWork ? { requestId: flight.id } : {}),
    ...(loraName === null ? {} : { loraName }),
    ...(cacheSalt === null ? {} : { cacheSalt }),
    ...(sessionId === null ? {} : { sessionId }),
    ...(priority === null ? {} : { priority }),
    ...(expectedOutputTokens === null ? {} : { expectedOutputTokens }),
    overrides: { ...hints.overrides, ...(excluded.length === 0 ? {} : { excluded }) },
  };
}

/** Output is told in steps of so many tokens: a block of the usual size. */
const OUTPUT_STEP = 16;

/** What the router remembers of one request, told once each whatever happens. */
export class Flight {
  readonly id: string;
  readonly #router: Router;
  readonly #observers: ReadonlySet<ProxyObserver>;
  #isRouted = false;
  #isPrefilled = false;
  #isEnded = false;
  #toldTokens = 0;

  constructor(id: string, router: Router, observers: ReadonlySet<ProxyObserver>) {
    [this.id, this.#router, this.#observers] = [id, router, observers];
  }

  /** The router has given it a worker. */
  routed(): void {
    this.#isRouted = true;
    this.#isPrefilled = false;
    this.#toldTokens = 0;
    if (this.#isEnded) this.leave();
  }

  prefilled(): void {
    if (this.#isPrefilled || !this.#isRouted) return;
    this.#isPrefilled = true;
    this.#router.markPrefillComplete(this.id);
  }

  /** Output so far. */
  output(tokens: number): void {
    if (!this.#isRouted || tokens - this.#toldTokens < OUTPUT_STEP) return;
    this.#toldTokens = tokens;
    this.#router.output(this.id, tokens);
  }

  /** It gives up the worker it has. */
  leave(): void {
    if (!this.#isRouted) return;
    this.#isRouted = false;
    this.#router.free(this.id);
  }

  /** Nothing more comes of it. */
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
