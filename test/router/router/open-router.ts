import { seededRandom, type WorkerId } from "../../../src/core/index.ts";
import { loadNative } from "../../../src/native/index.ts";
import type { ResidencyTier } from "../../../src/observability/activity/index.ts";
import {
  ActiveLoad,
  PromptHasher,
  ROUTER_DEFAULTS,
  type RouteOutcome,
  type RouteRequest,
  Router,
  type RouterObserver,
  type RouterSettings,
  tokenSalt,
  type WorkerSpec,
  WorkerTable,
} from "../../../src/router/index.ts";
import { ManualClock } from "../../support/index.ts";
import { ReferenceIndex } from "../prefix-index/reference-index.ts";
import { specOf } from "../specs.ts";

export const B = 4;

/** A prompt with this number of tokens; prompts with the same start share its prefix. */
export function promptOf(tokens: number, start = 0): Uint32Array {
  return Uint32Array.from({ length: tokens }, (_, at) => start + at);
}

/** A router over a literal index, on a clock that stands still, with blocks of four tokens. */
export function openRouter(changed: Partial<RouterSettings> = {}, seed = 1) {
  const clock = new ManualClock();
  const native = loadNative();
  const settings = { ...ROUTER_DEFAULTS, blockTokens: B, ...changed };
  const table = new WorkerTable();
  const index = new ReferenceIndex();
  const { requestExpiryMs, blockTokens } = settings;
  const load = new ActiveLoad({ clock, blockTokens, requestExpiryMs });
  const random = seededRandom(seed);
  const router = new Router({ clock, random, native, settings, table, index, load });
  const told: string[] = [];
  const observer: RouterObserver = {
    routed: ({ requestId }, { target }) => told.push(`routed ${requestId} to ${target.worker}`),
    prefillComplete: (id) => told.push(`prefilled ${id}`),
    freed: (id, why) => told.push(`freed ${id}: ${why}`),
  };
  router.listen(observer);
  const hasher = new PromptHasher(native);
  return {
    ...{ clock, table, index, load, router, told, hasher },
    join: (worker: string, spec: Partial<WorkerSpec> = {}) => table.put(specOf(worker, spec)),
    /** As events would: the worker has the first `blocks` of a prompt. */
    hold(worker: string, tokens: Uint32Array, blocks: number, tier: ResidencyTier = "device") {
      const target = table.find(worker as WorkerId, 0)!.id;
      const hashes = hasher.tokens(tokens, B, tokenSalt(undefined, undefined)).slice(0, blocks);
      const change = { kind: "stored", tier, parent: null, hashes, tokenHashes: null } as const;
      index.apply([{ target, change }]);
    },
    /** Routes a prompt; with an id it is tracked. */
    ask: (tokens: Uint32Array, more: Partial<RouteRequest> = {}) => {
      return router.bestWorkerNow({ model: "m", prompt: { kind: "tokens", tokens }, ...more });
    },
  };
}

/** The chosen worker's name, or why there is none. */
export function workerOf(outcome: RouteOutcome): string {
  return outcome.kind === "routed" ? outcome.target.worker : outcome.kind;
}
