import type { Json } from "../../core/index.ts";
import type { Fields } from "./request-body.ts";
import type { Tokens } from "./tokens/index.ts";

/** Results of a request from the client's point of view. */
export const PROXY_OUTCOMES = [
  "done",
  "client_left",
  "refused",
  "busy",
  "no_worker",
  "worker_failed",
] as const;
export type ProxyOutcome = (typeof PROXY_OUTCOMES)[number];

export class ProxyCounts {
  readonly outcomes = Object.fromEntries(PROXY_OUTCOMES.map((outcome) => [outcome, 0])) as Record<
    ProxyOutcome,
    number
  >;
  /** Number of times a request was sent to another worker. */
  retries = 0;
  /**
   * Prefills that succeeded on a prefill worker. `prefillsFailed`: those that the decode worker ran
   * instead.
   */
  prefills = 0;
  prefillsFailed = 0;
  outputTokens = 0;
  /** Comparisons of the proxy's prompt token count with the engine's, by result. */
  readonly checks = { equal: 0, different: 0 };
}

export interface ProxySnapshot extends Readonly<ProxyCounts> {
  readonly active: number;
  /**
   * Number of workers excluded now because of their health. `timesOut`: exclusions since the start.
   */
  readonly workersOut: number;
  readonly timesOut: number;
  /** Number of engine processes that answer pings, in addition to their server's `/health`. */
  readonly pulses: number;
  readonly tokens: Tokens["counts"];
}

/** The engine counted a different number of prompt tokens than the proxy (`here`). */
export interface TokenDifference {
  readonly model: string;
  readonly here: number;
  readonly engine: number;
  /** Hash of the request's field names and message roles. Reveals no text of the request. */
  readonly shape: string;
}

/** Fields whose values are keywords of the API, not text of a user. */
const SHOWN: ReadonlySet<string> = new Set(["role", "type", "reasoning_effort"]);
const DEPTH_MAX = 5;

/**
 * Hashes the structure of a request. Requests with equal field names, types and keywords have equal
 * hashes, whatever their text.
 */
export function shapeHash(fields: Fields): string {
  const text = JSON.stringify(shapeOf(fields, "", 0));
  return Bun.hash.xxHash3(text).toString(16).padStart(16, "0");
}

function shapeOf(value: Json, key: string, depth: number): unknown {
  if (typeof value === "string" && SHOWN.has(key)) return value.slice(0, 32);
  if (typeof value !== "object" || value === null) return typeof value;
  if (depth >= DEPTH_MAX) return "deep";
  if (!Array.isArray(value)) {
    const keys = Object.keys(value).sort();
    return keys.map((name) => [name, shapeOf(value[name], name, depth + 1)]);
  }
  const items = value.map((one) => JSON.stringify(shapeOf(one, key, depth + 1)));
  return [...new Set(items)];
}
