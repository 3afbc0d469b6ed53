import type { Json } from "../../core/index.ts";
import type { Fields } from "./request-body.ts";
import type { Tokens } from "./tokens/index.ts";

/** How a request ended from the client's point of view. */
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
  /** Requests that were sent to another worker. */
  retries = 0;
  /** Prefills that ran on a prefill worker, and prefills left to the decode worker. */
  prefills = 0;
  prefillsFailed = 0;
  outputTokens = 0;
  /** Answers whose prompt token count was compared with the proxy's count. */
  readonly checks = { equal: 0, different: 0 };
}

export interface ProxySnapshot extends Readonly<ProxyCounts> {
  readonly active: number;
  /** Workers excluded now because of their health, and exclusions since the start. */
  readonly workersOut: number;
  readonly timesOut: number;
  /** Engine processes that answer pings in addition to their server's `/health`. */
  readonly pulses: number;
  readonly tokens: Tokens["counts"];
}

/** The engine counted other prompt tokens than the proxy. */
export interface TokenDifference {
  readonly model: string;
  readonly here: number;
  readonly engine: number;
  /** Hash of the request's field names and its order of roles. Contains no text of the request. */
  readonly shape: string;
}

/** Fields whose values are keywords of the API and never text of a user. */
const SHOWN: ReadonlySet<string> = new Set(["role", "type", "reasoning_effort"]);
const DEPTH_MAX = 5;

/**
 * Hashes the field names of a request. Equal for requests with equal fields, whatever their values.
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
    return keys.map((name) => [name, shapeOf(value[name]!, name, depth + 1)]);
  }
  const items = value.map((one) => JSON.stringify(shapeOf(one, key, depth + 1)));
  return [...new Set(items)];
}
