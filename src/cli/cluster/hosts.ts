import type { Dispatcher, RoutedPrompt } from "../../workload/replay/index.ts";

/** A router that answers over HTTP. */
export interface ClusterRouter extends AsyncDisposable {
  get<T>(path: string): Promise<T>;
  /** Throws ENGINE_REFUSED where it answers with an error. */
  post<T>(path: string, body: string): Promise<T>;
}

/** Agents and, as wanted, a router, all of them ours. Disposing leaves nothing behind. */
export interface ClusterHosts extends AsyncDisposable {
  /** How they speak to each other. */
  readonly over: "nats" | "in-process";
  /** Sockets of the agents by worker. */
  readonly sockets: ReadonlyMap<string, string>;
  /** Empties every agent. */
  flush(): Promise<void>;
  openRouter(mode: string): Promise<ClusterRouter>;
}

export interface HostsOptions {
  readonly workers: number;
  readonly ramBlocks: number;
  readonly blockBytes: number;
  /** Tokens in a block of the trace. */
  readonly blockTokens: number;
  readonly signal: AbortSignal;
}

/** Keys of an agent's file that a cluster wants otherwise. */
export const EVENTS_SETTINGS = { heartbeat: '"200ms"' };

/**
 * Keys of the router's file. Mock engines read a block from RAM as fast as from anywhere, and write
 * no answers: what is cached counts in full, and for more than what others are at work on.
 */
export function routerSettings(mode: string, blockTokens: number) {
  const cost = { prefill_load_scale: "8", host_credit: "1" };
  return { id: '"demo"', mode: JSON.stringify(mode), block_tokens: String(blockTokens), ...cost };
}

/** Asks a router over HTTP, as whoever sends prompts would. */
export function dispatcherOf(router: ClusterRouter): Dispatcher {
  return {
    async route({ requestId, model, hashes, blockTokens, promptTokens }: RoutedPrompt) {
      const body =
        `{"model":${JSON.stringify(model)},"request_id":"${requestId}",` +
        `"block_tokens":${blockTokens},"prompt_tokens":${promptTokens},` +
        `"block_hashes":[${hashes.join(",")}]}`;
      return (await router.post<{ readonly worker: string }>("/v1/route", body)).worker;
    },
    async ended(requestId) {
      await router.post(`/v1/requests/${requestId}/prefill-complete`, "{}");
      await router.post(`/v1/requests/${requestId}/free`, "{}");
    },
  };
}
