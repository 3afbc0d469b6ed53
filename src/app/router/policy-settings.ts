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
    coldWorker: { ...coldWorker, mode: policies.coldWorker },
    idleSession: { ...idleSession, mode: policies.idleSession },
    cacheControl: { ...cacheControl, mode: policies.cacheControl },
    reasoning: { ...reasoning, mode: policies.reasoning },
    contextRewrite: { ...contextRewrite, mode: policies.contextRewrite },
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
