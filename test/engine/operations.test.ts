import { expect, test } from "bun:test";
import { HearthError, LAYER_ALL } from "../../src/core/index.ts";
import { EngineClient } from "../../src/engine/index.ts";
import {
  AliasKind,
  encodeHelloRequest,
  encodePingRequest,
  encodeReserveRequest,
  IdentifyKind,
} from "../../src/engine/protocol/index.ts";
import {
  decodeManifest,
  digestsOfChainKeys,
  digestsOfPrompt,
  namespaceKey,
} from "../../src/identity/index.ts";
import { loadNative } from "../../src/native/index.ts";
import { createHandleBatch } from "../../src/store/index.ts";
import { batchOf, digestOf, outcomeOf } from "../store/names.ts";
import { describeNative, tempDir } from "../support/index.ts";
import { type AgentKit, BLOCK_TOKENS, manifestBytes, openAgent } from "./agent-kit.ts";
import type { Engine } from "./engine.ts";

async function withEngine(run: (engine: Engine, agent: AgentKit) => Promise<void>): Promise<void> {
  await using agent = await openAgent();
  await using engine = await agent.connect();
  await run(engine, agent);
  expect(agent.server.stats.faults).toBe(0);
}

function digestsFor(count: number) {
  return { count: 0, layer: 0, digests: new Uint8Array(count * 32) };
}

describeNative("operations", () => {
  test("PING returns its payload", () =>
    withEngine(async (_engine, agent) => {
      using raw = await agent.rawGreeted();
      for (const bytes of [0, 8, 64]) {
        const payload = new Uint8Array(bytes).fill(bytes + 1);
        const reply = await raw.ask((output) => encodePingRequest(output, 3, payload));
        expect(reply.body).toEqual(payload);
      }
    }));

  test("IDENTIFY names blocks by tokens and by page keys as docs/identity.md defines", () =>
    withEngine(async ({ client }) => {
      const native = loadNative();
      const decoded = decodeManifest(manifestBytes());
      if (!decoded.ok) throw new Error(decoded.why);
      const key = namespaceKey(native, decoded.manifest);
      expect(client.hello.namespaceId).toEqual(key);
      const tokens = Uint32Array.from({ length: 4 * BLOCK_TOKENS + 3 }, (_, i) => i * 77);
      const into = digestsFor(8);
      const items = new Uint8Array(tokens.buffer);
      const request = { kind: IdentifyKind.tokens, layer: LAYER_ALL, count: tokens.length, items };
      await client.identify(request, into);
      const expected = digestsOfPrompt(native, key, tokens, BLOCK_TOKENS);
      expect(into.count).toBe(4);
      expect(into.digests.toHex().slice(0, 4 * 64)).toBe(expected.toHex());
      const keys = Uint8Array.from([...digestOf("key 1"), ...digestOf("key 2")]);
      const chain = { kind: IdentifyKind.chainKeys, layer: LAYER_ALL, count: 2, items: keys };
      await client.identify(chain, into);
      expect(into.count).toBe(2);
      const chained = digestsOfChainKeys(native, key, keys, 32);
      expect(into.digests.toHex().slice(0, 2 * 64)).toBe(chained.toHex());
    }));

  test("IDENTIFY of more digests than fit a reply is refused, and the connection continues", () =>
    withEngine(async ({ client }) => {
      const most = Math.floor((client.hello.frameBytesMax - 16) / 32);
      const identify = (count: number) => {
        const items = new Uint8Array(count * 4);
        const into = digestsFor(most + 1);
        const request = { kind: IdentifyKind.tokens, layer: LAYER_ALL, count, items };
        return client.identify(request, into).then(() => into.count);
      };
      expect(await identify(most * BLOCK_TOKENS)).toBe(most);
      expect(identify((most + 1) * BLOCK_TOKENS)).rejects.toThrow("refused (limit)");
      expect(await identify(2 * BLOCK_TOKENS)).toBe(2);
    }));

  test("requests sent right after HELLO are answered after it", async () => {
    await using agent = await openAgent();
    using raw = await agent.raw();
    const hello = { versionMin: 1, versionMax: 1, features: 0, name: "eager" };
    raw.send((output) => {
      encodeHelloRequest(output, 1, { ...hello, manifest: manifestBytes() });
      encodeReserveRequest(output, 2, { session: 0n }, batchOf(["a"]));
      encodePingRequest(output, 3, new Uint8Array(8));
    });
    const replies = [await raw.next(), await raw.next(), await raw.next()];
    expect(replies.map(({ requestId, status }) => [requestId, status])).toEqual([
      [1, 0],
      [2, 0],
      [3, 0],
    ]);
  });

  test("ALIAS adds names, and IDENTIFY resolves them", () =>
    withEngine(async (engine) => {
      const { client } = engine;
      await engine.put({ name: "a", alias: 2n ** 64n - 1n }, "b");
      const hash = (value: bigint) => {
        const bytes = new Uint8Array(32);
        new DataView(bytes.buffer).setBigUint64(0, value, true);
        return bytes;
      };
      const out = createHandleBatch(2);
      const aliases = Uint8Array.from([...hash(5n), ...hash(6n)]);
      await client.alias(batchOf(["b", "nowhere"]), AliasKind.engineHash, aliases, out);
      expect([...out.outcome].map(outcomeOf)).toEqual(["ok", "miss"]);
      const pages = Uint8Array.from([...digestOf("page"), ...digestOf("other page")]);
      await client.alias(batchOf(["b", "nowhere"]), AliasKind.sha256, pages, out);
      expect([...out.outcome].map(outcomeOf)).toEqual(["ok", "miss"]);
      const items = new Uint8Array(32);
      [2n ** 64n - 1n, 5n, 6n, 0n].forEach((value, i) => {
        new DataView(items.buffer).setBigUint64(i * 8, value, true);
      });
      const into = digestsFor(4);
      const request = { kind: IdentifyKind.engineHashes, layer: LAYER_ALL, count: 4, items };
      await client.identify(request, into);
      const none = new Uint8Array(32);
      expect(into.digests).toEqual(
        Uint8Array.from([...digestOf("a"), ...digestOf("b"), ...none, ...none]),
      );
    }));

  test("GPU_STORED and GPU_EVICTED maintain the mirror used by MATCH", () =>
    withEngine(async (engine, agent) => {
      const { client } = engine;
      await engine.put("a");
      const out = createHandleBatch(3);
      const best = new Uint8Array(3);
      await client.gpuStored(batchOf(["a", "a/b"]), out);
      expect(await client.match(batchOf(["a", "a/b", "a/b/c"]), 0, best)).toBe(2);
      expect([...best]).toEqual([1, 1, 0]);
      expect(await client.match(batchOf(["a", "a/b"]), 2, best)).toBe(1);
      await client.gpuEvicted(batchOf(["a/b", "a", "nowhere"]), out);
      expect([...out.outcome].map(outcomeOf)).toEqual(["ok", "ok", "miss"]);
      expect(await client.match(batchOf(["a", "a/b"]), 0, best)).toBe(1);
      expect(best[0]).toBe(2);
      await client.gpuStored(batchOf(["g"]), out);
      await using other = await agent.connect();
      expect(await other.match("g")).toBe(1);
    }));

  test("a session keeps its blocks after its connection and reports those present", async () => {
    await using agent = await openAgent({ slots: 4 });
    const out = createHandleBatch(1);
    {
      await using engine = await agent.connect();
      await engine.put("a", "a/b");
      await engine.client.sessionCommit(9n, batchOf(["a/b"]), out);
      expect(outcomeOf(out.outcome[0]!)).toBe("ok");
      await engine.client.sessionCommit(9n, batchOf(["nowhere"]), out);
      expect(outcomeOf(out.outcome[0]!)).toBe("miss");
      await engine.client.sessionCommit(0n, batchOf(["a/b"]), out);
      expect(outcomeOf(out.outcome[0]!)).toBe("rejected");
    }
    await using engine = await agent.connect();
    for (let i = 0; i < 8; i++) await engine.put(`x${i}`);
    expect(await engine.client.sessionStatus(9n)).toEqual({
      outcome: 0,
      blocks: 2,
      tokens: 2 * BLOCK_TOKENS,
      bytes: 10_000,
    });
    expect(await engine.client.sessionStatus(8n)).toMatchObject({ outcome: 1, blocks: 0 });
    await engine.client.sessionRelease(9n, out);
    expect(outcomeOf(out.outcome[0]!)).toBe("ok");
    await engine.client.sessionRelease(9n, out);
    expect(outcomeOf(out.outcome[0]!)).toBe("miss");
    for (let i = 0; i < 8; i++) await engine.put(`y${i}`);
    expect(await engine.match("a", "a/b")).toBe(0);
  });

  test("SESSION_LIST reports the namespace's sessions and their tiers page by page", () =>
    withEngine(async (engine, agent) => {
      const { client } = engine;
      await using stranger = await agent.connect("another tenant");
      await stranger.put("z");
      const out = createHandleBatch(1);
      await stranger.client.sessionCommit(7n, batchOf(["z"]), out);
      await engine.put("a", "a/b", "c");
      for (const [session, name] of [
        [7n, "a/b"],
        [2n ** 64n - 1n, "c"],
        [5n, "a"],
      ] as const) {
        await client.sessionCommit(session, batchOf([name]), out);
      }
      const item = (session: bigint, blocks: number) => ({
        session,
        idleMs: expect.any(Number),
        ramBlocks: blocks,
        ramBytes: blocks * 5_000,
        ssdBlocks: 0,
        ssdBytes: 0,
      });
      const all = { session: 0n, after: 0, max: 0 };
      expect(await client.sessionList(all)).toEqual({
        next: 0,
        sessions: [item(7n, 2), item(2n ** 64n - 1n, 1), item(5n, 1)],
      });
      const first = await client.sessionList({ ...all, max: 2 });
      expect(first.sessions.map(({ session }) => session)).toEqual([7n, 2n ** 64n - 1n]);
      const second = await client.sessionList({ ...all, after: first.next, max: 2 });
      expect(second).toEqual({ next: 0, sessions: [item(5n, 1)] });
      expect(await client.sessionList({ ...all, session: 7n })).toEqual({
        next: 0,
        sessions: [item(7n, 2)],
      });
      expect((await client.sessionList({ ...all, session: 8n })).sessions).toEqual([]);
      const theirs = await stranger.client.sessionList(all);
      expect(theirs.sessions).toEqual([item(7n, 1)]);
    }));

  test("a page of sessions fits a small frame", async () => {
    await using agent = await openAgent({ limits: { frameBytesMax: 4096, itemsMax: 16 } });
    await using engine = await agent.connect();
    await engine.put("a");
    const out = createHandleBatch(1);
    for (let session = 1n; session <= 100n; session++) {
      await engine.client.sessionCommit(session, batchOf(["a"]), out);
    }
    const found: bigint[] = [];
    for (let after = 0; ; ) {
      const page = await engine.client.sessionList({ session: 0n, after, max: 4_000_000_000 });
      expect(page.sessions.length).toBeLessThanOrEqual(84);
      found.push(...page.sessions.map(({ session }) => session));
      if (page.next === 0) break;
      after = page.next;
    }
    expect(found).toEqual(Array.from({ length: 100 }, (_, i) => BigInt(i + 1)));
  });

  test("overlapping requests each receive their own answer", () =>
    withEngine(async (engine) => {
      const names = Array.from({ length: 30 }, (_, i) => `n${i}`);
      const outcomes = await Promise.all(names.map((name) => engine.put(name)));
      expect(outcomes).toEqual(Array(30).fill(["ok"]));
      const reads = await Promise.all([...names, "nowhere"].map((name) => engine.get(name)));
      expect(reads).toEqual([...Array(30).fill(["ok"]), ["miss"]]);
    }));
});

describeNative("the client", () => {
  test("names the socket on which no agent answers", async () => {
    const socketPath = `${tempDir()}/none.sock`;
    const options = { socketPath, manifest: manifestBytes(), name: "t" };
    const thrown = await EngineClient.connect(loadNative(), options).catch((error) => error);
    expect(thrown).toBeInstanceOf(HearthError);
    expect([thrown.code, thrown.text]).toEqual([
      "ENGINE_CLOSED",
      expect.stringContaining(socketPath),
    ]);
  });

  test("reports the agent's reason for a refusal", async () => {
    await using agent = await openAgent();
    const { socketPath } = agent;
    const options = { socketPath, manifest: new Uint8Array(8), name: "t" };
    const thrown = await EngineClient.connect(loadNative(), options).catch((error) => error);
    expect(thrown.code).toBe("ENGINE_REFUSED");
    expect(thrown.text).toContain("manifest");
  });

  test("fails pending and later requests when the connection ends", async () => {
    const agent = await openAgent();
    const engine = await agent.connect();
    const waiting = [engine.get("a"), engine.client.ping(new Uint8Array(8))];
    const all = Promise.allSettled(waiting);
    await engine[Symbol.asyncDispose]();
    for (const { status } of await all) expect(status).toBe("rejected");
    expect(engine.client.ping(new Uint8Array(8))).rejects.toThrow("closed the connection");
    await agent[Symbol.asyncDispose]();
  });

  test("notices that the agent has gone", async () => {
    const agent = await openAgent();
    const engine = await agent.connect();
    await engine.put("a");
    await agent[Symbol.asyncDispose]();
    expect(["ENGINE_REFUSED", "ENGINE_CLOSED"]).toContain((await engine.client.closed).code);
    // Memory that it has mapped stays valid.
    expect(engine.client.arena.checksum(0, 4096)).toBeGreaterThan(0n);
    await engine[Symbol.asyncDispose]();
  });
});
