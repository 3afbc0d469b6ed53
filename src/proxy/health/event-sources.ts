import { parseEndpoint } from "../../zmtp/index.ts";

/** One rank has one; more than these are no answer of an engine. */
const RANKS_MAX = 256;
/** Where an engine listens on all addresses; on any other it connects to a listener. */
const ANY_HOST = /^tcp:\/\/(?:\*|\[::\]):([1-9][0-9]{0,4})$/;

/**
 * Where the engine behind `url` publishes KV events, as `GET /kv_event_sources` of vLLM says: one
 * endpoint for each rank, with the host of `url`. Empty where it says nothing that is understood.
 */
export function eventEndpoints(text: string, url: string): string[] {
  const host = URL.parse(url)?.hostname;
  if (host === undefined) return [];
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value !== "object" || value === null || Array.isArray(value)) return [];
    const sources = Object.values(value).slice(0, RANKS_MAX);
    return sources.flatMap((source: { publisher?: unknown; endpoint?: unknown } | null) => {
      const { publisher, endpoint } = source ?? {};
      if (publisher !== "zmq" || typeof endpoint !== "string") return [];
      const port = ANY_HOST.exec(endpoint)?.[1];
      const reached = `tcp://${host}:${port}`;
      return port === undefined || parseEndpoint(reached) === null ? [] : [reached];
    });
  } catch {
    return [];
  }
}
