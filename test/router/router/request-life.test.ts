import { describe, expect, test } from "bun:test";
import { HearthError, parseJson, type WorkerId } from "../../../src/core/index.ts";
import { workerNumber } from "../../../src/events/index.ts";
import { prefillId, ROUTER_DEFAULTS } from "../../../src/router/index.ts";
import { openRouter, promptOf, workerOf } from "./open-router.ts";

const only = (worker: string) => ({ overrides: { worker: worker as WorkerId } });

describe("the life of a request", () => {
  test("routing events are reported once and in order", () => {
    const { join, ask, router, told } = openRouter();
    join("a");
    ask(promptOf(40), { requestId: "one" });
    expect(router.markPrefillComplete("one")).toBe(true);
    expect(router.markPrefillComplete("one")).toBe(true);
    expect(router.output("one", 30)).toBe(true);
    expect(router.free("one")).toBe(true);
    expect(router.free("one")).toBe(false);
    expect(router.markPrefillComplete("one")).toBe(false);
    expect(router.output("one", 31)).toBe(false);
    expect(told).toEqual(["routed one to a", "prefilled one", "freed one: free"]);
  });

  test("the first output token ends the prefill", () => {
    const { join, ask, router, load, told } = openRouter();
    const { id } = join("a");
    ask(promptOf(40), { requestId: "one" });
    expect(load.of(id)).toEqual({ activeBlocks: 10, activePrefillTokens: 40, activeRequests: 1 });
    router.output("one", 5);
    expect(load.of(id)).toEqual({ activeBlocks: 12, activePrefillTokens: 0, activeRequests: 1 });
    expect(told).toEqual(["routed one to a", "prefilled one"]);
  });

  test("a request that is never freed expires and is reported", () => {
    const { clock, join, ask, load, told } = openRouter();
    const { id } = join("a");
    ask(promptOf(40), { requestId: "one" });
    clock.advance(299_999);
    expect(load.requests).toBe(1);
    clock.advance(1_001);
    expect(load.of(id).activeRequests).toBe(0);
    expect(told.at(-1)).toBe("freed one: expired");
  });

  test("a worker that leaves takes its requests and blocks along before its id is reused", () => {
    const { join, hold, ask, table, load, index, told } = openRouter();
    const { id } = join("a");
    hold("a", promptOf(40), 10);
    ask(promptOf(40), { requestId: "one" });
    table.remove(id);
    expect(told.at(-1)).toBe("freed one: worker_left");
    expect(join("b").id).toBe(id);
    expect(load.of(id).activeBlocks).toBe(0);
    expect(index.stats.blocks).toBe(0);
    const outcome = ask(promptOf(40));
    expect(outcome.kind === "routed" && outcome.terms.cachedTokens).toBe(0);
  });

  test("a repeated request id frees the earlier request first", () => {
    const { join, ask, load, told } = openRouter();
    const { id } = join("a");
    ask(promptOf(40), { requestId: "one" });
    const again = ask(promptOf(80, 9_000), { requestId: "one" });
    expect(again.kind === "routed" && again.terms.activeBlocks).toBe(0);
    expect(load.of(id)).toMatchObject({ activeBlocks: 20, activeRequests: 1 });
    expect(told).toEqual(["routed one to a", "freed one: free", "routed one to a"]);
  });

  test("a query changes nothing", () => {
    const { join, ask, router, load, told } = openRouter();
    const { id } = join("a");
    expect(workerOf(ask(promptOf(40)))).toBe("a");
    expect(load.of(id).activeRequests).toBe(0);
    const again = ask(promptOf(40));
    expect(again.kind === "routed" && again.terms.deviceBlocks).toBe(0);
    expect(told).toEqual([]);
    const loads = router.getPotentialLoads({
      model: "m",
      prompt: { kind: "tokens", tokens: promptOf(41) },
    });
    expect(loads).toEqual([
      {
        worker: "a" as WorkerId,
        rank: 0,
        ...{ activeBlocks: 0, activePrefillTokens: 0, activeRequests: 0 },
        ...{ potentialPrefillTokens: 41, potentialDecodeBlocks: 11 },
        heldTokens: { device: 0, host: 0, disk: 0 },
      },
    ]);
  });
});

describe("prefill and decode apart", () => {
  function openPools() {
    const opened = openRouter();
    opened.join("d1", { role: "decode" });
    opened.join("d2", { role: "decode" });
    const loadOf = (worker: string) => {
      return opened.load.of(opened.table.find(worker as WorkerId, 0)!.id);
    };
    return { ...opened, loadOf };
  }

  test("decode workers do both until a prefill worker joins", () => {
    const { join, ask, table } = openPools();
    const alone = ask(promptOf(40));
    expect(alone).toMatchObject({ kind: "routed", prefill: null, terms: { rawPrefillTokens: 40 } });
    const { id } = join("p", { role: "prefill" });
    const both = ask(promptOf(40));
    expect(both).toMatchObject({ prefill: { worker: "p" }, terms: { rawPrefillTokens: 0 } });
    table.setState(id, "stale");
    expect(ask(promptOf(40))).toMatchObject({ prefill: null });
    table.setState(id, "live");
    table.remove(id);
    expect(ask(promptOf(40))).toMatchObject({ prefill: null });
  });

  test("each pool counts its own part of the load", () => {
    const { join, ask, router, load, loadOf } = openPools();
    join("p", { role: "prefill" });
    const outcome = ask(promptOf(40), { requestId: "one" });
    const decode = workerOf(outcome);
    expect(loadOf("p")).toEqual({ activeBlocks: 0, activePrefillTokens: 40, activeRequests: 1 });
    expect(loadOf(decode)).toMatchObject({ activeBlocks: 10, activePrefillTokens: 0 });
    expect(load.find(prefillId("one"))).not.toBeNull();
    router.markPrefillComplete("one");
    expect(loadOf("p").activeRequests).toBe(0);
    expect(loadOf(decode).activeBlocks).toBe(10);
    router.free("one");
    expect(load.requests).toBe(0);
  });

  test("free ends both parts", () => {
    const { join, ask, router, load } = openPools();
    join("p", { role: "prefill" });
    ask(promptOf(40), { requestId: "one" });
    router.free("one");
    expect(load.requests).toBe(0);
  });

  test("with a full prefill pool the decode worker does both", () => {
    const { join, ask, router } = openPools();
    join("p", { role: "prefill" });
    router.setThresholds("m", { activePrefillTokensThreshold: 50 });
    expect(ask(promptOf(60), { requestId: "one" })).toMatchObject({ prefill: { worker: "p" } });
    expect(ask(promptOf(60))).toMatchObject({ kind: "routed", prefill: null });
  });

  test("a single phase can be routed", () => {
    const { join, ask } = openPools();
    expect(workerOf(ask(promptOf(40), { phase: "prefill" }))).toBe("none");
    join("p", { role: "prefill" });
    const prefill = ask(promptOf(40), { phase: "prefill" });
    expect(prefill).toMatchObject({ target: { worker: "p" }, terms: { additionalBlocks: 0 } });
    const decode = ask(promptOf(40), { phase: "decode" });
    expect(decode).toMatchObject({ prefill: null, target: { role: "decode" } });
  });

  test("excluded workers are excluded from both pools; a named worker decodes", () => {
    const { join, ask } = openPools();
    for (const name of ["p1", "p2"]) join(name, { role: "prefill" });
    const excluded = ["p1", "d1"] as WorkerId[];
    const outcome = ask(promptOf(40), { overrides: { excluded } });
    expect(outcome).toMatchObject({ target: { worker: "d2" }, prefill: { worker: "p2" } });
    const named = ask(promptOf(40), only("d1"));
    expect(named).toMatchObject({ target: { worker: "d1" }, prefill: { role: "prefill" } });
  });
});

describe("sessions", () => {
  const affinity = { ...ROUTER_DEFAULTS.affinity, ttlMs: 60_000, extraCostMax: 10 };

  test("sessions stay with their worker while it is not too expensive", () => {
    const { clock, join, hold, ask, router } = openRouter({ affinity });
    for (const name of ["a", "b"]) join(name);
    const turn = (requestId: string, tokens = 8) => {
      return workerOf(ask(promptOf(tokens, 50_000), { requestId, sessionId: "s" }));
    };
    const home = turn("one");
    const other = home === "a" ? "b" : "a";
    // Two blocks more on the other one: still at home.
    hold(other, promptOf(400), 100);
    expect(workerOf(ask(promptOf(20), { requestId: "x", sessionId: "s" }))).toBe(home);
    expect(router.explain("x")).toMatchObject({ decidedBy: "affinity", draw: null });
    // Fifteen and more: it moves, and stays there.
    expect(workerOf(ask(promptOf(80), { requestId: "y", sessionId: "s" }))).toBe(other);
    expect(turn("z")).toBe(other);
    clock.advance(60_000);
    expect(["a", "b"]).toContain(turn("w"));
    expect(router.explain("w")!.decidedBy).not.toBe("affinity");
  });

  test("without the setting a session has no affinity", () => {
    const { join, ask, router } = openRouter();
    for (const name of ["a", "b"]) join(name);
    ask(promptOf(8), { requestId: "one", sessionId: "s" });
    ask(promptOf(8), { requestId: "two", sessionId: "s" });
    expect(router.explain("two")!.decidedBy).not.toBe("affinity");
  });
});

describe("when all are busy", () => {
  function openBusy(queue = ROUTER_DEFAULTS.queue) {
    const opened = openRouter({ activePrefillTokensThreshold: 10, queue });
    opened.join("a");
    opened.ask(promptOf(40), { requestId: "first" });
    const wait = (requestId: string, priority = 0, signal?: AbortSignal) => {
      const prompt = { kind: "tokens", tokens: promptOf(40, 900) } as const;
      const request = { model: "m", prompt, requestId, priority };
      return opened.router.bestWorker(request, signal);
    };
    return { ...opened, wait };
  }

  test("waiting requests are routed by priority when load is freed", async () => {
    const { clock, router, wait } = openBusy();
    const low = wait("low");
    const high = wait("high", 3);
    clock.advance(250);
    router.free("first");
    expect(await high).toMatchObject({ kind: "routed", queuedMs: 250 });
    router.markPrefillComplete("high");
    expect(await low).toMatchObject({ kind: "routed" });
    expect(router.explain("low")).toMatchObject({ queuedMs: 250 });
  });

  test("waiting requests time out", async () => {
    const { clock, router, wait } = openBusy();
    const outcome = wait("one");
    clock.advance(10_000);
    expect(await outcome).toMatchObject({ kind: "busy" });
    const { chosen, decidedBy, filtered, queuedMs } = router.explain("one")!;
    expect({ chosen, decidedBy, queuedMs }).toEqual({
      ...{ chosen: null, decidedBy: "none", queuedMs: 10_000 },
    });
    expect(filtered).toMatchObject([{ reason: "busy_prefill" }]);
  });

  test("a full queue refuses, a query does not wait, an aborted request leaves", async () => {
    const { router, ask, wait } = openBusy({ requestsMax: 1, waitMs: 10_000 });
    const controller = new AbortController();
    const first = wait("one", 0, controller.signal);
    expect(await wait("two", 9)).toMatchObject({ kind: "busy" });
    const prompt = { kind: "tokens", tokens: promptOf(40) } as const;
    expect(await router.bestWorker({ model: "m", prompt })).toMatchObject({ kind: "busy" });
    expect(workerOf(ask(promptOf(40), { requestId: "now" }))).toBe("busy");
    controller.abort();
    const thrown = await first.catch((error: unknown) => error);
    expect(thrown).toBeInstanceOf(HearthError);
    expect(thrown).toMatchObject({ code: "ABORTED" });
  });

  test("a new worker, new threshold or expired request wakes waiting requests", async () => {
    const one = openBusy();
    const waits = one.wait("one");
    one.join("b");
    expect(await waits).toMatchObject({ target: { worker: "b" } });

    const two = openBusy();
    const raised = two.wait("one");
    expect(two.router.setThresholds("nobody", { activePrefillTokensThreshold: 1 })).toBe(false);
    expect(two.router.setThresholds("m", { activePrefillTokensThreshold: null })).toBe(true);
    expect(two.router.thresholds("m").activePrefillTokensThreshold).toBeNull();
    expect(await raised).toMatchObject({ kind: "routed" });

    const three = openBusy({ requestsMax: 9, waitMs: 1_000_000 });
    const expired = three.wait("one");
    three.clock.advance(301_000);
    expect(await expired).toMatchObject({ kind: "routed" });
  });

  test("a free inside an observer wakes the next request and serves none twice", async () => {
    const { router, wait, told } = openBusy();
    router.listen({ routed: ({ requestId }) => void router.free(requestId!) });
    const waits = ["one", "two", "three"].map((id) => wait(id));
    router.free("first");
    const outcomes = await Promise.all(waits);
    expect(outcomes.map(({ kind }) => kind)).toEqual(["routed", "routed", "routed"]);
    const routed = told.filter((line) => line.startsWith("routed")).length;
    expect(routed).toBe(4);
  });

  test("a disposed router answers waiting requests", async () => {
    const { clock, router, wait } = openBusy();
    const waits = wait("one");
    router[Symbol.dispose]();
    expect(await waits).toMatchObject({ kind: "busy" });
    expect(clock.pending).toBe(0);
  });
});

describe("afterwards", () => {
  test("the latest decisions have explanations, and policies append to them", () => {
    const { join, ask, router } = openRouter({ explanationsMax: 2 });
    join("a");
    for (const requestId of ["one", "two", "three"]) ask(promptOf(8), { requestId });
    expect(router.explain("one")).toBeNull();
    const worker = "a" as WorkerId;
    const action = { policy: "p", command: "Warm", worker, isDryRun: false, outcome: null };
    expect(router.noteAction("one", action)).toBe(false);
    expect(router.noteAction("three", action)).toBe(true);
    expect(router.explain("three")!.actions).toEqual([action]);
    expect(router.explain("three")).toMatchObject({ decidedBy: "only_one", promptBlocks: 2 });
  });

  test("the dump lists all blocks as Dynamo events with exact integers", () => {
    const { join, hold, hasher, router } = openRouter();
    join("a");
    hold("a", promptOf(12), 2);
    hold("a", promptOf(8, 700), 1, "disk");
    const [first, second] = hasher.tokens(promptOf(12), 4, 1_337n);
    const events = [...router.dumpEvents()].map((line) => parseJson(line));
    const text = [...router.dumpEvents()].join("\n");
    expect(text).toContain(`"block_hash":${first}`);
    expect(text).toContain(`"block_hash":${second},"tokens_hash":null`);
    expect(text).toContain(`"tokens_hash":${first}`);
    const tiers = events.map((event) => (event as { storage_tier: string }).storage_tier);
    expect([...new Set(tiers)].sort()).toEqual(["device", "disk"]);
    expect(text).toContain(`"worker_id":${workerNumber("a")}`);
  });
});
