import { describe, expect, test } from "bun:test";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import {
  AGENT_METRICS,
  AgentMetrics,
  type AgentSources,
  METRICS,
  ROUTER_METRICS,
} from "../../src/api/index.ts";
import { COMMAND_TYPES, REFUSALS } from "../../src/control/index.ts";
import { TurnBudget } from "../../src/core/index.ts";
import { FRAME_OPERATIONS, FRAME_STATUSES, FrameCounts } from "../../src/engine/index.ts";
import { FrameStatus, Op } from "../../src/engine/protocol/index.ts";
import {
  Health,
  type MetricTable,
  renderMetricsReference,
  watchLoopLag,
} from "../../src/observability/index.ts";
import type { BreakerState, PeerStatus } from "../../src/peers/index.ts";
import { agentSources } from "../api/agent-sources.ts";
import { ManualClock } from "../support/index.ts";

const SPECS = Object.entries(METRICS);
const TABLES: Readonly<Record<"agent" | "router", MetricTable<never>>> = {
  agent: AGENT_METRICS,
  router: ROUTER_METRICS,
};

describe("the catalogue", () => {
  test("names of one family, with the suffix of their type", () => {
    for (const [name, { type, help }] of SPECS) {
      expect(name).toMatch(/^(cgn_kvcached|cgn_router|hearth)_[a-z0-9_]+[a-z]$/);
      expect(name.endsWith("_total")).toBe(type === "counter");
      expect(help).toMatch(/^[A-Z].*[^.]$/);
    }
  });

  test("names, labels, buckets and texts are those of the golden file", () => {
    const lines = Object.entries(TABLES).flatMap(([kind, table]) =>
      Object.entries(table).map(([name, { type, help, labels, buckets }]) => {
        const series = Object.entries(labels).map(([label, values]) => {
          return ` ${label}=${values.toSorted().join("|")}`;
        });
        const bounds = buckets.length === 0 ? "" : ` buckets=${buckets.join(",")}`;
        return `${kind} ${name} ${type}${series.join("")}${bounds}: ${help}`;
      }),
    );
    const file = join(import.meta.dir, "golden", "metrics.txt");
    const found = `${lines.sort().join("\n")}\n`;
    if (process.env.UPDATE_GOLDEN === "1") writeFileSync(file, found);
    expect(found).toBe(readFileSync(file, "utf8"));
  });

  test("keeps the names in users' dashboards", () => {
    const labels = new Map(SPECS.map(([name, { labels }]) => [name, Object.keys(labels)]));
    expect(labels.get("cgn_kvcached_blocks")).toEqual(["tier"]);
    expect(labels.get("cgn_kvcached_bytes")).toEqual(["tier"]);
    expect(labels.get("cgn_kvcached_lookup_seconds")).toEqual(["tier", "outcome"]);
    expect(labels.get("cgn_kvcached_evictions_total")).toEqual(["tier"]);
  });

  test.each(["agent", "router"] as const)("bounds the number of series of the %s", (kind) => {
    const series = Object.values(TABLES[kind]).map(({ labels, buckets }) => {
      const combinations = Object.values(labels).map((values) => Math.max(values.length, 1));
      return combinations.reduce((product, count) => product * count, 1) * (buckets.length + 3);
    });
    expect(series.reduce((sum, count) => sum + count, 0)).toBeLessThan(2_500);
  });

  test("counts frames by the numbers of the engine protocol", () => {
    const names = (table: Readonly<Record<string, number>>) =>
      Object.entries(table).sort(([, a], [, b]) => a - b);
    expect(names(Op)).toEqual(FRAME_OPERATIONS.slice(1).map((name, at) => [name, at + 1]));
    expect(names(FrameStatus)).toEqual(FRAME_STATUSES.map((name, at) => [name, at]));
  });

  test("counts commands and refusals by the codes of the control plane", () => {
    const { hearth_commands_total: commands, hearth_commands_refused_total: refused } = METRICS;
    expect(new Set(commands!.labels.type)).toEqual(new Set(COMMAND_TYPES));
    expect(new Set(refused!.labels.reason)).toEqual(new Set(Object.keys(REFUSALS)));
  });

  test("counts peers by their states", () => {
    const breakers = ["closed", "open", "trial"] as const satisfies readonly BreakerState[];
    const states = ["linked", "dialling", "idle", "down"] as const;
    expect(METRICS.hearth_peer_breakers!.labels.state).toEqual(breakers);
    const known: readonly PeerStatus["state"][] = states;
    expect(METRICS.hearth_peers!.labels.state).toEqual(known);
  });

  test("matches the reference page", () => {
    const page = renderMetricsReference(METRICS);
    for (const [name, { type, help }] of SPECS) {
      expect(page).toContain(`| \`${name}\` | ${type} | ${help} |`);
    }
    expect(page).toContain("`tier`: `gpu` `ram` `ssd` `peer`; `outcome`: `hit` `partial` `miss`");
  });
});

function scrape(text: string): Map<string, number> {
  const lines = text.split("\n").filter((line) => line !== "" && !line.startsWith("#"));
  return new Map(
    lines.map((line) => {
      const space = line.lastIndexOf(" ");
      return [line.slice(0, space), Number(line.slice(space + 1))];
    }),
  );
}

describe("a scrape", () => {
  const clock = new ManualClock();

  test("reads the counters of the agent's components", async () => {
    const metrics = new AgentMetrics();
    using health = new Health({ clock, log: { log: () => undefined } });
    let sources: AgentSources = { ...agentSources(clock), health };
    health.raise("KV_SSD_SLOW", "2.1 s");
    clock.advance(1_500);
    const found = scrape(await metrics.text(() => sources));
    expect(Object.fromEntries(found)).toMatchObject({
      'cgn_kvcached_blocks{tier="ram"}': 5,
      'cgn_kvcached_bytes{tier="gpu"}': 300,
      'cgn_kvcached_evictions_total{tier="ram"}': 7,
      'cgn_kvcached_evictions_total{tier="ssd"}': 23,
      hearth_ssd_used_bytes: 16_384,
      'hearth_ssd_blocks_total{event="written"}': 21,
      'hearth_ssd_blocks_total{event="ram_damaged"}': 33,
      'hearth_ram_corrupt_total{by="scrub"}': 43,
      'hearth_ram_reports_total{outcome="right"}': 47,
      'hearth_block_outcomes_total{operation="acquire",outcome="miss"}': 4,
      'hearth_block_outcomes_total{operation="reserve",outcome="full"}': 2,
      'hearth_slots{state="quarantined"}': 1,
      hearth_corrupt_blocks_total: 1,
      hearth_full_answers_total: 2,
      hearth_arena_bytes: 4096,
      hearth_arena_ready_bytes: 2048,
      hearth_arena_locked_bytes: 1024,
      hearth_table_blocks: 8,
      hearth_sessions: 6,
      hearth_engine_connections: 11,
      hearth_engine_cut_off_total: 1,
      hearth_engine_reserved_bytes: 8192,
      'hearth_engine_reservations_total{outcome="acquired"}': 5,
      'hearth_engine_reservations_total{outcome="unused"}': 3,
      'hearth_engine_reservations_total{outcome="refused"}': 2,
      hearth_engine_lookups_waiting: 7,
      hearth_engine_announced_blocks: 9,
      'hearth_engine_frames_total{operation="acquire",status="ok"}': 2,
      'hearth_engine_frames_total{operation="hello",status="version"}': 1,
      'hearth_engine_frames_total{operation="unknown",status="unknownOp"}': 1,
      'hearth_health{code="KV_SSD_SLOW"}': 1,
      'hearth_health{code="KV_SSD_FULL"}': 0,
      'hearth_health_raised_total{code="KV_SSD_SLOW"}': 1,
      hearth_event_loop_lag_seconds: 0.25,
      hearth_event_loop_turn_seconds: 0.006,
      hearth_event_loop_turn_cpu_seconds: 0.004,
      hearth_event_loop_long_turns_total: 2,
      hearth_log_lines_dropped_total: 3,
      hearth_uptime_seconds: 1.5,
      'hearth_build_info{version="1.2.3",commit="abc"}': 1,
    });
    expect(found.get("hearth_resident_bytes")).toBeGreaterThan(2 ** 20);
    expect(found.get("hearth_cpu_seconds_total")).toBeGreaterThan(0);
    const { store } = sources;
    sources = { ...sources, store: { ...store, stats: { ...store.stats, evictedBlocks: 9 } } };
    health.clear("KV_SSD_SLOW");
    const again = scrape(await metrics.text(() => sources));
    expect(again.get('cgn_kvcached_evictions_total{tier="ram"}')).toBe(9);
    expect(again.get('hearth_health{code="KV_SSD_SLOW"}')).toBe(0);
    expect(again.get('hearth_health_raised_total{code="KV_SSD_SLOW"}')).toBe(1);
  });

  test("has lookups in buckets", async () => {
    const metrics = new AgentMetrics();
    metrics.lookedUp("ram", "hit", 15e-6);
    metrics.lookedUp("ram", "hit", 15e-6);
    metrics.lookedUp("ram", "miss", 2);
    const found = scrape(await metrics.text(agentSources));
    const bucket = (le: string, outcome: string) =>
      found.get(`cgn_kvcached_lookup_seconds_bucket{le="${le}",tier="ram",outcome="${outcome}"}`);
    expect(bucket("0.00001", "hit")).toBe(0);
    expect(bucket("0.00002", "hit")).toBe(2);
    expect(bucket("1", "miss")).toBe(0);
    expect(bucket("+Inf", "miss")).toBe(1);
    const sum = found.get('cgn_kvcached_lookup_seconds_sum{tier="ram",outcome="hit"}');
    expect(sum).toBeCloseTo(30e-6, 12);
  });

  test("documents each metric, and only those of the catalogue", async () => {
    const metrics = new AgentMetrics();
    const text = await metrics.text(agentSources);
    const documented = [...text.matchAll(/^# HELP (\S+) (.+)$/gm)].map((match) => match[1]!);
    expect(documented.sort()).toEqual(Object.keys(AGENT_METRICS).sort());
    expect(metrics.contentType).toStartWith("text/plain");
  });

  test("rejects a series that is not in the catalogue", async () => {
    const metrics = new AgentMetrics();
    const sources = agentSources();
    const frames = Object.assign(new FrameCounts(), {
      list: () => [["made up by a client", "ok", 1] as const],
    });
    const text = metrics.text(() => ({ ...sources, frames }));
    await expect(text).rejects.toThrow("has no operation=");
  });
});

test("frames add up", () => {
  const frames = new FrameCounts();
  for (let operation = 0; operation < 256; operation++) frames.add(operation, FrameStatus.ok);
  expect(frames.total()).toBe(256);
  const unknown = frames.list().find(([operation]) => operation === "unknown");
  expect(unknown?.[2]).toBe(256 - Object.keys(Op).length);
  expect(() => frames.add(1, FRAME_STATUSES.length)).toThrow("status");
});

describe("the event loop's lag", () => {
  /** A clock whose timers fire late by `lateMs`, as after a long computation. */
  class LateClock extends ManualClock {
    lateMs = 0;
    override monotonicMs(): number {
      return super.monotonicMs() + this.lateMs;
    }
  }

  test("is the longest delay of the last 15 s", () => {
    const clock = new LateClock();
    using lag = watchLoopLag(clock);
    clock.advance(1_000);
    expect(lag.longestSeconds()).toBe(0);
    clock.lateMs = 400;
    clock.advance(250);
    expect(lag.longestSeconds()).toBeCloseTo(0.4);
    clock.advance(14_000);
    expect(lag.longestSeconds()).toBeCloseTo(0.4);
    clock.advance(2_000);
    expect(lag.longestSeconds()).toBe(0);
  });

  test("includes a delay in progress", () => {
    const clock = new LateClock();
    using lag = watchLoopLag(clock);
    clock.lateMs = 1_010;
    expect(lag.longestSeconds()).toBeCloseTo(1);
  });

  test("keeps the longest turn for 15 s, and counts those longer than 5 ms", () => {
    const clock = new ManualClock();
    let end = () => {};
    let isShort = false;
    const turns = new TurnBudget({
      nowMs: () => clock.monotonicMs(),
      nextTurn: (run) => {
        if (isShort) run();
        else end = run;
      },
    });
    using lag = watchLoopLag(clock, turns);
    for (const ms of [4, 7, 6]) {
      turns.touch();
      clock.stall(ms);
      end();
    }
    expect(lag.longestTurnSeconds()).toBeCloseTo(0.007);
    expect(lag.longestTurnCpuSeconds()).toBeCloseTo(0.007);
    expect(lag.longTurns).toBe(2);
    isShort = true;
    clock.advance(16_000);
    expect(lag.longestTurnSeconds()).toBe(0);
    expect(lag.longTurns).toBe(2);
  });

  test("counts a late timer as a long turn only if the thread was working", () => {
    const clock = new LateClock();
    let cpuMs = 0;
    const turns = new TurnBudget({ nowMs: () => clock.monotonicMs(), nextTurn: (run) => run() });
    turns.measureCpu(() => cpuMs);
    using lag = watchLoopLag(clock, turns);
    clock.lateMs = 40;
    clock.advance(10);
    expect([lag.longTurns, lag.longestTurnCpuSeconds()]).toEqual([0, 0]);
    expect(lag.longestTurnSeconds()).toBeCloseTo(0.039);
    clock.lateMs = 80;
    cpuMs += 20;
    clock.advance(10);
    expect(lag.longTurns).toBe(1);
    expect(lag.longestTurnCpuSeconds()).toBeCloseTo(0.02);
  });

  test("ends with its timer", () => {
    const clock = new ManualClock();
    watchLoopLag(clock)[Symbol.dispose]();
    expect(clock.pending).toBe(0);
  });
});

describe("the control plane in metrics", () => {
  test("a command of an unknown type counts as unknown, and none is lost", async () => {
    const text = await new AgentMetrics().text(agentSources);
    for (const line of [
      'hearth_held_bytes{kind="pin"} 4',
      'hearth_holds_ended_total{how="lost"} 7',
      'hearth_commands_total{type="Cache",status="ok"} 10',
      'hearth_commands_total{type="Cache",status="partial"} 11',
      'hearth_commands_total{type="Pause",status="ok"} 0',
      'hearth_commands_refused_total{reason="malformed"} 12',
      'hearth_commands_refused_total{reason="fenced"} 0',
      'hearth_commands_refused_total{reason="busy"} 26',
      "hearth_bus_connected 1",
      'hearth_bus_messages_total{direction="dropped"} 21',
      "hearth_ledger_dropped_total 17",
      'hearth_bus_answers_total{outcome="lost"} 25',
      "hearth_bus_stream_reading 1",
      'hearth_bus_stream_messages_total{outcome="given_up"} 28',
    ]) {
      expect(text).toContain(line);
    }
  });
});
