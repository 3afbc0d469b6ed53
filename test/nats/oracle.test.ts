import { describe, expect, test } from "bun:test";
import { createLocalBus, LocalHub } from "../../src/bus/index.ts";
import type { Receipt } from "../../src/control/index.ts";
import { seededRandom, systemClock } from "../../src/core/index.ts";
import { waitFor } from "../support/index.ts";
import { ChaosBus } from "./chaos-bus.ts";
import {
  compareAudit,
  compareLeases,
  compareOnceAtMost,
  comparePins,
  compareRetained,
  Oracle,
  readAudit,
} from "./oracle.ts";
import { type Figures, violationsOf } from "./report.ts";

function receipt(outcomes: Readonly<Record<number, string>>): Receipt {
  const blocks = Object.entries(outcomes).map(([block, outcome]) => ({ block, outcome }));
  return {
    ...{ id: "i", type: "Cache", worker_id: "w", incarnation: "1", issuer: "r", status: "ok" },
    counts: { done: 0, already: 0, missing: 0, held: 0, deferred: 0, rejected: 0 },
    ...{ blocks, elapsed_ms: 1 },
  };
}

const kinds = (oracle: Oracle) => oracle.findings.map(({ kind }) => kind);

describe("receipts compared with the resident blocks", () => {
  test("pins add up by owner and block", () => {
    const oracle = new Oracle();
    oracle.pinned("a", receipt({ 1: "done", 2: "deferred" }));
    oracle.pinned("a", receipt({ 1: "done" }));
    oracle.unpinned("a", receipt({ 1: "done", 2: "done", 3: "already" }));
    for (const [block, found] of [1, 0, 0].entries()) comparePins(oracle, "a", block + 1, found);
    expect(kinds(oracle)).toEqual([]);
    comparePins(oracle, "a", 1, 2);
    comparePins(oracle, "a", 1, 0);
    expect(kinds(oracle)).toEqual(["double", "lost"]);
    oracle.pinned("a", receipt({ 1: "missing" }));
    expect(kinds(oracle)).toEqual(["double", "lost", "odd"]);
  });

  test("soft pins, leases and commands without an id are as the last command says", () => {
    const oracle = new Oracle();
    oracle.retained.set("a", 7).set("b", 0).set("c", 3);
    compareRetained(oracle, new Map([["a", [7]]]));
    expect(kinds(oracle)).toEqual(["lost"]);
    compareRetained(oracle, new Map(Object.entries({ a: [9], b: [1], c: [3] })));
    expect(kinds(oracle).slice(1)).toEqual(["double", "double"]);

    const leases = new Oracle();
    const terms = { ttlSeconds: 600, sentMs: 0, answeredMs: 2_000 };
    leases.leases.set("kept", terms).set("over", null);
    compareLeases(leases, new Map([["kept", 591]]), 10_000);
    expect(kinds(leases)).toEqual([]);
    compareLeases(leases, new Map(Object.entries({ kept: 1_200, over: 5 })), 10_000);
    compareLeases(leases, new Map(), 10_000);
    expect(kinds(leases)).toEqual(["double", "double", "lost"]);

    const once = new Oracle();
    once.onceAtMost.set("a", true).set("b", false).set("c", false);
    compareOnceAtMost(once, new Map(Object.entries({ a: 1, b: 0, c: 1 })));
    expect(kinds(once)).toEqual([]);
    compareOnceAtMost(once, new Map(Object.entries({ b: 2 })));
    expect(kinds(once)).toEqual(["lost", "double"]);
  });

  test("the audit log has each once, and copies and refusals beside them", () => {
    const oracle = new Oracle();
    for (const id of ["1", "2", "3"]) oracle.acknowledged.add(`r ${id}`);
    const line = (id: string, more: object) => JSON.stringify({ issuer: "r", id, ...more });
    const audit = readAudit(
      [
        line("1", { status: "ok" }),
        line("1", { status: "ok", duplicate: true }),
        line("2", { status: "partial" }),
        line("2", { status: "ok" }),
        line("4", { status: "rejected", reason: "malformed: no", left_out: 2 }),
        "",
      ].join("\n"),
    );
    expect([audit.duplicates, audit.leftOut, audit.refused.get("malformed")]).toEqual([1, 2, 1]);
    compareAudit(oracle, audit);
    expect(oracle.findings.map(({ kind, what }) => [kind, what.slice(0, 3)])).toEqual([
      ["double", "r 2"],
      ["lost", "r 3"],
    ]);
  });
});

const FIGURES: Figures = {
  ...{ kills: 100, freezes: 9, commands_acknowledged: 9, retried: 1, duplicates_sent: 9 },
  ...{ duplicates_answered: 9, poison_sent: 9, poison_answered: 9, poison_counted: 9 },
  ...{ p50_calm_us: 1, p50_chaos_us: 1, p99_calm_us: 10, p99_chaos_us: 20, reads: 9, ratio: 2 },
  ...{ dropped_messages: 256, agent_rss_start_mb: 100, agent_rss_max_mb: 150 },
  ...{ double_effects: 0, lost: 0, reconnects: 9, reconnect_ms_p50: 1, reconnect_ms_max: 2 },
  ...{ stream: null, seconds: 9 },
};

describe("a run is judged", () => {
  test.each([
    ["reads from RAM", { ratio: 2.1 }],
    ["memory grew", { agent_rss_max_mb: 400 }],
    ["proves nothing", { commands_acknowledged: 0 }],
    ["proves nothing", { poison_counted: 0 }],
    ["proves nothing", { duplicates_answered: 0 }],
  ])("by %s", (words, figures) => {
    expect(violationsOf(FIGURES, [])).toEqual([]);
    expect(violationsOf({ ...FIGURES, ...figures }, [])).toEqual([expect.stringContaining(words)]);
  });

  test("by all that was found; a short run not by its reads", () => {
    const finding = { kind: "double", what: "a pin" } as const;
    expect(violationsOf({ ...FIGURES, kills: 3, ratio: 9 }, [finding])).toEqual(["double: a pin"]);
  });
});

test("commands come out of order, about half of them twice, others as they are", async () => {
  const hub = new LocalHub();
  const basics = { clock: systemClock, random: seededRandom(1) };
  await using near = createLocalBus(hub, basics);
  await using far = createLocalBus(hub, basics);
  const heard: number[] = [];
  const others: number[] = [];
  far.subscribe("kv-control-w", ({ data }) => heard.push(data[0]!));
  far.subscribe("other", ({ data }) => others.push(data[0]!));
  await Promise.all([near.connected(5_000), far.connected(5_000), far.flush(5_000)]);
  await using bus = new ChaosBus(near, seededRandom(2), {
    ...{ duplicateShare: 0.5, shuffleMs: 20, lateMs: 60 },
  });
  const all = Array.from({ length: 200 }, (_, at) => at);
  for (const at of all) {
    bus.publish("kv-control-w", Uint8Array.of(at));
    bus.publish("other", Uint8Array.of(at));
  }
  await bus.quiet(5_000);
  await waitFor(() => heard.length === 200 + bus.duplicates && others.length === 200);
  expect(others).toEqual(all);
  expect([...new Set(heard)].sort((a, b) => a - b)).toEqual(all);
  expect([...new Set(heard)]).not.toEqual(all);
  expect(bus.duplicates).toBeGreaterThan(60);
  expect(bus.duplicates).toBeLessThan(140);
});
