import type { TokenCheckCounts } from "./token-check.ts";
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
