import { expect, test } from "bun:test";
import * as protocol from "../../src/engine/protocol/index.ts";
import { batchOf } from "../store/names.ts";
import { describeNative, ManualClock, waitFor } from "../support/index.ts";
import { standIn } from "../support/stand-ins.ts";
import { openAgent } from "./agent-kit.ts";
import { EngineProcess } from "./engine-process.ts";
import { frameOf, slotsOf } from "./raw-engine.ts";

const { FrameStatus, Op } = protocol;
const LEASE_MS = 10_000;
/** Maximum delay of a periodic check. */
const LOOK_MS = 1_300;

async function openLeasing() {
  const clock = new ManualClock();
  const agent = await openAgent({ clock, slots: 4, limits: { leaseMs: LEASE_MS } });
  return { clock, agent };
}

describeNative("the lease", () => {
  test("stopped (SIGSTOP, a debugger, swapped out) longer than its lease", async () => {
    const { clock, agent } = await openLeasing();
    await using _ = agent;
    await using other = await agent.connect();
    await other.put("a");
    await using engine = await EngineProcess.start(agent.socketPath);
    expect(await engine.ask("acquire", "a")).toEqual(["ok"]);
    await engine.stop();
    clock.advance(LEASE_MS + LOOK_MS);
    expect(agent.server.stats).toMatchObject({ cutOff: 1, quarantines: 1 });
    expect(agent.server.held()).toEqual({ held: 0, quarantined: 1 });
    expect(agent.logs.at(-1)).toMatchObject({
      level: "warn",
      text: expect.stringContaining("overstayed"),
      fields: { pid: engine.pid },
    });
    // A slot that it may be copying from stays unchanged, even under pressure.
    const pressed = await other.put("w", "x", "y", "z");
    expect(pressed.filter((outcome) => outcome === "ok")).toHaveLength(3);
    engine.goOn();
    expect(await engine.ask("proves")).toEqual([true]);
    expect(await engine.ask("closed")).toMatchObject({
      code: "ENGINE_REFUSED",
      text: expect.stringContaining("overstayed"),
    });
    expect(agent.server.held()).toEqual({ held: 0, quarantined: 1 });
    await engine.kill();
    await agent.untilNothingHeld();
    expect(await other.get("a")).toEqual(["ok"]);
  });

  test("an agent that was paused itself disconnects no engine", async () => {
    const { clock, agent } = await openLeasing();
    await using _ = agent;
    await using engine = await agent.connect();
    await engine.put("a");
    await engine.acquire("a");
    clock.stall(LEASE_MS * 3);
    expect(agent.server.stats.cutOff).toBe(0);
    // From here on the lease counts as usual.
    clock.advance(LEASE_MS + LOOK_MS);
    expect(agent.server.stats.cutOff).toBe(1);
  });

  test("a client that waits for a device of the agent is not silent", async () => {
    const clock = new ManualClock();
    const limits = { leaseMs: LEASE_MS };
    await using agent = await openAgent({ clock, slots: 4, limits, gpuPlan: "" });
    const child = "gpu-engine-child.ts";
    await using engine = await EngineProcess.start(agent.socketPath, "test", child);
    await engine.ask("register", "ipc");
    await engine.ask("reserve", "a");
    const cuda = standIn("libcuda.so.1");
    cuda.configure("+stall");
    engine.tell("store");
    await waitFor(() => agent.frames.list().some(([operation]) => operation === "gpuStore"));
    clock.advance(3 * LEASE_MS);
    expect(agent.server.stats.cutOff).toBe(0);
    cuda.configure("+release");
    expect(await engine.answer()).toEqual([0, 0, 0]);
    clock.advance(LEASE_MS + LOOK_MS);
    expect(agent.server.stats.cutOff).toBe(1);
  });

  test("a write begun before the lease expired does no harm afterwards", async () => {
    const { clock, agent } = await openLeasing();
    await using _ = agent;
    await using other = await agent.connect();
    await using engine = await EngineProcess.start(agent.socketPath);
    await engine.ask("reserve", "a");
    await engine.stop();
    clock.advance(LEASE_MS + LOOK_MS);
    // The block's name is free again, its slot is not: others write elsewhere.
    expect(await other.put("a", "x", "y", "z")).toEqual(["ok", "ok", "ok", "full"]);
    engine.goOn();
    await engine.ask("write");
    expect(await other.get("a", "x", "y")).toEqual(["ok", "ok", "ok"]);
    await engine.kill();
    await agent.untilNothingHeld();
    expect(await other.put("z")).toEqual(["ok"]);
  });

  test("stopped shorter than its lease", async () => {
    const { clock, agent } = await openLeasing();
    await using _ = agent;
    await using engine = await EngineProcess.start(agent.socketPath);
    await engine.ask("reserve", "a");
    await engine.stop();
    clock.advance(LEASE_MS - 1);
    engine.goOn();
    await engine.ask("write");
    expect(await engine.ask("commit")).toEqual(["ok"]);
    expect(agent.server.stats).toMatchObject({ cutOff: 0, quarantines: 0 });
  });

  test("any complete frame renews it, even a ping without a reply", async () => {
    const { clock, agent } = await openLeasing();
    await using _ = agent;
    using other = await agent.rawGreeted();
    using raw = await agent.rawGreeted();
    const batch = batchOf(["a"]);
    const reserved = slotsOf(
      await raw.ask((o) => protocol.encodeReserveRequest(o, 3, { session: 0n }, batch)),
    );
    const ping = frameOf((o) => protocol.encodePingRequest(o, 4, new Uint8Array(8), true));
    for (let i = 0; i < 5; i++) {
      clock.advance(LEASE_MS - 1);
      const before = agent.frames.total();
      raw.sendBytes(ping);
      await waitFor(() => agent.frames.total() > before);
    }
    expect(agent.server.stats.cutOff).toBe(0);
    clock.advance(LEASE_MS - 1);
    raw.sendBytes(ping.subarray(0, 20));
    // Answered after those bytes were read.
    for (let i = 0; i < 3; i++) expect(await other.answersPing()).toBe(true);
    clock.advance(LOOK_MS);
    const [last] = await raw.untilClosed();
    expect(last).toMatchObject({ op: 0, requestId: 0, status: FrameStatus.overstayed });
    expect(reserved.count).toBe(1);
  });

  test("a client without slots may be silent forever", async () => {
    const { clock, agent } = await openLeasing();
    await using _ = agent;
    using raw = await agent.rawGreeted();
    const batch = batchOf(["a"]);
    const reserved = slotsOf(
      await raw.ask((o) => protocol.encodeReserveRequest(o, 3, { session: 0n }, batch)),
    );
    await raw.ask((o) => protocol.encodeHandlesRequest(o, Op.abort, 4, reserved));
    clock.advance(1_000 * LEASE_MS);
    expect(await raw.answersPing()).toBe(true);
  });

  test("wall clock jumps", async () => {
    const { clock, agent } = await openLeasing();
    await using _ = agent;
    using raw = await agent.rawGreeted();
    const batch = batchOf(["a"]);
    await raw.ask((o) => protocol.encodeReserveRequest(o, 3, { session: 0n }, batch));
    clock.jumpWall(365 * 86_400_000);
    clock.advance(LEASE_MS - LOOK_MS);
    clock.jumpWall(-730 * 86_400_000);
    expect(await raw.answersPing()).toBe(true);
    // A clock that jumps backwards does not extend the lease either.
    clock.advance(LEASE_MS + LOOK_MS);
    expect((await raw.untilClosed()).at(-1)!.status).toBe(FrameStatus.overstayed);
  });
});
