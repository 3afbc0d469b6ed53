import type { RouterConfig } from "../../config/index.ts";
import {
  POLICY_DEFAULTS,
  type PolicyMode,
  type PolicyName,
  type PolicySettings,
} from "../../router/index.ts";

/** What the policies do, as the router's file has it. */
export function policySettings({ policies }: RouterConfig): PolicySettings {
  const { coldWorker, idleSession, cacheControl, reasoning, contextRewrite } = POLICY_DEFAULTS;
  return {
    ...POLICY_DEFAULTS,
    coldWorker: { ...coldWorker, mode: policies.coldWorker, bytesMax: policies.warmBytes },
    idleSession: {
      ...{ ...idleSession, mode: policies.idleSession },
      ...{ idleMs: policies.idleAfterMs, ttlMs: policies.leaseTtlMs },
    },
    cacheControl: {
      ...{ ...cacheControl, mode: policies.cacheControl, ttlMs: policies.pinTtlMs },
      ownerTokensMax: policies.pinOwnerTokens,
      workerTokensMax: policies.pinWorkerTokens,
    },
    reasoning: { ...reasoning, mode: policies.reasoning },
    contextRewrite: {
      ...{ ...contextRewrite, mode: policies.contextRewrite, settleMs: policies.rewriteAfterMs },
    },
  };
}

/** Their switches, which may change while it runs. */
export function policyModes({ policies }: RouterConfig): readonly [PolicyName, PolicyMode][] {
  return [
    ["cold_worker", policies.coldWorker],
    ["idle_session", policies.idleSession],
    ["cache_control", policies.cacheControl],
    ["reasoning", policies.reasoning],
    ["context_rewrite", policies.contextRewrite],
  ];
}
