import { describe, expect, test } from "bun:test";
import { readdirSync } from "node:fs";
import * as protocol from "../../src/engine/protocol/index.ts";
import { batchOf } from "../store/names.ts";
import {
  describeNative,
  ManualClock,
  pythonEnvironment,
  requirePython,
  waitFor,
} from "../support/index.ts";
import { type AgentKit, openAgent } from "./agent-kit.ts";
import { EngineProcess } from "./engine-process.ts";
import { frameOf, slotsOf } from "./raw-engine.ts";

const FREE_MS = 1_000;

/** Connects without a frame, or with part of one, and waits to be killed. */
const RAW_CHILD = `
const socket = await Bun.connect({ unix: process.argv[1], socket: { data() {} } });
socket.write(Uint8Array.fromHex(process.argv[2]));
console.log("connected");
setInterval(() => {}, 1000);
`;

async function killRaw(agent: AgentKit, bytes: Uint8Array): Promise<void> {
  const words = [process.execPath, "-e", RAW_CHILD, agent.socketPath, bytes.toHex()];
  const child = Bun.spawn(words, { stdout: "pipe", stderr: "inherit" });
  await child.stdout.getReader().read();
  await waitFor(() => agent.server.connections === 1);
  child.kill("SIGKILL");
  await child.exited;
  await waitFor(() => agent.server.connections === 0, FREE_MS);
}

describeNative("an engine that dies", () => {
  test("client dies before HELLO, or between frames", async () => {
    await using agent = await openAgent();
    await killRaw(agent, new Uint8Array(0));
    await using engine = await EngineProcess.start(agent.socketPath);
    expect(await engine.ask("put", "a")).toEqual(["ok"]);
    await engine.kill();
    await agent.untilNothingHeld();
    expect(agent.server.connections).toBe(0);
    await using other = await agent.connect();
    expect(await other.get("a")).toEqual(["ok"]);
  });

  test("dies in the middle of a frame", async () => {
    await using agent = await openAgent();
    const hello = frameOf((output) =>
      protocol.encodeHelloRequest(output, 1, {
        versionMin: 1,
        versionMax: 1,
        features: 0,
        name: "half",
        manifest: new Uint8Array(100),
      }),
    );
    await killRaw(agent, hello.subarray(0, hello.length - 9));
    await agent.untilNothingHeld();
    expect(agent.server.connections).toBe(0);
    expect(agent.server.stats.faults).toBe(0);
  });

  describe("dies between RESERVE and COMMIT", () => {
    test.each(["nothing", "writeHalf", "write"])("having written: %s", async (how) => {
      await using agent = await openAgent({ slots: 3 });
      await using other = await agent.connect();
      await other.put("kept");
      await using engine = await EngineProcess.start(agent.socketPath);
      const reserved = (await engine.ask("reserve", "a", "b")) as [string, number][];
      expect(reserved.map(([outcome]) => outcome)).toEqual(["ok", "ok"]);
      if (how !== "nothing") await engine.ask(how);
      expect(await other.put("a")).toEqual(["pending"]);
      await engine.kill();
      await waitFor(
        () => agent.server.held().quarantined + agent.server.held().held === 0,
        FREE_MS,
      );
      expect(await other.get("a", "b", "kept")).toEqual(["miss", "miss", "ok"]);
      expect(await other.put("a", "b")).toEqual(["ok", "ok"]);
      expect(await other.get("a", "b", "kept")).toEqual(["ok", "ok", "ok"]);
      await agent.untilNothingHeld();
    });
  });

  test("dies while a COMMIT is at work", async () => {
    await using agent = await openAgent({ slots: 512 });
    await using other = await agent.connect();
    for (let round = 0; round < 4; round++) {
      const names = Array.from({ length: 8 }, (_, i) => `r${round}-${i}`);
      await using engine = await EngineProcess.start(agent.socketPath);
      await engine.ask("reserveLarge", ...names);
      await engine.ask("write");
      engine.tell("commitAndDie");
      await engine.exited;
      await waitFor(() => agent.server.connections === 1, FREE_MS);
      await agent.untilNothingHeld();
      // Stored or not, but never half of it.
      for (const read of await other.get(...names)) expect(["ok", "miss"]).toContain(read);
    }
    expect(agent.server.stats.faults).toBe(0);
  });

  test("dies while it holds blocks for reading", async () => {
    await using agent = await openAgent({ slots: 2 });
    await using other = await agent.connect();
    await other.put("a");
    await other.put("b");
    await using engine = await EngineProcess.start(agent.socketPath);
    expect(await engine.ask("acquire", "a", "b", "a")).toEqual(["ok", "ok", "ok"]);
    expect(await other.put("c")).toEqual(["full"]);
    await engine.kill();
    await agent.untilNothingHeld();
    expect(await other.put("c", "d")).toEqual(["ok", "ok"]);
    await agent.untilNothingHeld();
  });

  test("closes the socket and lives on, holding slots", async () => {
    await using agent = await openAgent({ slots: 4 });
    await using other = await agent.connect();
    await other.put("a");
    await using engine = await EngineProcess.start(agent.socketPath);
    expect(await engine.ask("acquire", "a")).toEqual(["ok"]);
    const [[, slot]] = (await engine.ask("reserve", "half")) as [[string, number]];
    await engine.ask("hangUp");
    await waitFor(() => agent.server.connections === 1);
    expect(agent.server.held()).toEqual({ held: 0, quarantined: 2 });
    expect(agent.server.stats.quarantines).toBe(1);
    // Its name is free at once, its slots are not: two of four are left.
    const fresh = await other.reserve("half", "x", "y", "z");
    expect(fresh.map(({ outcome }) => outcome)).toEqual(["ok", "ok", "full", "full"]);
    expect(fresh.map((handle) => handle.slot)).not.toContain(slot);
    await other.abort(fresh.slice(0, 2));
    // Whatever it still writes there does no harm.
    await engine.kill();
    await waitFor(() => agent.server.held().quarantined === 0, FREE_MS);
    await agent.untilNothingHeld();
    expect(await other.put("w", "x", "y", "z")).toEqual(["ok", "ok", "ok", "ok"]);
  });

  const python = requirePython("its child process keeps the socket open");
  test.skipIf(python === null)("its child process keeps the socket open", async () => {
    await using agent = await openAgent();
    const words = [python!, `${import.meta.dir}/children/forking-engine.py`, agent.socketPath];
    const child = Bun.spawn(words, {
      env: pythonEnvironment(),
      stdin: "pipe",
      stdout: "pipe",
      stderr: "inherit",
    });
    const said = new TextDecoder().decode((await child.stdout.getReader().read()).value);
    expect(said).toMatch(/^holding \d+$/m);
    const keeper = Number(said.split(" ")[1]);
    expect(agent.server.held()).toEqual({ held: 1, quarantined: 0 });
    child.kill("SIGKILL");
    await child.exited;
    await agent.untilNothingHeld();
    expect(agent.server.connections).toBe(0);
    // The process that keeps the socket stayed alive.
    process.kill(keeper, 0);
    process.kill(keeper, "SIGKILL");
  });

  test("its process is watched only while it holds slots", async () => {
    await using agent = await openAgent({ watches: 8 });
    for (let i = 0; i < 40; i++) {
      await using engine = await agent.connect();
      expect(await engine.put(`a${i}`)).toEqual(["ok"]);
    }
    await waitFor(() => agent.server.connections === 0);
    await using engine = await agent.connect();
    expect(await engine.get("a0")).toEqual(["ok"]);
  });

  test("its process is watched until its commit in progress has ended", async () => {
    const clock = new ManualClock();
    await using agent = await openAgent({ clock, slots: 8_192, watches: 4 });
    for (let round = 0; round < 8; round++) {
      using raw = await agent.rawGreeted();
      // Large enough that hashing is still in progress when the connection ends.
      const block = batchOf([{ name: `a${round}`, bytes: 50_000_000 }]);
      const reply = await raw.ask((o) =>
        protocol.encodeReserveRequest(o, 2, { session: 0n }, block),
      );
      const { count, slot, generation } = slotsOf(reply);
      const sums = { checksum: new BigUint64Array(count), flags: new Uint32Array(count) };
      const items = { count, slot, generation, ...sums };
      raw.send((output) => protocol.commitRequest.encode(output, 3, items));
      await waitFor(() => agent.frames.total() === 3 * round + 3);
      raw[Symbol.dispose]();
      await waitFor(() => agent.server.connections === 0);
      await agent.untilNothingHeld();
      clock.advance(1_500);
    }
    expect(agent.server.stats.quarantines).toBeGreaterThan(0);
    expect(agent.store.snapshot().stats.committedBlocks).toBe(8);
  });

  test("that keeps losing connections is refused, others are not", async () => {
    await using agent = await openAgent({ slots: 32 });
    const batch = (i: number) => batchOf([`a${i}`]);
    for (let i = 0; i < 16; i++) {
      using raw = await agent.rawGreeted();
      await raw.ask((output) =>
        protocol.encodeReserveRequest(output, 2, { session: 0n }, batch(i)),
      );
      raw[Symbol.dispose]();
      await waitFor(() => agent.server.connections === 0);
    }
    expect(agent.server.held()).toEqual({ held: 0, quarantined: 16 });
    using raw = await agent.raw();
    expect(await raw.next()).toMatchObject({ op: 0, status: protocol.FrameStatus.limit });
    await using engine = await EngineProcess.start(agent.socketPath);
    expect(await engine.ask("put", "a", "b")).toEqual(["ok", "ok"]);
  });

  test("leaves no descriptor open, accepted or refused", async () => {
    await using agent = await openAgent({ limits: { connectionsMax: 4 } });
    const open = () => readdirSync("/proc/self/fd").length;
    const comeAndGo = async () => {
      using greeted = await agent.rawGreeted();
      using silent = await agent.raw();
      using refused = await agent.raw();
      refused.sendBytes(new Uint8Array(16));
      await refused.untilClosed();
      expect(await greeted.answersPing()).toBe(true);
      silent[Symbol.dispose]();
    };
    const settled = () => waitFor(() => agent.server.connections === 0);
    await comeAndGo();
    await settled();
    const before = open();
    for (let i = 0; i < 30; i++) await comeAndGo();
    const crowd = await Promise.allSettled(Array.from({ length: 12 }, () => agent.connect()));
    expect(crowd.filter(({ status }) => status === "fulfilled")).toHaveLength(4);
    for (const one of crowd) {
      if (one.status === "fulfilled") await one.value[Symbol.asyncDispose]();
    }
    await settled();
    await waitFor(() => open() <= before);
  });

  test("more processes than can be watched are refused with a reason", async () => {
    await using agent = await openAgent({ watches: 3 });
    const engines = await Promise.all([1, 2, 3].map(() => agent.rawGreeted()));
    using raw = await agent.raw();
    expect(await raw.next()).toMatchObject({ op: 0, status: protocol.FrameStatus.limit });
    for (const engine of engines) {
      expect(await engine.answersPing()).toBe(true);
      engine[Symbol.dispose]();
    }
    await waitFor(() => agent.server.connections === 0);
    using next = await agent.rawGreeted();
    const batch = batchOf(["a"]);
    const reply = await next.ask((output) =>
      protocol.encodeMatchRequest(output, 4, { tiers: 0 }, batch),
    );
    expect(reply.status).toBe(0);
  });
});
