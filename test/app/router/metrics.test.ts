import { describe, expect, test } from "bun:test";
import { createRouterMetrics, METRICS } from "../../../src/observability/index.ts";
import { POLICY_NAMES } from "../../../src/router/index.ts";
import { PROXY_OUTCOMES } from "../../../src/router/proxy/index.ts";
import { ManualClock } from "../../support/index.ts";

function metricsAt(clock = new ManualClock()) {
  const metrics = createRouterMetrics({ clock, version: "1", commit: "c" });
  const value = async (line: string) => {
    const found = (await metrics.text()).split("\n").find((one) => one.startsWith(`${line} `));
    return found === undefined ? null : Number(found.split(" ").at(-1));
  };
  return { clock, metrics, value };
}

const routed = (prompt: number, device: number) => ({ prompt, device, host: 0, disk: 0 });

describe("metrics of a router", () => {
  test("metric labels match the outcomes of proxy and policies", () => {
    expect(METRICS.proxyRequests.labels.outcome).toEqual(PROXY_OUTCOMES);
    expect(METRICS.policyMode.labels.policy).toEqual(POLICY_NAMES);
  });

  test("the hit ratio covers the last five minutes", async () => {
    const { clock, metrics, value } = metricsAt();
    expect(await value("cgn_router_cache_hit_ratio")).toBe(0);
    metrics.routed(routed(1_000, 0), "tie_draw", [null]);
    metrics.routed(routed(1_000, 500), "lowest_cost", [null, "stale", "stale"]);
    expect(await value("cgn_router_cache_hit_ratio")).toBe(0.25);
    clock.advance(200_000);
    metrics.routed(routed(1_000, 1_000), "lowest_cost", [null]);
    expect(await value("cgn_router_cache_hit_ratio")).toBe(0.5);
    clock.advance(150_000);
    expect(await value("cgn_router_cache_hit_ratio")).toBe(1);
    clock.advance(86_400_000);
    expect(await value("cgn_router_cache_hit_ratio")).toBe(0);
    expect(await value("hearth_router_prompt_tokens_total")).toBe(3_000);
    expect(await value('hearth_router_cached_tokens_total{tier="device"}')).toBe(1_500);
    expect(await value('hearth_router_decisions_total{by="lowest_cost"}')).toBe(2);
    expect(await value('hearth_router_filtered_total{reason="stale"}')).toBe(2);
  });

  test("a clock jump of years has no cost", async () => {
    const { clock, metrics, value } = metricsAt();
    metrics.routed(routed(10, 10), "only_one", [null]);
    clock.advance(1e12);
    expect(await value("cgn_router_cache_hit_ratio")).toBe(0);
    metrics.routed(routed(10, 5), "only_one", [null]);
    expect(await value("cgn_router_cache_hit_ratio")).toBe(0.5);
  });
});
