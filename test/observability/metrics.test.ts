import { describe, expect, test } from "bun:test";
import { COMMAND_TYPES, REFUSALS } from "../../src/control/index.ts";
import { TurnBudget } from "../../src/core/index.ts";
import { FrameStatus, Op } from "../../src/engine/protocol/index.ts";
import {
  createFrameCounts,
  createHealth,
  createMetrics,
  type EngineSnapshot,
  FRAME_OPERATIONS,
  FRAME_STATUSES,
  METRICS,
  METRICS_OF,
  type MetricSpec,
  renderMetricsReference,
  type StoreSnapshot,
  watchLoopLag,
} from "../../src/observability/index.ts";
import {
  type BreakerState,
  type PeerStatus,
  PULL_OUTCOMES,
  TRANSPORTS,
} from "../../src/peers/index.ts";
import { ManualClock } from "../support/index.ts";

const SPECS: readonly MetricSpec[] = Object.values(METRICS);
const AGENT_SPECS: readonly MetricSpec[] = METRICS_OF.agent.map((name) => METRICS[name]);

describe("the catalogue", () => {
  test("has unique names of one family, and counters with their suffix", () => {
    expect(new Set(SPECS.map(({ name }) => name)).size).toBe(SPECS.length);
    for (const { name, type, help } of SPECS) {
      expect(name).toMatch(/^(cgn_kvcached|cgn_router|hearth)_[a-z0-9_]+[a-z]$/);
      expect(name.endsWith("_total")).toBe(type === "counter");
      expect(help).toMatch(/^[A-Z].*[^.]$/);
    }
  });

  test("keeps the names in users' dashboards", () => {
    const labels = new Map(SPECS.map(({ name, labels }) => [name, Object.keys(labels)]));
    expect(labels.get("cgn_kvcached_blocks")).toEqual(["tier"]);
    expect(labels.get("cgn_kvcached_bytes")).toEqual(["tier"]);
    expect(labels.get("cgn_kvcached_lookup_seconds")).toEqual(["tier", "outcome"]);
    expect(labels.get("cgn_kvcached_evictions_total")).toEqual(["tier"]);
  });

  test.each(["agent", "router"] as const)("bounds the number of series of the %s", (kind) => {
    const series = METRICS_OF[kind].map((metric) => {
      const { labels, buckets }: MetricSpec = METRICS[metric];
      const combinations = Object.values(labels).map((values) => Math.max(values.length, 1));
      return (
        combinations.reduce((product, count) => product * count, 1) * ((buckets?.length ?? 0) + 3)
      );
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
    const { commands, commandsRefused } = METRICS;
    expect(new Set<string>(commands.labels.type)).toEqual(new Set(COMMAND_TYPES));
    expect(new Set<string>(commandsRefused.labels.reason)).toEqual(new Set(Object.keys(REFUSALS)));
  });

  test("counts fetches by their outcomes, transports and states", () => {
    const { quicPulls, peerBlocks, peerBreakers, peers } = METRICS;
    expect(quicPulls.labels.outcome as readonly string[]).toEqual(PULL_OUTCOMES);
    const transports = [...TRANSPORTS];
    expect(peerBlocks.labels.transport as readonly string[]).toEqual(transports);
    const breakers: readonly BreakerState[] = peerBreakers.labels.state;
    const states: readonly PeerStatus["state"][] = peers.labels.state;
    expect([breakers.length, states.length]).toEqual([3, 4]);
  });

  test("matches the reference page", () => {
    const page = renderMetricsReference();
    for (const { name, type, help } of SPECS) {
      expect(page).toContain(`| \`${name}\` | ${type} | ${help} |`);
    }
    expect(page).toContain("`tier`: `gpu` `ram` `ssd` `peer`; `outcome`: `hit` `partial` `miss`");
  });
});

function store(evictedBlocks = 7): StoreSnapshot {
  return {
    tiers: {
      ram: { blocks: 5, bytes: 500 },
      gpu: { blocks: 3, bytes: 300 },
      ssd: { blocks: 2, bytes: 200 },
    },
    ssd: {
      usedBytes: 16_384,
      capacityBytes: 2 ** 20,
      queuedBytes: 64,
      reading: 3,
      quarantinedFiles: 1,
      stats: {
        writtenBlocks: 21,
        writtenBytes: 2100,
        readBlocks: 22,
        readBytes: 2200,
        evictedBlocks: 23,
        evictedBytes: 2300,
        expiredBlocks: 24,
        corruptBlocks: 25,
        ramDamagedFiles: 33,
        skippedBlocks: 26,
        readErrors: 27,
        writeErrors: 28,
        sharedReads: 29,
        lateBlocks: 30,
        ...{ scrubbedBlocks: 31, scrubbedBytes: 3100 },
        purgedBlocks: 32,
      },
    },
    ...{ slots: { used: 5, free: 10, quarantined: 1 }, table: { blocks: 8, capacity: 100 } },
    arena: { bytes: 4096, readyBytes: 2048, lockedBytes: 1024 },
    checks: {
      damaged: { report: 41, write: 42, scrub: 43, file: 44, read: 0, peer: 45, gpu: 46 },
      ...{ falseReports: 47, skippedReports: 48, scrubbedBlocks: 49, scrubbedBytes: 4900 },
      ...{ unknownReports: 481, plantedBlocks: 482 },
    },
    sessions: 6,
    stats: {
      matchBlocks: 50,
      acquireHits: 40,
      acquireMisses: 4,
      reservedBlocks: 30,
      presentBlocks: 3,
      fullBlocks: 2,
      committedBlocks: 25,
      committedBytes: 2500,
      abortedBlocks: 6,
      corruptBlocks: 1,
      evictedBlocks,
      evictedBytes: 700,
      evictionRuns: 9,
    },
  };
}

function engine(): EngineSnapshot {
  const frames = createFrameCounts();
  frames.add(Op.acquire, FrameStatus.ok);
  frames.add(Op.acquire, FrameStatus.ok);
  frames.add(Op.hello, FrameStatus.version);
  frames.add(200, FrameStatus.unknownOp);
  const stats = { connected: 12, refusedPeers: 2, cutOff: 1, quarantines: 4, faults: 0 };
  const reservations = { bytes: 8192, takenBlocks: 5, unusedBlocks: 3, refusedBlocks: 2 };
  const waiting = { lookupsWaiting: 7, announcedBlocks: 9 };
  return { connections: 11, slotsHeld: 6, frames: frames.list(), reservations, ...waiting, stats };
}

function scrape(text: string): Map<string, number> {
  const lines = text.split("\n").filter((line) => line !== "" && !line.startsWith("#"));
  return new Map(
    lines.map((line) => {
      const space = line.lastIndexOf(" ");
      return [line.slice(0, space), Number(line.slice(space + 1))];
    }),
  );
}

const loopOf = (lagSeconds: number) => ({
  longestSeconds: () => lagSeconds,
  longestTurnSeconds: () => 0.006,
  longestTurnCpuSeconds: () => 0.004,
  longTurns: 2,
});

describe("a scrape", () => {
  const clock = new ManualClock();
  const make = () => createMetrics({ clock, version: "1.2.3", commit: "abc" });

  test("reads the counters of the agent's components", async () => {
    const metrics = make();
    let evicted = 7;
    metrics.observeStore(() => store(evicted));
    metrics.observeEngine(engine);
    using health = createHealth({ clock, log: { log: () => undefined } });
    metrics.observeHealth(() => health.counts());
    health.raise("KV_SSD_SLOW", "2.1 s");
    metrics.observeProcess(() => ({ loop: loopOf(0.25), logLinesDropped: 3 }));
    clock.advance(1_500);
    const found = scrape(await metrics.text());
    expect(Object.fromEntries(found)).toMatchObject({
      'cgn_kvcached_blocks{tier="ram"}': 5,
      'cgn_kvcached_bytes{tier="gpu"}': 300,
      'cgn_kvcached_evictions_total{tier="ram"}': 7,
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
    evicted = 9;
    health.clear("KV_SSD_SLOW");
    const again = scrape(await metrics.text());
    expect(again.get('cgn_kvcached_evictions_total{tier="ram"}')).toBe(9);
    expect(again.get('hearth_health{code="KV_SSD_SLOW"}')).toBe(0);
    expect(again.get('hearth_health_raised_total{code="KV_SSD_SLOW"}')).toBe(1);
  });

  test("has lookups in buckets", async () => {
    const metrics = make();
    metrics.lookedUp("ram", "hit", 15e-6);
    metrics.lookedUp("ram", "hit", 15e-6);
    metrics.lookedUp("ram", "miss", 2);
    const found = scrape(await metrics.text());
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
    const metrics = make();
    metrics.observeStore(store);
    metrics.observeEngine(engine);
    metrics.observeProcess(() => ({ loop: loopOf(0), logLinesDropped: 0 }));
    const text = await metrics.text();
    const documented = [...text.matchAll(/^# HELP (\S+) (.+)$/gm)].map((match) => match[1]!);
    expect(documented.sort()).toEqual(AGENT_SPECS.map(({ name }) => name).sort());
    expect(metrics.contentType).toStartWith("text/plain");
  });

  test("rejects a series that is not in the catalogue", () => {
    const metrics = make();
    metrics.observeEngine(() => ({
      ...engine(),
      frames: [{ operation: "made up by a client", status: "ok", count: 1 }],
    }));
    expect(() => metrics.text()).toThrow("has no operation=");
  });
});

test("frames add up", () => {
  const frames = createFrameCounts();
  for (let operation = 0; operation < 256; operation++) frames.add(operation, FrameStatus.ok);
  expect(frames.total()).toBe(256);
  const unknown = frames.list().find(({ operation }) => operation === "unknown");
  expect(unknown?.count).toBe(256 - Object.keys(Op).length);
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
    const metrics = createMetrics({ clock: new ManualClock(), version: "1", commit: "c" });
    const none = { holds: 0, blocks: 0, bytes: 0 };
    metrics.observeControl(() => ({
      holds: {
        pin: { holds: 2, blocks: 3, bytes: 4 },
        retain: none,
        lease: none,
        relieved: 5,
        expired: 6,
        lost: 7,
      },
      keptBytes: 8,
      keptBytesMax: 9,
      commands: [
        { type: "Cache", status: "ok", count: 10 },
        { type: "Cache", status: "partial", count: 11 },
      ],
      refused: { malformed: 12 },
      duplicates: 13,
      running: 14,
      auditDropped: 15,
      ledger: { pending: 16, dropped: 17 },
      bus: {
        status: "connected",
        reconnects: 18,
        sentMessages: 19,
        receivedMessages: 20,
        ignoredMessages: 4,
        droppedMessages: 21,
        queuedMessages: 22,
        answers: { answered: 23, unasked: 24, lost: 25, unread: 26 },
        stream: { status: "consuming", handled: 27, givenUp: 28 },
      },
    }));
    const text = await metrics.text();
    for (const line of [
      'hearth_held_bytes{kind="pin"} 4',
      'hearth_holds_ended_total{how="lost"} 7',
      'hearth_commands_total{type="Cache",status="ok"} 10',
      'hearth_commands_total{type="Cache",status="partial"} 11',
      'hearth_commands_total{type="Pause",status="ok"} 0',
      'hearth_commands_refused_total{reason="malformed"} 12',
      'hearth_commands_refused_total{reason="fenced"} 0',
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
