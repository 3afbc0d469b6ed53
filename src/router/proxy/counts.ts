import type { Json } from "../../core/index.ts";
import type { RequestBody } from "./request-body.ts";
import type { TokenCounts } from "./tokens/index.ts";

/** How a request ended, as the client saw it. */
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
  /** Requests that got another worker. */
  readonly retries: number;
  /** Workers that are left out now for their health, and how often one was since the start. */
  readonly workersOut: number;
  readonly timesOut: number;
  /** Engine processes that answer pings beside their server's `/health`. */
  readonly pulses: number;
  /** Prefills on a worker apart, and those that were left to the decode worker. */
  readonly prefills: number;
  readonly prefillsFailed: number;
  readonly outputTokens: number;
  readonly tokens: TokenCounts;
  /** Answers whose count of the prompt's tokens was compared with the proxy's own. */
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

/** An engine counted other tokens in a prompt than the proxy. */
export interface TokenDifference {
  readonly model: string;
  readonly here: number;
  readonly engine: number;
  /** A hash of which members the request has, in which order of roles; of no text. */
  readonly shape: string;
}

interface TokenCheckCounts {
  readonly equal: number;
  readonly different: number;
}

/** Compares the proxy's count of a prompt's tokens with `usage.prompt_tokens` of its answer. */
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

/** Members whose values are few words of an interface, never a user's. */
const SHOWN: ReadonlySet<string> = new Set(["role", "type", "reasoning_effort"]);
const DEPTH_MAX = 5;

/** The same for requests that have the same members, whatever is written in them. */
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
