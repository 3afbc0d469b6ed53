import type { Json } from "../../core/index.ts";
import type { RequestBody } from "./request-body.ts";
import type { TokenCounts } from "./tokens/index.ts";

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

export interface ProxySnapshot {
  readonly active: number;
  readonly outcomes: Readonly<Record<ProxyOutcome, number>>;
  /** Requests that were sent to another worker. */
  readonly retries: number;
  /** Workers excluded now because of their health, and exclusions since the start. */
  readonly workersOut: number;
  readonly timesOut: number;
  /** Engine processes that answer pings in addition to their server's `/health`. */
  readonly pulses: number;
  /** Prefills that ran on a prefill worker, and prefills left to the decode worker. */
  readonly prefills: number;
  readonly prefillsFailed: number;
  readonly outputTokens: number;
  readonly tokens: TokenCounts;
  /** Answers whose prompt token count was compared with the proxy's count. */
  readonly checks: TokenCheckCounts;
}

export class ProxyCounts {
  readonly outcomes: Record<ProxyOutcome, number> = {
    done: 0,
    client_left: 0,
    refused: 0,
    busy: 0,
    no_worker: 0,
    worker_failed: 0,
  };
  retries = 0;
  prefills = 0;
  prefillsFailed = 0;
  outputTokens = 0;
}

/** The engine counted other prompt tokens than the proxy. */
export interface TokenDifference {
  readonly model: string;
  readonly here: number;
  readonly engine: number;
  /** Hash of the request's field names and its order of roles. Contains no text of the request. */
  readonly shape: string;
}

interface TokenCheckCounts {
  readonly equal: number;
  readonly different: number;
}

/** Compares the proxy's prompt token count with `usage.prompt_tokens` of the answer. */
export class TokenCheck {
  readonly #onDifference: (difference: TokenDifference) => void;
  #equal = 0;
  #different = 0;

  constructor(onDifference: (difference: TokenDifference) => void) {
    this.#onDifference = onDifference;
  }

  get counts(): TokenCheckCounts {
    return { equal: this.#equal, different: this.#different };
  }

  compare(model: string, here: number, engine: number, body: RequestBody): void {
    if (here === engine) {
      this.#equal++;
      return;
    }
    this.#different++;
    this.#onDifference({ model, here, engine, shape: shapeHash(body.fields) });
  }
}

/** Fields whose values are keywords of the API and never text of a user. */
const SHOWN: ReadonlySet<string> = new Set(["role", "type", "reasoning_effort"]);
const DEPTH_MAX = 5;

/**
 * Hashes the field names of a request. Equal for requests with equal fields, whatever their values.
 */
function shapeHash(fields: Readonly<Record<string, Json>>): string {
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
