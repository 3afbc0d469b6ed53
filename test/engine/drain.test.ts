import { expect, test } from "bun:test";
import { HearthError } from "../../src/core/index.ts";
import * as protocol from "../../src/engine/protocol/index.ts";
import { describeNative, ManualClock, waitFor } from "../support/index.ts";
import { type AgentKit, manifestBytes, openAgent } from "./agent-kit.ts";
import type { Engine } from "./engine.ts";
import { lookupOf, Member } from "./engine-member.ts";

const { FrameStatus } = protocol;
const DRAIN_MS = 10_000;
const GENTLY = new AbortController().signal;

async function refusedWith(request: Promise<unknown>): Promise<string> {
  try {
    await request;
  } catch (error) {
    if (error instanceof HearthError) return `${error.code}: ${error.text}`;
    throw error;
  }
  return "it was answered";
}

/** An agent with a stopped clock, and an engine that holds one slot of each kind. */
async function withHolder(
  run: (parts: {
    agent: AgentKit;
    clock: ManualClock;
    engine: Engine;
    written: Awaited<ReturnType<Engine["reserve"]>>;
    read: Awaited<ReturnType<Engine["acquire"]>>;
  }) => Promise<void>,
): Promise<void> {
  const clock = new ManualClock();
  await using agent = await openAgent({ clock });
  await using engine = await agent.connect();
  await engine.put("a");
  const written = await engine.reserve("b");
  const read = await engine.acquire("a");
  await run({ agent, clock, engine, written, read });
}

/** Advances the agent's clock in small steps until the drain is over. */
async function settle(clock: ManualClock, drained: Promise<void>): Promise<void> {
  let over = false;
  void drained.then(() => {
    over = true;
  });
  await waitFor(async () => {
    await clock.advanceAsync(5);
    return over;
  });
}

describeNative("an agent that stops", () => {
  test("agent drains (SIGTERM)", () =>
    withHolder(async ({ agent, clock, engine, written, read }) => {
      using idle = await agent.rawGreeted();
      using waiting = await agent.raw();
      await waitFor(() => agent.server.connections === 3);
      const drained = agent.server.drain(DRAIN_MS, GENTLY);
      await clock.advanceAsync(10);
      // Connections without slots are closed at once, before or after HELLO.
      for (const raw of [idle, waiting]) {
        const replies = await raw.untilClosed();
        expect(replies).toHaveLength(1);
        expect(replies[0]).toMatchObject({ op: 0, status: FrameStatus.draining });
      }
      expect(agent.server.connections).toBe(1);
      // No new slots are granted; all other requests work.
      for (const request of [engine.reserve("c"), engine.acquire("a")]) {
        expect(await refusedWith(request)).toMatch(/^ENGINE_REFUSED: .*draining/);
      }
      expect(await engine.match("a", "b")).toBe(1);
      await engine.client.ping(new Uint8Array(8));
      expect(engine.proves(read[0]!)).toBe(true);
      engine.write(written);
      expect(await engine.commit(written)).toEqual(["ok"]);
      expect(await engine.match("a", "b")).toBe(2);
      expect(agent.server.held().held).toBe(1);
      engine.release(read);
      await settle(clock, drained);
      expect(agent.server.connections).toBe(0);
      expect((await engine.client.closed).text).toContain("draining");
      expect(clock.monotonicMs()).toBeLessThan(DRAIN_MS);
      agent.expectNothingHeld();
    }));

  test("after its deadline every connection is closed, even if it holds slots", () =>
    withHolder(async ({ agent, clock, engine }) => {
      const drained = agent.server.drain(DRAIN_MS, GENTLY);
      await clock.advanceAsync(DRAIN_MS - 100, 100);
      expect(agent.server.connections).toBe(1);
      await settle(clock, drained);
      await agent.server[Symbol.asyncDispose]();
      expect((await engine.client.closed).text).toContain("draining");
      expect(agent.server.held()).toEqual({ held: 0, quarantined: 0 });
    }));

  test("stops immediately on a second request", () =>
    withHolder(async ({ agent, clock }) => {
      const hurry = new AbortController();
      const drained = agent.server.drain(DRAIN_MS, hurry.signal);
      await clock.advanceAsync(100);
      hurry.abort();
      await settle(clock, drained);
      expect(clock.monotonicMs()).toBeLessThan(1_000);
    }));

  test("a HELLO in transit is refused as draining", () =>
    withHolder(async ({ agent, clock }) => {
      using late = await agent.raw();
      const hello = { versionMin: 1, versionMax: 1, features: 0, name: "late" };
      late.send((output) =>
        protocol.encodeHelloRequest(output, 1, { ...hello, manifest: manifestBytes() }),
      );
      const drained = agent.server.drain(DRAIN_MS, GENTLY);
      await clock.advanceAsync(50, 5);
      const replies = await late.untilClosed();
      expect(replies.map(({ status }) => status)).toEqual([FrameStatus.draining]);
      await agent.server[Symbol.asyncDispose]();
      await settle(clock, drained);
    }));

  test("a waiting lookup is answered with the blocks present", async () => {
    await using agent = await openAgent();
    await using member = await Member.connect(agent.socketPath);
    await member.join();
    await member.announce(["k0"], 60_000);
    const asked = member.lookup(lookupOf(["k0"], ["hold", "wait"]));
    await waitFor(() => agent.store.engines.lookups.size === 1);
    const drained = agent.server.drain(60_000, GENTLY);
    expect(await asked).toMatchObject({ leading: 0, announced: 1 });
    await drained;
    expect(agent.server.connections).toBe(0);
  });

  test("a commit in progress is finished first", async () => {
    const clock = new ManualClock();
    await using agent = await openAgent({ clock, slots: 512 });
    await using engine = await agent.connect();
    const blocks = Array.from({ length: 8 }, (_, i) => ({ name: `a${i}`, bytes: 200_000 }));
    const written = await engine.reserve(...blocks);
    engine.write(written);
    const committed = engine.commit(written);
    const drained = agent.server.drain(DRAIN_MS, GENTLY);
    await settle(clock, drained);
    expect(await committed).toEqual(Array(8).fill("ok"));
    expect(agent.store.snapshot().ramBlocks).toBe(8);
  });

  test("leaves no timer behind", async () => {
    const clock = new ManualClock();
    const agent = await openAgent({ clock });
    using raw = await agent.rawGreeted();
    expect(clock.pending).toBeGreaterThan(0);
    await agent[Symbol.asyncDispose]();
    expect(clock.pending).toBe(0);
    expect((await raw.untilClosed()).at(-1)!.status).toBe(FrameStatus.draining);
  });
});
