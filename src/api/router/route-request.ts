import { isWorkerId, type Json, parseJson, type WorkerId } from "../../core/index.ts";
import { ROUTER_MODES, type RouteOverrides, type RouteRequest } from "../../router/index.ts";
import { ScanError, type ScannedBody, scanBody } from "./scan-body.ts";

const NAMES = { tokens: ["tokens", "token_ids"], hashes: ["block_hashes", "hashes"] };
const TEXT_MAX = 1_024;
const LISTED_MAX = 4_096;
const NUMBER_MAX = 1e9;
const PHASES = ["prefill", "decode", "both"] as const;

/** Why a request is none, in words for whoever sent it. */
export class RequestError extends Error {}

/**
 * A prompt to be routed, as JSON has it. Throws RequestError where it is none. `id`: whether a
 * request id may be in it.
 */
export function readRouteRequest(bytes: Uint8Array): RouteRequest {
  try {
    return requestOf(scanBody(bytes, NAMES));
  } catch (thrown) {
    if (thrown instanceof ScanError || thrown instanceof SyntaxError) {
      throw new RequestError(`body: ${thrown.message.slice(0, 200)}`);
    }
    throw thrown;
  }
}

type Mutable<T> = { -readonly [Name in keyof T]: T[Name] };

function requestOf({ tokens, hashes, rest }: ScannedBody): RouteRequest {
  if (tokens !== null && hashes !== null) {
    throw new RequestError("body: a prompt is tokens or block_hashes, not both");
  }
  if (tokens === null && hashes === null) {
    throw new RequestError("body: tokens or block_hashes are missing");
  }
  const given = new Members(rest);
  const blockTokens = given.whole("block_tokens", 1, 65_536);
  const promptTokens = given.whole("prompt_tokens", 0, 2 ** 31);
  const request: Mutable<RouteRequest> = {
    // The indexer of the origin has it under its longer name.
    model: given.text("model") ?? given.text("model_name") ?? missing("model"),
    prompt:
      tokens !== null
        ? { kind: "tokens", tokens }
        : {
            kind: "hashes",
            hashes: hashes ?? new BigUint64Array(0),
            ...(blockTokens === undefined ? {} : { blockTokens }),
            ...(promptTokens === undefined ? {} : { tokens: promptTokens }),
          },
  };
  if (tokens !== null && (blockTokens ?? promptTokens) !== undefined) {
    throw new RequestError("body: block_tokens and prompt_tokens belong to block_hashes");
  }
  given.put(request, "requestId", given.text("request_id"));
  given.put(request, "loraName", given.text("lora_name"));
  given.put(request, "cacheSalt", given.text("cache_salt"));
  given.put(request, "sessionId", given.text("session_id"));
  given.put(request, "priority", given.number("priority", -NUMBER_MAX, NUMBER_MAX));
  const expected = given.whole("expected_output_tokens", 0, 2 ** 31);
  given.put(request, "expectedOutputTokens", expected);
  given.put(request, "phase", given.choice("phase", PHASES));
  given.put(request, "overrides", overridesOf(given.take("overrides")));
  given.mustBeEmpty("body");
  return request;
}

function missing(name: string): never {
  throw new RequestError(`body: ${name} is missing`);
}

function overridesOf(value: Json | undefined): RouteOverrides | undefined {
  if (value === undefined) return undefined;
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new RequestError("body: overrides is an object");
  }
  const given = new Members(new Map(), new Map(Object.entries(value)), "overrides.");
  const overrides: Mutable<RouteOverrides> = {};
  const weight = given.number("overlap_score_weight", 0, NUMBER_MAX);
  given.put(overrides, "overlapScoreWeight", weight);
  given.put(overrides, "temperature", given.number("temperature", 0, NUMBER_MAX));
  given.put(overrides, "mode", given.choice("mode", ROUTER_MODES));
  given.put(overrides, "worker", given.worker("worker"));
  given.put(overrides, "rank", given.whole("rank", 0, 65_535));
  given.put(overrides, "allowed", given.workers("allowed"));
  given.put(overrides, "excluded", given.workers("excluded"));
  given.put(overrides, "seed", given.whole("seed", 0, 0xffff_ffff));
  given.mustBeEmpty("body: overrides");
  return overrides;
}

/** Members of an object, each taken once; null is as good as absent. */
class Members {
  readonly #texts: Map<string, string>;
  readonly #values: Map<string, Json>;
  readonly #prefix: string;

  constructor(texts: ReadonlyMap<string, string>, values = new Map<string, Json>(), prefix = "") {
    this.#texts = new Map(texts);
    this.#values = values;
    this.#prefix = prefix;
  }

  take(name: string): Json | undefined {
    const text = this.#texts.get(name);
    const value = text === undefined ? this.#values.get(name) : parseJson(text);
    this.#texts.delete(name);
    this.#values.delete(name);
    return value ?? undefined;
  }

  put<T, Name extends keyof T>(into: T, name: Name, value: T[Name] | undefined): void {
    if (value !== undefined) into[name] = value;
  }

  text(name: string): string | undefined {
    const value = this.take(name);
    if (value === undefined || (typeof value === "string" && isText(value))) return value;
    return this.#refuse(name, `a string of 1 to ${TEXT_MAX} characters`);
  }

  number(name: string, min: number, max: number): number | undefined {
    const value = this.take(name);
    if (value === undefined) return undefined;
    if (typeof value === "number" && value >= min && value <= max) return value;
    return this.#refuse(name, `a number from ${min} to ${max}`);
  }

  whole(name: string, min: number, max: number): number | undefined {
    const value = this.number(name, min, max);
    if (value === undefined || Number.isInteger(value)) return value;
    return this.#refuse(name, `a whole number from ${min} to ${max}`);
  }

  choice<const Word extends string>(name: string, words: readonly Word[]): Word | undefined {
    const value = this.take(name);
    if (value === undefined) return undefined;
    const found = words.find((word) => word === value);
    return found ?? this.#refuse(name, `one of ${words.join(", ")}`);
  }

  worker(name: string): WorkerId | undefined {
    const value = this.take(name);
    if (value === undefined) return undefined;
    return typeof value === "string" && isWorkerId(value)
      ? value
      : this.#refuse(name, "a worker id");
  }

  workers(name: string): readonly WorkerId[] | undefined {
    const value = this.take(name);
    if (value === undefined) return undefined;
    const isList = Array.isArray(value) && value.length <= LISTED_MAX;
    const ids = isList ? value.map(String) : [];
    if (isList && ids.every(isWorkerId)) return ids;
    return this.#refuse(name, `a list of worker ids, ${LISTED_MAX} at most`);
  }

  /** A name that means nothing here was meant to mean something. */
  mustBeEmpty(where: string): void {
    const [name] = [...this.#texts.keys(), ...this.#values.keys()];
    if (name === undefined) return;
    throw new RequestError(`${where}: there is no ${JSON.stringify(name.slice(0, 40))}`);
  }

  #refuse(name: string, what: string): never {
    throw new RequestError(`body: ${this.#prefix}${name} is ${what}`);
  }
}

function isText(value: string): boolean {
  return value.length > 0 && value.length <= TEXT_MAX;
}
