import { type Clock, seededRandom } from "../core/index.ts";
import { loadHttp } from "../workload/bench/index.ts";
import { PrivateRouter } from "../workload/replay/index.ts";

export interface RouteOverHttpOptions {
  readonly clock: Clock;
  readonly workers: number;
  /** Of each prompt. */
  readonly promptTokens: number;
  /** How long it is measured. */
  readonly ms: number;
  readonly signal: AbortSignal;
}

/** The names are those of the JSON that `hearth bench decide` prints. */
export interface RouteOverHttp {
  readonly http_prompt_tokens: number;
  readonly http_connections: number;
  readonly http_route_per_s: number;
  readonly http_p50_ms: number;
  readonly http_p99_ms: number;
}

const MODEL = "bench";
const PROMPTS = 256;
const LIVE = 1_024;
const CONNECTIONS = 8;
const WARM_UP_MS = 1_000;
const VOCABULARY = 128_000;

/**
 * Measures `POST /v1/route` of a router in a process of its own, which has one thread. Each request
 * counts as load until its id comes again. What workers hold is what was predicted from routing.
 */
export async function routeOverHttp(options: RouteOverHttpOptions): Promise<RouteOverHttp> {
  const { clock, workers, promptTokens, ms, signal } = options;
  await using router = await PrivateRouter.start({ settings: {}, signal });
  for (let number = 0; number < workers; number++) {
    const worker = JSON.stringify({ worker: `w-${number}`, model: MODEL });
    await router.post("/v1/workers", worker);
  }
  const bodies = promptBodies(promptTokens);
  const load = { clock, url: router.apiUrl, path: "/v1/route", bodies, signal };
  await loadHttp({ ...load, connections: CONNECTIONS, ms: WARM_UP_MS });
  const result = await loadHttp({ ...load, connections: CONNECTIONS, ms });
  return {
    http_prompt_tokens: promptTokens,
    http_connections: CONNECTIONS,
    http_route_per_s: result.perSecond,
    http_p50_ms: Number(result.p50Ms.toFixed(3)),
    http_p99_ms: Number(result.p99Ms.toFixed(3)),
  };
}

function promptBodies(promptTokens: number): string[] {
  const random = seededRandom(1);
  const prompts = Array.from({ length: PROMPTS }, () =>
    Array.from({ length: promptTokens }, () => random.u32() % VOCABULARY).join(","),
  );
  return Array.from({ length: LIVE }, (_, at) => {
    const tokens = prompts[at % PROMPTS];
    return `{"model":"${MODEL}","request_id":"r-${at}","tokens":[${tokens}]}`;
  });
}
