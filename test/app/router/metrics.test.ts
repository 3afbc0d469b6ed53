import { describe, expect, test } from "bun:test";
import { ROUTER_METRICS, RouterMetrics } from "../../../src/api/index.ts";
import type { WorkerId } from "../../../src/core/index.ts";
import { POLICY_NAMES, RouteCounts } from "../../../src/router/index.ts";
import { PROXY_OUTCOMES } from "../../../src/router/proxy/index.ts";
import { routerSources } from "../../api/router/router-sources.ts";
import { ManualClock } from "../../support/index.ts";

function metricsAt(clock = new ManualClock()) {
  const metrics = new RouterMetrics();
  const counts = new RouteCounts(clock, metrics.observeSeconds);
  const value = async (line: string) => {
    const text = await metrics.text(() => routerSources({ clock, counts }));
    const found = text.split("\n").find((one) => one.startsWith(`${line} `));
    return found === undefined ? null : Number(found.split(" ").at(-1));
  };
  return { clock, counts, value };
}

const routed = (prompt: number, device: number) => ({ prompt, device, host: 0, disk: 0 });

describe("metrics of a router", () => {
  test("metric labels match the outcomes of proxy and policies", () => {
    const { hearth_router_proxy_requests_total: requests } = ROUTER_METRICS;
    expect(requests.labels.outcome).toEqual(PROXY_OUTCOMES);
    expect(ROUTER_METRICS.hearth_router_policy_on.labels.policy).toEqual(POLICY_NAMES);
  });

  test("the hit ratio covers the last five minutes", async () => {
    const { clock, counts, value } = metricsAt();
    expect(await value("cgn_router_cache_hit_ratio")).toBe(0);
    counts.routed(routed(1_000, 0), "tie_draw", [null]);
    counts.routed(routed(1_000, 500), "lowest_cost", [null, "stale", "stale"]);
    expect(await value("cgn_router_cache_hit_ratio")).toBe(0.25);
    clock.advance(200_000);
    counts.routed(routed(1_000, 1_000), "lowest_cost", [null]);
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
    const { clock, counts, value } = metricsAt();
    counts.routed(routed(10, 10), "only_one", [null]);
    clock.advance(1e12);
    expect(await value("cgn_router_cache_hit_ratio")).toBe(0);
    counts.routed(routed(10, 5), "only_one", [null]);
    expect(await value("cgn_router_cache_hit_ratio")).toBe(0.5);
  });

  test("the series of a worker end when the router no longer knows it", async () => {
    const metrics = new RouterMetrics();
    const worker = "gpu-01" as WorkerId;
    const reached = [{ worker, isReached: true }];
    const line = 'hearth_router_worker_reached{worker="gpu-01"} 1';
    expect(await metrics.text(() => routerSources({ reached }))).toContain(line);
    expect(await metrics.text(() => routerSources())).not.toContain("gpu-01");
  });

  test("events and resynchronizations are counted by kind", async () => {
    const { value } = metricsAt();
    expect(await value('hearth_router_events_total{kind="change"}')).toBe(2);
    expect(await value('hearth_router_events_total{kind="pending_dropped"}')).toBe(6);
    expect(await value('hearth_router_resyncs_total{kind="gap"}')).toBe(4);
    expect(await value('hearth_router_resyncs_total{kind="picture"}')).toBe(5);
  });
});
