import type { ListedWorker, RouterConfig } from "../../config/index.ts";
import type { WorkerId } from "../../core/index.ts";
import type { KeySpace } from "../../observability/activity/index.ts";
import {
  type CostSettings,
  CREDITS_DEFAULTS,
  ROUTER_DEFAULTS,
  type RouterSettings,
  type WorkerSpec,
} from "../../router/index.ts";
import type { EngineFacts } from "./engine-discovery.ts";

/** Returns the settings of routing decisions from the router's configuration. */
export function routerSettings({ router }: RouterConfig): RouterSettings {
  return {
    ...ROUTER_DEFAULTS,
    ...router,
    cost: costOf(router),
    useKvEvents: router.kvEvents,
    prediction: {
      ...ROUTER_DEFAULTS.prediction,
      ttlMs: router.ttlMs,
      blocksMax: router.maxTreeSize,
      pruneRatio: router.pruneTargetRatio,
    },
    queue: { ...ROUTER_DEFAULTS.queue, requestsMax: router.queueRequests },
    affinity: { ...ROUTER_DEFAULTS.affinity, ttlMs: router.sessionAffinityTtlMs },
  };
}

function costOf(router: RouterConfig["router"]): CostSettings {
  const { overlapScoreWeight } = router;
  if (router.cost === "classic") return { kind: "classic", overlapScoreWeight };
  return { ...CREDITS_DEFAULTS, ...router, kind: "credits" };
}

/** Tokens per block if neither the configuration nor the engine gives a block size. */
const BLOCK_TOKENS = 16;

/**
 * Returns one spec per rank of a configured or registered worker. Empty if its model is unknown.
 */
export function specsOf(listed: ListedWorker, facts: EngineFacts): WorkerSpec[] {
  const { name, model, role, url, totalBlocks, batchTokensMax, ranks } = listed;
  if (model === null) return [];
  const blockTokens = listed.blockTokens ?? facts.blockTokens ?? BLOCK_TOKENS;
  return Array.from({ length: ranks }, (_, rank) => ({
    ...{ worker: name as WorkerId, rank, model, role, url, totalBlocks, batchTokensMax },
    spaces: spacesOf(model, blockTokens, listed.namespace),
  }));
}

function spacesOf(model: string, blockTokens: number, namespace: string | null): KeySpace[] {
  const tokens: KeySpace = { kind: "tokens", model, blockTokens };
  if (namespace === null) return [tokens];
  const namespaceKey = Uint8Array.fromHex(namespace);
  return [tokens, { kind: "blocks", model, blockTokens, namespaceKey }];
}
