import type { MetricRegistry } from "../../observability/index.ts";
import { POLICY_NAMES, type PolicyCounts } from "../../router/index.ts";
import { PROXY_OUTCOMES, type ProxySnapshot } from "../../router/proxy/index.ts";

/** Enters what the proxy counts. */
export function writeProxy(registry: MetricRegistry, proxy: ProxySnapshot): void {
  for (const outcome of PROXY_OUTCOMES) {
    registry.set("proxyRequests", proxy.outcomes[outcome], { outcome });
  }
  registry.set("proxyActive", proxy.active);
  registry.set("proxyRetries", proxy.retries);
  registry.set("proxyWorkersOut", proxy.workersOut);
  registry.set("proxyPulses", proxy.pulses);
  registry.set("proxyTimesOut", proxy.timesOut);
  registry.set("proxyPrefills", proxy.prefills, { outcome: "done" });
  registry.set("proxyPrefills", proxy.prefillsFailed, { outcome: "failed" });
  registry.set("proxyOutputTokens", proxy.outputTokens);
  const { prompts, failed, late } = proxy.tokens;
  registry.set("proxyPrompts", prompts - failed - late, { outcome: "done" });
  registry.set("proxyPrompts", failed, { outcome: "failed" });
  registry.set("proxyPrompts", late, { outcome: "late" });
  registry.set("proxyTokenChecks", proxy.checks.equal, { outcome: "equal" });
  registry.set("proxyTokenChecks", proxy.checks.different, { outcome: "different" });
}

const MODES = { off: 0, "dry-run": 0.5, on: 1 } as const;

/** Enters what policies count; those that are off have forgotten it. */
export function writePolicies(registry: MetricRegistry, counts: readonly PolicyCounts[]): void {
  for (const policy of POLICY_NAMES) {
    const found = counts.find((one) => one.policy === policy);
    registry.set("policyMode", MODES[found?.mode ?? "off"], { policy });
    if (found === undefined) continue;
    const outcome = (name: string, count: number) =>
      registry.set("policyCommands", count, { policy, outcome: name });
    outcome("sent", found.commands);
    outcome("receipt", found.receipts);
    outcome("refused", found.refused);
    outcome("no_answer", found.noAnswer);
    const declined = Object.values(found.declined).reduce((sum, count) => sum + count, 0);
    outcome("declined", declined);
    registry.set("policyInFlight", found.inFlight, { policy });
    registry.set("policyBytes", found.bytes, { policy });
  }
}
