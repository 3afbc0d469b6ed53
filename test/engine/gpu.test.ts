import { describe, expect, test } from "bun:test";
import { Outcome } from "../../src/engine/index.ts";
import { describeNative, waitFor } from "../support/index.ts";
import { standIn } from "../support/stand-ins.ts";
import { type AgentKit, type AgentKitOptions, openAgent } from "./agent-kit.ts";
import { EngineProcess } from "./engine-process.ts";

const NAMES = ["a", "a/b", "a/b/c"];
const ok = (count: number) => new Array<number>(count).fill(Outcome.ok);

interface Bed {
  readonly agent: AgentKit;
  readonly engine: EngineProcess;
}

/** An agent with a GPU, and an engine that has registered memory of it. */
async function withEngine(
  options: AgentKitOptions & { readonly kind?: "ipc" | "fd" },
  use: (bed: Bed) => Promise<void>,
): Promise<void> {
  await using agent = await openAgent({ gpuPlan: "", ...options });
  await using engine = await startEngine(agent);
  const registered = await engine.ask("register", options.kind ?? "ipc");
  expect(registered).toEqual({ outcome: Outcome.ok, memory: 1, code: 0 });
  await use({ agent, engine });
  expect(agent.server.stats.faults).toBe(0);
}

const startEngine = (agent: AgentKit, tenant = "test") =>
  EngineProcess.start(agent.socketPath, tenant, "gpu-engine-child.ts");

/** Stores blocks from the engine's GPU. */
async function put(engine: EngineProcess, ...names: string[]): Promise<void> {
  expect(await engine.ask("reserve", ...names)).toEqual(names.map(() => "ok"));
  expect(await engine.ask("store")).toEqual(ok(3 * names.length));
  expect(await engine.ask("commit")).toEqual(names.map(() => "ok"));
}

/** Waits until the agent's devices have begun a copy that never ends. */
const untilCopying = (since: number) =>
  waitFor(() => {
    const calls = standIn("libcuda.so.1").counters();
    return copiesOf(calls) > since;
  });

function copiesOf(calls: Readonly<Record<string, number>>): number {
  const named = Object.entries(calls).filter(([name]) => /^calls\.cuMemcpy/.test(name));
  return named.reduce((sum, [, count]) => sum + count, 0);
}

describeNative("blocks between an engine's GPU and slots", () => {
  test.each(["ipc", "fd"] as const)(
    "come and go byte for byte, by memory handed over as %s",
    async (kind) => {
      await withEngine({ kind }, async ({ agent, engine }) => {
        await put(engine, ...NAMES);
        // Another engine reads the bytes from the GPU in the arena.
        await using reader = await agent.connect();
        expect(await reader.get(...NAMES)).toEqual(["ok", "ok", "ok"]);
        const turned = [...NAMES].reverse();
        expect(await engine.ask("acquire", ...turned)).toEqual(["ok", "ok", "ok"]);
        expect(await engine.ask("load", "verify")).toEqual(ok(9));
        expect(await engine.ask("proves")).toEqual([true, true, true]);
        await engine.ask("release");
        agent.expectNothingHeld();
        const { gpuStoredBytes, gpuLoadedBytes } = agent.server.stats;
        expect([gpuStoredBytes, gpuLoadedBytes]).toEqual([15_000, 15_000]);
      });
    },
  );

  test("HELLO and GPU_DEVICES report the devices", async () => {
    await withEngine({ gpuPlan: "devices=2;memory=64m;numa=1,0" }, async ({ engine }) => {
      const { features, devices } = (await engine.ask("devices")) as {
        features: number;
        devices: { uuid: string }[];
      };
      expect(features).toBe(11);
      expect(devices.map(({ uuid }) => uuid)).toContain((await engine.ask("uuid")) as string);
      expect(devices).toMatchObject([
        { memoryBytes: 2 ** 26, numaNode: 1, flags: 3, state: 0 },
        { numaNode: 0 },
      ]);
    });
  });

  test("a commit sent after a store waits for the copy", async () => {
    await withEngine({ gpuPlan: "delay=20" }, async ({ agent, engine }) => {
      await engine.ask("reserve", ...NAMES);
      expect(await engine.ask("storeAndCommit")).toEqual([ok(9), ["ok", "ok", "ok"]]);
      await using reader = await agent.connect();
      expect(await reader.get(...NAMES)).toEqual(["ok", "ok", "ok"]);
    });
  });

  test("a load that verifies finds a wrong byte in the slot", async () => {
    await withEngine({}, async ({ agent, engine }) => {
      await put(engine, ...NAMES);
      await using reader = await agent.connect();
      const [, second] = await reader.acquire(...NAMES);
      agent.region.fill(second!.offset + 4_000, 8, 1n);
      await engine.ask("acquire", ...NAMES);
      expect(await engine.ask("load")).toEqual(ok(9));
      const corrupt = [Outcome.corrupt, Outcome.corrupt, Outcome.corrupt];
      expect(await engine.ask("load", "verify")).toEqual([...ok(3), ...corrupt, ...ok(3)]);
    });
  });

  test("memory is unregistered once and then unknown", async () => {
    await withEngine({}, async ({ engine }) => {
      await put(engine, "a");
      await engine.ask("acquire", "a");
      expect(await engine.ask("unregister", "1", "1", "7")).toEqual([
        Outcome.ok,
        Outcome.stale,
        Outcome.stale,
      ]);
      expect(await engine.ask("load")).toEqual(new Array(3).fill(Outcome.rejected));
      expect(await engine.ask("register", "fd")).toMatchObject({ outcome: Outcome.ok, memory: 2 });
      expect(await engine.ask("load")).toEqual(ok(3));
      expect(await engine.ask("proves")).toEqual([true]);
    });
  });

  test("more memories than fit a request are registered with their descriptors", async () => {
    await withEngine({}, async ({ engine }) => {
      expect(await engine.ask("register", "fd", "130")).toMatchObject({ memory: 131 });
      await put(engine, "a");
      await engine.ask("acquire", "a");
      expect(await engine.ask("load")).toEqual(ok(3));
      expect(await engine.ask("proves")).toEqual([true]);
    });
  });

  test("without a GPU nothing is offered and every request is refused", async () => {
    await using agent = await openAgent();
    await using engine = await startEngine(agent);
    expect(await engine.ask("devices")).toEqual({ features: 10, devices: [] });
    const refused = { outcome: Outcome.device, memory: 0, code: 0 };
    expect(await engine.ask("register", "ipc")).toEqual(refused);
    await engine.ask("reserve", "a");
    expect(await engine.ask("store")).toEqual(new Array(3).fill(Outcome.rejected));
    // The bytes were not copied: the slot has undefined content.
    expect(await engine.ask("commit")).toEqual(["corrupt"]);
    agent.expectNothingHeld();
  });
});

describeNative("when things go wrong with a GPU", () => {
  describe("a piece out of range, a memory that is not the connection's", () => {
    test.each([
      ["slotOffset", 4_000],
      ["memoryOffset", 2 ** 21 - 64 * 1024],
      ["bytes", 0],
      ["bytes", 2 ** 40],
      ["memory", 0],
      ["memory", 2],
    ])("%s %d", async (column, value) => {
      await withEngine({}, async ({ agent, engine }) => {
        await using other = await startEngine(agent);
        expect(await other.ask("register", "ipc")).toMatchObject({ memory: 1 });
        expect(await other.ask("register", "ipc")).toMatchObject({ memory: 2 });
        await put(engine, "a");
        await engine.ask("acquire", "a");
        const outcomes = [Outcome.rejected, Outcome.ok, Outcome.ok];
        expect(await engine.ask("wrong", "load", column, String(value))).toEqual(outcomes);
        await engine.ask("release");
        await engine.ask("reserve", "b");
        expect(await engine.ask("wrong", "store", column, String(value))).toEqual(outcomes);
        expect(await engine.ask("commit")).toEqual(["corrupt"]);
        agent.expectNothingHeld();
      });
    });
  });

  test("a copy from or to a slot that the connection does not hold so", async () => {
    await withEngine({}, async ({ agent, engine }) => {
      await put(engine, "a");
      expect(await engine.ask("store")).toEqual(new Array(3).fill(Outcome.stale));
      await engine.ask("acquire", "a");
      expect(await engine.ask("store")).toEqual(new Array(3).fill(Outcome.stale));
      expect(await engine.ask("wrong", "load", "generation", "99")).toEqual([
        Outcome.stale,
        Outcome.ok,
        Outcome.ok,
      ]);
      await engine.ask("reserve", "b");
      expect(await engine.ask("load")).toEqual(new Array(3).fill(Outcome.stale));
      expect(await engine.ask("abort")).toEqual(["ok"]);
      expect(agent.server.stats.gpuFailures).toBe(0);
    });
  });

  test("dies while a GPU copies for it", async () => {
    await withEngine({}, async ({ agent, engine }) => {
      await engine.ask("reserve", ...NAMES);
      const cuda = standIn("libcuda.so.1");
      const before = copiesOf(cuda.counters());
      cuda.configure("+stall");
      engine.tell("store");
      await untilCopying(before);
      await engine.kill();
      // The agent knows of its death, and a copy without a waiter is left.
      await waitFor(() => agent.server.held().quarantined === 1);
      // The device may still write to the slots.
      expect(agent.store.snapshot().slotsQuarantined).toBe(3);
      cuda.configure("+release");
      await agent.untilNothingHeld();
      await waitFor(() => cuda.counters()["open.imports"] === 0);
    });
  });

  test("dies with a commit behind a copy", async () => {
    await withEngine({}, async ({ agent, engine }) => {
      await engine.ask("reserve", ...NAMES);
      const cuda = standIn("libcuda.so.1");
      const before = copiesOf(cuda.counters());
      cuda.configure("+stall");
      engine.tell("storeAndCommit");
      await untilCopying(before);
      await engine.kill();
      await waitFor(() => agent.server.held().quarantined === 1);
      cuda.configure("+release");
      await agent.untilNothingHeld();
      await using reader = await agent.connect();
      expect(await reader.get(...NAMES)).toEqual(["miss", "miss", "miss"]);
    });
  });

  test("a copy changes a bit on its way to a slot", async () => {
    await withEngine({}, async ({ agent, engine }) => {
      await engine.ask("reserve", ...NAMES);
      standIn("libcuda.so.1").configure("+flip@1");
      expect(await engine.ask("store")).toEqual(ok(9));
      const outcomes = (await engine.ask("commitChecked")) as number[];
      expect([...outcomes].sort()).toEqual([Outcome.ok, Outcome.ok, Outcome.corrupt]);
      agent.expectNothingHeld();
    });
  });

  test("the device is lost while it copies", async () => {
    await withEngine({}, async ({ agent, engine }) => {
      await put(engine, "r");
      await engine.ask("reserve", ...NAMES);
      standIn("libcuda.so.1").configure("+copy=700@1");
      const failed = (await engine.ask("store")) as number[];
      expect(failed).toContain(Outcome.device);
      const [first] = (await engine.ask("commit")) as string[];
      expect(first).toBe("corrupt");
      // From now on every request is handled without the device.
      await engine.ask("acquire", "r");
      expect(await engine.ask("load")).toEqual(new Array(3).fill(Outcome.device));
      await engine.ask("release");
      expect(await engine.ask("register", "ipc")).toMatchObject({ outcome: Outcome.device });
      expect(await engine.ask("devices")).toMatchObject({ devices: [{ state: 1 }] });
      await using reader = await agent.connect();
      expect(reader.client.hello.features).toBe(10);
      expect(await reader.put("x")).toEqual(["ok"]);
      expect(await reader.get("r", "x")).toEqual(["ok", "ok"]);
      expect(agent.server.stats.gpuFailures).toBeGreaterThan(0);
      await agent.untilNothingHeld();
    });
  });

  test("the driver refuses a memory", async () => {
    await withEngine({}, async ({ engine }) => {
      standIn("libcuda.so.1").configure("+cuIpcOpenMemHandle_v2=1");
      expect(await engine.ask("register", "ipc")).toEqual({
        outcome: Outcome.device,
        memory: 0,
        code: 1,
      });
      // Memory of the kind that is not refused.
      expect(await engine.ask("register", "fd")).toMatchObject({ outcome: Outcome.ok });
    });
  });
});
