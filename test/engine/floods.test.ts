import { expect, test } from "bun:test";
import * as protocol from "../../src/engine/protocol/index.ts";
import { describeNative, ManualClock, waitFor } from "../support/index.ts";
import { type AgentKit, openAgent } from "./agent-kit.ts";
import type { Engine } from "./engine.ts";
import { frameOf, type RawEngine } from "./raw-engine.ts";

const { FrameStatus } = protocol;
const PING_BYTES = 16 + 64;
const UNREAD_MAX = 256 * 1024;
const UNREAD_MS = 5_000;
/** Upper bound of what the kernel buffers for a Unix socket in both directions. */
const SOCKET_BYTES = 2 ** 20;

function pings(count: number): Uint8Array {
  const payload = new Uint8Array(64).fill(1);
  return frameOf((output) => {
    for (let i = 0; i < count; i++) protocol.encodePingRequest(output, i, payload);
  });
}

/** Another engine's requests continue to be answered. */
async function expectUndisturbed(engine: Engine, tag: string): Promise<void> {
  for (let i = 0; i < 10; i++) {
    expect(await engine.put(`${tag}-${i}`)).toEqual(["ok"]);
    expect(await engine.get(`${tag}-${i}`)).toEqual(["ok"]);
  }
}

/** Floods until the agent stops reading. Returns the bytes of requests that it had read by then. */
async function floodUnread(agent: AgentKit, raw: RawEngine, frames: number): Promise<number> {
  raw.pauseReading();
  const before = agent.frames.total();
  raw.sendBytes(pings(frames));
  let seen = -1;
  await waitFor(async () => {
    const last = seen;
    seen = agent.frames.total();
    await new Promise((resolve) => setImmediate(resolve));
    return seen === last && seen > before && raw.unsentBytes > 0;
  });
  return (seen - before) * PING_BYTES;
}

describeNative("engines that flood", () => {
  test("more connections than the agent takes", async () => {
    const clock = new ManualClock();
    await using agent = await openAgent({ clock, limits: { connectionsMax: 2 } });
    using first = await agent.rawGreeted();
    using second = await agent.rawGreeted();
    for (let i = 0; i < 5; i++) {
      using third = await agent.raw();
      const refused = await third.next();
      expect(refused).toMatchObject({ op: 0, requestId: 0, status: FrameStatus.limit });
      expect(refused.text).toContain("engine.clients_max");
      expect(third.closed).toBe(false);
      // A rejected client that sends is closed; a silent one is closed after the HELLO timeout.
      if (i % 2 === 0) third.sendBytes(pings(3));
      else clock.advance(6_500);
      expect(await third.untilClosed()).toEqual([]);
    }
    // At most a fixed number of rejected connections stays open.
    const crowd = await Promise.all(Array.from({ length: 100 }, () => agent.raw()));
    await waitFor(() => crowd.filter(({ closed }) => closed).length === 36);
    for (const raw of crowd) raw[Symbol.dispose]();
    expect(agent.connect()).rejects.toThrow("engine.clients_max");
    await agent.connect().catch(() => undefined);
    expect(agent.server.connections).toBe(2);
    second[Symbol.dispose]();
    await waitFor(() => agent.server.connections === 1);
    using next = await agent.rawGreeted();
    expect(await next.answersPing()).toBe(true);
    expect(await first.answersPing()).toBe(true);
    agent.server.setLimits({ connectionsMax: 3, unreadMs: UNREAD_MS });
    using more = await agent.rawGreeted();
    expect(await more.answersPing()).toBe(true);
  });

  test("floods without reading replies", async () => {
    const clock = new ManualClock();
    const limits = { unreadBytesMax: UNREAD_MAX, unreadMs: UNREAD_MS };
    await using agent = await openAgent({ clock, limits });
    await using other = await agent.connect();
    using raw = await agent.rawGreeted();
    const taken = await floodUnread(agent, raw, 200_000);
    // 16 MB were sent; the limit bounds the answers that the agent keeps.
    expect(taken).toBeLessThan(UNREAD_MAX + 2 * SOCKET_BYTES);
    await expectUndisturbed(other, "while it waits");
    clock.advance(UNREAD_MS - 1_000);
    expect(agent.server.stats.cutOff).toBe(0);
    clock.advance(3_000);
    expect(agent.server.stats.cutOff).toBe(1);
    expect(agent.server.connections).toBe(1);
    raw.resumeReading();
    const replies = await raw.untilClosed();
    // Closed without a message, which would not have been read.
    expect(replies.every(({ status }) => status === 0)).toBe(true);
    await expectUndisturbed(other, "after it");
  });

  test("a client that resumes reading in time gets every answer", async () => {
    const clock = new ManualClock();
    const limits = { unreadBytesMax: UNREAD_MAX, unreadMs: UNREAD_MS };
    await using agent = await openAgent({ clock, limits });
    using raw = await agent.rawGreeted();
    const frames = 60_000;
    await floodUnread(agent, raw, frames);
    clock.advance(UNREAD_MS - 1_000);
    raw.resumeReading();
    await waitFor(() => raw.replies.length === frames, 20_000, "every answer");
    expect(raw.replies.map(({ requestId }) => requestId)).toEqual(
      Array.from({ length: frames }, (_, i) => i),
    );
    raw.replies.length = 0;
    clock.advance(10 * UNREAD_MS);
    expect(await raw.answersPing()).toBe(true);
    expect(agent.server.stats.cutOff).toBe(0);
  });

  test("floods and reads", async () => {
    await using agent = await openAgent();
    await using other = await agent.connect();
    using raw = await agent.rawGreeted();
    const burst = pings(2_000);
    let flooding = true;
    const flood = (async () => {
      let answered = 0;
      while (flooding) {
        if (raw.unsentBytes < burst.length) raw.sendBytes(burst);
        await new Promise((resolve) => setImmediate(resolve));
        answered += raw.replies.splice(0).length;
      }
      return answered;
    })();
    await waitFor(() => agent.frames.total() > 10_000);
    await expectUndisturbed(other, "in turn");
    flooding = false;
    expect(await flood).toBeGreaterThan(10_000);
    expect(raw.closed).toBe(false);
  });
});
