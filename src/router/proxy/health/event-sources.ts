import { engineBinds, parseEndpoint } from "../../../events/zmtp/index.ts";

/** Where one rank of an engine publishes KV events, as others reach it. */
export interface EventSource {
  readonly rank: number;
  readonly events: string;
  /** Null: it keeps nothing to ask for. */
  readonly replay: string | null;
}

/** One rank has one; more than these are no answer of an engine. */
const RANKS_MAX = 256;
const TCP = /^tcp:\/\/(\*|[A-Za-z0-9.:_[\]-]+):([1-9][0-9]{0,4})$/;
const ANY_HOSTS: ReadonlySet<string> = new Set(["*", "0.0.0.0", "[::]", "::"]);

/**
 * The publishers that `GET /kv_event_sources` of vLLM names, in the order of ranks, with the host
 * of `url` in the place of all addresses. A publisher that connects to a listener cannot be reached
 * and is left out.
 */
export function eventSources(text: string, url: string): EventSource[] {
  const host = URL.parse(url)?.hostname;
  if (host === undefined) return [];
  return Object.entries(objectIn(text))
    .slice(0, RANKS_MAX)
    .flatMap(([rank, source]) => sourceOf(Number(rank), source, host))
    .sort((a, b) => a.rank - b.rank);
}

function sourceOf(rank: number, value: unknown, host: string): EventSource[] {
  if (typeof value !== "object" || value === null || !Number.isInteger(rank)) return [];
  const {
    publisher,
    endpoint,
    replay_endpoint,
    enable_kv_cache_events: isOn,
  } = {
    ...value,
  } as Readonly<Record<string, unknown>>;
  if (publisher !== "zmq" || isOn === false) return [];
  if (typeof endpoint !== "string" || !engineBinds(endpoint, "vllm")) return [];
  const events = reachable(endpoint, host);
  return events === null ? [] : [{ rank, events, replay: reachable(replay_endpoint, host) }];
}

/** Null: others cannot reach it. */
function reachable(endpoint: unknown, host: string): string | null {
  const match = typeof endpoint === "string" ? TCP.exec(endpoint) : null;
  if (match === null) return null;
  const reached = `tcp://${ANY_HOSTS.has(match[1]!) ? host : match[1]}:${match[2]}`;
  return parseEndpoint(reached) === null ? null : reached;
}

function objectIn(text: string): object {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value) ? value : {};
  } catch {
    return {};
  }
}
