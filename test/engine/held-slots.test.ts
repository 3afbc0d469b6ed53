import { expect, test } from "bun:test";
import { loadNative, nativeBuffer } from "../../src/native/index.ts";
import { batchOf, outcomeOf, seedOf } from "../store/names.ts";
import { describeNative, waitFor } from "../support/index.ts";
import { type AgentKit, openAgent } from "./agent-kit.ts";
import { type Engine, type Handle, handleBatch } from "./engine.ts";

/** An agent and two engines of one namespace. At the end no slot may be held. */
async function withEngines(
  run: (writer: Engine, reader: Engine, agent: AgentKit) => Promise<void>,
  options: Parameters<typeof openAgent>[0] = {},
): Promise<void> {
  await using agent = await openAgent(options);
  {
    await using writer = await agent.connect();
    await using reader = await agent.connect();
    await run(writer, reader, agent);
    for (const engine of [writer, reader]) await engine.client.ping(new Uint8Array(8));
    agent.expectNothingHeld();
  }
  expect(agent.server.stats.faults).toBe(0);
}

describeNative("the life of a slot", () => {
  test("reserve, write, commit, acquire, copy, verify, release", () =>
    withEngines(async (writer, reader, agent) => {
      const [slot] = (await writer.reserve("a")) as [Handle];
      expect(slot.offset % 4096).toBe(0);
      expect(await reader.match("a")).toBe(0);
      writer.write([slot]);
      expect((await reader.acquire("a"))[0]!.outcome).toBe("miss");
      expect(await writer.commit([slot])).toEqual(["ok"]);
      const [block] = (await reader.acquire("a")) as [Handle];
      expect(block).toMatchObject({ outcome: "ok", bytes: 5_000, offset: slot.offset });
      const copy = nativeBuffer(block.bytes);
      expect(reader.client.arena.copyOut(block.offset, copy, block.bytes, true)).toBe(
        block.checksum,
      );
      expect(loadNative().xxh3_64(copy.bytes.subarray(0, block.bytes))).toBe(block.checksum);
      expect(agent.server.held()).toEqual({ held: 1, quarantined: 0 });
      reader.release([block]);
    }));

  test("arena still growing", async () => {
    await using agent = await openAgent({ readyBytes: 8192 });
    await using engine = await agent.connect();
    const { arenaBytes, arenaReadyBytes } = engine.client.hello;
    expect([arenaBytes, arenaReadyBytes]).toEqual([agent.region.bytes, 8192]);
    // The whole arena is mapped from the start, ready or not.
    expect(engine.client.arena.bytes).toBe(arenaBytes);
    expect(await engine.put("a")).toEqual(["full"]);
    agent.store.slots.addReady(arenaBytes - 8192);
    expect(await engine.put("a", "b")).toEqual(["ok", "ok"]);
    expect(await engine.get("a", "b")).toEqual(["ok", "ok"]);
  });

  test("HELLO reports the effective limits", async () => {
    const limits = { itemsMax: 32, handlesMax: 64, leaseMs: 9_000, frameBytesMax: 65_536 };
    await using agent = await openAgent({ limits });
    await using engine = await agent.connect();
    expect(engine.client.hello).toMatchObject({
      version: 1,
      checksumAlgorithm: 1,
      features: 10,
      incarnation: 77n,
      blockTokens: 4,
      blockBytesMax: agent.store.blockBytesMax,
      ...limits,
    });
    await using other = await agent.connect("another tenant");
    expect(other.client.hello.namespaceId).not.toEqual(engine.client.hello.namespaceId);
  });

  test("more than `handles_max` slots held", () =>
    withEngines(
      async (writer, reader) => {
        const first = await writer.reserve("a", "b", "c");
        expect(first.map(({ outcome }) => outcome)).toEqual(["ok", "ok", "rejected"]);
        writer.write(first);
        await writer.commit(first.slice(0, 2));
        const held = await reader.acquire("a", "a", "b");
        expect(held.map(({ outcome }) => outcome)).toEqual(["ok", "ok", "rejected"]);
        reader.release(held.slice(0, 2));
        expect(await reader.get("b")).toEqual(["ok"]);
      },
      { limits: { handlesMax: 2 } },
    ));

  test("arena full", () =>
    withEngines(
      async (writer, reader) => {
        await writer.put("a", "b");
        const held = await reader.acquire("a", "b");
        expect(await writer.put("c")).toEqual(["full"]);
        reader.release(held);
        expect(await reader.get("a", "b")).toEqual(["ok", "ok"]);
        expect(await writer.put("c")).toEqual(["ok"]);
      },
      { slots: 2 },
    ));

  test(
    "commit or abort of a slot never reserved, of another connection, of an old generation; " +
      "second commit",
    () =>
      withEngines(async (writer, reader) => {
        const handles = await writer.reserve("a", "b");
        const [a, b] = handles as [Handle, Handle];
        const never = { ...a, slot: 60_000 };
        const old = { ...a, generation: (a.generation - 1) >>> 0 };
        expect(await writer.commit([never, old, { ...a, slot: 0, generation: 0 }])).toEqual([
          "stale",
          "stale",
          "stale",
        ]);
        expect(await writer.abort([never, old])).toEqual(["stale", "stale"]);
        expect(await reader.commit(handles)).toEqual(["stale", "stale"]);
        expect(await reader.abort(handles)).toEqual(["stale", "stale"]);
        writer.write(handles);
        expect(await writer.commit([a])).toEqual(["ok"]);
        expect(await writer.commit([a, b])).toEqual(["stale", "ok"]);
        expect(await writer.abort([a, b])).toEqual(["stale", "stale"]);
        expect(await reader.get("a", "b")).toEqual(["ok", "ok"]);
      }),
  );

  test("release twice", () =>
    withEngines(async (writer, reader, agent) => {
      await writer.put("a");
      const [first, second] = (await reader.acquire("a", "a")) as [Handle, Handle];
      const twice = async (handle: Handle) => {
        reader.release([handle]);
        await reader.client.ping(new Uint8Array(8));
        return agent.server.held().held;
      };
      expect(await twice(first)).toBe(1);
      expect(await twice(second)).toBe(0);
      // A third release has no effect: another engine still holds the block.
      const [other] = (await writer.acquire("a")) as [Handle];
      expect(await twice(first)).toBe(1);
      writer.release([other]);
    }));

  test("checksum of a COMMIT is not that of the bytes", () =>
    withEngines(async (writer, reader, agent) => {
      const handles = await writer.reserve("a");
      writer.write(handles);
      expect(await writer.commit(handles, true)).toEqual(["corrupt"]);
      expect(await reader.get("a")).toEqual(["miss"]);
      expect(agent.store.snapshot()).toMatchObject({ slotsUsed: 0, stats: { corruptBlocks: 1 } });
      expect(await writer.put("a")).toEqual(["ok"]);
    }));

  test("copy does not verify", () =>
    withEngines(async (writer, reader) => {
      await writer.put("a");
      const [block] = (await reader.acquire("a")) as [Handle];
      // A faulty engine writes to a slot that it does not hold for writing.
      writer.client.arena.fill(block.offset, 8, seedOf("something else"));
      const copy = nativeBuffer(block.bytes);
      const { arena } = reader.client;
      expect(arena.copyOut(block.offset, copy, block.bytes, true)).not.toBe(block.checksum);
      const handles = handleBatch([block]);
      await reader.client.report(handles);
      expect(outcomeOf(handles.outcome[0]!)).toBe("corrupt");
      // One miss, and then a block that is intact again.
      expect(await reader.get("a")).toEqual(["miss"]);
      expect(await writer.put("a")).toEqual(["ok"]);
      expect(await reader.get("a")).toEqual(["ok"]);
    }));

  test("reports of blocks that are right", () =>
    withEngines(async (writer, reader, agent) => {
      await writer.put("a");
      const handles = handleBatch(await reader.acquire("a"));
      await reader.client.report(handles);
      expect(outcomeOf(handles.outcome[0]!)).toBe("ok");
      await reader.client.report(handles);
      expect(outcomeOf(handles.outcome[0]!)).toBe("stale");
      expect(await reader.get("a")).toEqual(["ok"]);
      expect(agent.store.snapshot().checks).toMatchObject({ falseReports: 1 });
    }));

  test("engines of one namespace share blocks, engines of another do not see them", () =>
    withEngines(async (writer, reader, agent) => {
      await using stranger = await agent.connect("another tenant");
      await writer.put("a", "a/b");
      expect(await reader.get("a", "a/b")).toEqual(["ok", "ok"]);
      expect(await stranger.get("a", "a/b")).toEqual(["miss", "miss"]);
      // Not even through results of another engine's MATCH in the agent's memory.
      expect(await writer.match("a", "a/b")).toBe(2);
      const best = new Uint8Array(2).fill(0xff);
      expect(await stranger.client.match(batchOf(["a", "a/b"]), 0, best)).toBe(0);
      expect([...best]).toEqual([0, 0]);
    }));

  test("slots released just before a disconnect are released", async () => {
    await using agent = await openAgent();
    const engine = await agent.connect();
    await engine.put("a");
    engine.release(await engine.acquire("a", "a"));
    await engine[Symbol.asyncDispose]();
    await waitFor(() => agent.server.connections === 0);
    agent.expectNothingHeld();
    expect(agent.server.stats.quarantines).toBe(0);
  });
});
