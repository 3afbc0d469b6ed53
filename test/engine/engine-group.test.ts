import { expect, test } from "bun:test";
import { HearthError, LAYER_ALL } from "../../src/core/index.ts";
import {
  encodeIdentifyRequest,
  encodeJoinRequest,
  encodeLookupRequest,
  encodeReserveRequest,
  FrameStatus,
  IdentifyKind,
  type LookupReply,
  LookupReplyFlag,
  type Output,
} from "../../src/engine/protocol/index.ts";
import { digestsOfPrompt } from "../../src/identity/index.ts";
import { loadNative } from "../../src/native/index.ts";
import { createHandleBatch } from "../../src/store/index.ts";
import { batchOf } from "../store/names.ts";
import { describeNative, waitFor } from "../support/index.ts";
import { type AgentKit, BLOCK_TOKENS, openAgent } from "./agent-kit.ts";
import { keyOf, keysOf, lookupOf, Member } from "./engine-member.ts";

const PROMPT = ["k0", "k1", "k2", "k3"];

const statsOf = (agent: AgentKit) => agent.store.engines.book.stats;

/** Three times the capacity of RAM, from an engine of another namespace. */
async function flood(agent: AgentKit): Promise<void> {
  await using other = await Member.connect(agent.socketPath, { tenantSalt: "flood" });
  for (let i = 0; i < 3 * 64; i++) await other.put(`flood${i}`);
}

/** Two connections of one engine. */
async function pair(agent: AgentKit) {
  const scheduler = await Member.connect(agent.socketPath);
  const worker = await Member.connect(agent.socketPath);
  expect(await scheduler.join("engine", 1)).toBe(1);
  expect(await worker.join("engine", 2)).toBe(2);
  return { scheduler, worker };
}

const hold = (keys: readonly string[] = PROMPT, rest = {}) => lookupOf(keys, ["hold"], rest);

describeNative("connections of one engine", () => {
  test("the scheduler looks up and a worker acquires after a flood", async () => {
    await using agent = await openAgent();
    const { scheduler, worker } = await pair(agent);
    await worker.put(...PROMPT);
    const answer = await scheduler.lookup(hold([...PROMPT, "k4"]));
    expect(answer).toMatchObject({ leading: 4, ready: 4, flags: 0, announced: 0 });
    expect([...answer.best]).toEqual([2, 2, 2, 2, 0]);
    await flood(agent);
    expect(await worker.get(...PROMPT)).toEqual(["ok", "ok", "ok", "ok"]);
    expect(statsOf(agent).bytes).toBe(0);
    await flood(agent);
    expect(await worker.get(...PROMPT)).toEqual(["miss", "miss", "miss", "miss"]);
    await agent.untilNothingHeld();
  });

  test("a reservation ends with its time", async () => {
    await using agent = await openAgent();
    const { scheduler, worker } = await pair(agent);
    await worker.put(...PROMPT);
    const { hold: id } = await scheduler.lookup(hold(PROMPT, { holdMs: 20 }));
    await waitFor(() => statsOf(agent).bytes === 0);
    expect(await scheduler.unhold(id)).toEqual(["stale"]);
  });

  test("a reservation is over the budget of its engine", async () => {
    await using agent = await openAgent();
    agent.store.engines.book.limits = { bytesMax: 2 * 8192, bytesMaxAll: 2 * 8192 };
    const { scheduler, worker } = await pair(agent);
    await worker.put(...PROMPT);
    expect(await scheduler.lookup(hold())).toMatchObject({
      ...{ leading: 4, ready: 2, flags: LookupReplyFlag.budget },
    });
  });

  test("an engine dies while blocks are reserved for it", async () => {
    await using agent = await openAgent();
    const { scheduler, worker } = await pair(agent);
    await worker.put(...PROMPT);
    await scheduler.lookup(hold());
    await scheduler[Symbol.asyncDispose]();
    expect(statsOf(agent).bytes).toBe(4 * 8192);
    await worker[Symbol.asyncDispose]();
    await waitFor(() => statsOf(agent).bytes === 0);
    expect(agent.store.engines.size).toBe(0);
  });

  test("any connection of the engine may end its reservation, another engine may not", async () => {
    await using agent = await openAgent();
    const { scheduler, worker } = await pair(agent);
    await using stranger = await Member.connect(agent.socketPath);
    await stranger.join("another");
    await worker.put(...PROMPT);
    const { hold: id } = await scheduler.lookup(hold());
    expect(await stranger.unhold(id)).toEqual(["stale"]);
    expect(await worker.unhold(id, id)).toEqual(["ok", "stale"]);
    expect(statsOf(agent).bytes).toBe(0);
  });

  test("one LOOKUP answers for both ranks", async () => {
    await using agent = await openAgent();
    const ranks = await Promise.all(
      [0, 1].map((tpRank) => Member.connect(agent.socketPath, { tpSize: 2, tpRank })),
    );
    for (const rank of ranks) await rank.join();
    await ranks[0]!.put("k0", "k1", "k2");
    await ranks[1]!.put("k0", "k1");
    const both = lookupOf(PROMPT, ["family", "hold"]);
    expect(await ranks[1]!.lookup(both)).toMatchObject({ leading: 2, ready: 2 });
    expect(await ranks[0]!.lookup(lookupOf(PROMPT))).toMatchObject({ leading: 3, ready: 3 });
    expect(statsOf(agent).bytes).toBe(4 * 8192);
    for (const rank of ranks) expect(await rank.get("k0", "k1")).toEqual(["ok", "ok"]);
    expect(statsOf(agent).bytes).toBe(0);
    await using many = await Member.connect(agent.socketPath, { tpSize: 300 });
    await expect(many.lookup(lookupOf(PROMPT, ["family"]))).rejects.toThrow("300 ranks");
    for (const rank of ranks) await rank[Symbol.asyncDispose]();
  });

  test("a lookup waits for a block that is being written", async () => {
    await using agent = await openAgent();
    const { scheduler, worker } = await pair(agent);
    await worker.put("k0");
    const handles = await worker.reserve("k0", "k1");
    const partial: LookupReply[] = [];
    let isOver = false;
    const asked = scheduler
      .lookup(lookupOf(["k0", "k1"], ["hold", "wait", "progress"]), (reply) => partial.push(reply))
      .finally(() => {
        isOver = true;
      });
    await waitFor(() => partial.length >= 2);
    expect(isOver).toBe(false);
    expect(partial[0]).toMatchObject({ leading: 1, ready: 1, announced: 1 });
    expect(await worker.commit(handles)).toEqual(["present", "ok"]);
    expect(await asked).toMatchObject({ leading: 2, ready: 2, announced: 0 });
  });

  test("a lookup waits for a block that another engine announced", async () => {
    await using agent = await openAgent();
    const { scheduler } = await pair(agent);
    await using producer = await Member.connect(agent.socketPath);
    await producer.join("producer");
    await producer.put("k0");
    expect(await producer.announce(["k0", "k1", "k2"], 60_000)).toEqual(["present", "ok", "ok"]);
    const asked = scheduler.lookup(lookupOf(["k0", "k1", "k2", "k3"], ["hold", "wait"]));
    expect(await scheduler.lookup(lookupOf(["k0", "k1", "k2", "k3"]))).toMatchObject({
      ...{ leading: 1, announced: 2 },
    });
    await producer.put("k0", "k1");
    expect(await producer.announce(["k2"], 0, 2)).toEqual(["ok"]);
    expect(await asked).toMatchObject({ leading: 2, ready: 2, announced: 0 });
  });

  test("a lookup is answered at its deadline", async () => {
    await using agent = await openAgent();
    const { scheduler, worker } = await pair(agent);
    const handles = await worker.reserve("k0");
    const asked = lookupOf(["k0"], ["wait"], { deadlineMs: 30 });
    expect(await scheduler.lookup(asked)).toMatchObject({ leading: 0, ready: 0, announced: 1 });
    await worker.commit(handles);
  });

  test("an engine dies while its lookup waits", async () => {
    await using agent = await openAgent();
    const { scheduler, worker } = await pair(agent);
    await worker.put("k0");
    await worker.reserve("k0", "k1");
    const asked = scheduler.lookup(lookupOf(["k0", "k1"], ["hold", "wait"]));
    asked.catch(() => undefined);
    await waitFor(() => agent.store.engines.lookups.size === 1);
    await scheduler[Symbol.asyncDispose]();
    await waitFor(() => agent.store.engines.lookups.size === 0);
    expect(statsOf(agent).bytes).toBe(0);
    await expect(asked).rejects.toThrow("closed");
  });
});

describeNative("lookups by tokens", () => {
  const tokens = (count: number, first = 1) =>
    Uint32Array.from({ length: count }, (_, i) => first + i);
  const byTokens = (words: Uint32Array, rest = {}) => ({
    ...lookupOf([], ["digests"]),
    ...{ kind: IdentifyKind.tokens, count: words.length },
    items: new Uint8Array(words.buffer, words.byteOffset, words.byteLength),
    ...rest,
  });

  test("have the digests of an IDENTIFY, also after a parent", async () => {
    await using agent = await openAgent();
    await using member = await Member.connect(agent.socketPath);
    const all = tokens(5 * BLOCK_TOKENS + 1);
    const { namespaceId } = member.client.hello;
    const expected = digestsOfPrompt(loadNative(), namespaceId, all, BLOCK_TOKENS).toHex();
    const first = await member.lookup(byTokens(all.subarray(0, 2 * BLOCK_TOKENS + 1)));
    expect(first.digests!.toHex()).toBe(expected.slice(0, 2 * 64));
    for (const blocks of [1, 2]) {
      const parent = first.digests!.slice(32 * (blocks - 1), 32 * blocks);
      const rest = all.slice(blocks * BLOCK_TOKENS);
      const next = await member.lookup(byTokens(rest, { parent }));
      expect(next.digests!.toHex()).toBe(expected.slice(64 * blocks));
    }
    const unknown = byTokens(all, { parent: new Uint8Array(32).fill(9) });
    expect(await member.lookup(unknown)).toMatchObject({
      ...{ flags: LookupReplyFlag.unknownParent, leading: 0 },
    });
  });

  test("do not continue a prompt of another namespace", async () => {
    await using agent = await openAgent();
    await using member = await Member.connect(agent.socketPath);
    await using stranger = await Member.connect(agent.socketPath, { tenantSalt: "mallory" });
    const all = tokens(2 * BLOCK_TOKENS);
    const { digests } = await member.lookup(byTokens(all));
    const next = byTokens(tokens(BLOCK_TOKENS), { parent: digests!.slice(32) });
    expect(await member.lookup(next)).toMatchObject({ flags: 0 });
    expect(await stranger.lookup(next)).toMatchObject({ flags: LookupReplyFlag.unknownParent });
  });

  test("with too many multimodal items are refused", async () => {
    await using agent = await openAgent();
    await using member = await Member.connect(agent.socketPath);
    const media = Array.from({ length: 513 }, (_, position) => ({ position, name: keyOf("cat") }));
    const asked = byTokens(tokens(2 * BLOCK_TOKENS), { media });
    await expect(member.lookup(asked)).rejects.toThrow("at most 512 multimodal items");
  });

  test("distinguish prompts by their multimodal items", async () => {
    await using agent = await openAgent();
    await using member = await Member.connect(agent.socketPath);
    const all = tokens(4 * BLOCK_TOKENS);
    const item = (position: number, name: string) => ({ position, name: keyOf(name) });
    const digests = async (media: ReturnType<typeof item>[]) => {
      const hex = (await member.lookup(byTokens(all, { media }))).digests!.toHex();
      return [0, 1, 2, 3].map((i) => hex.slice(64 * i, 64 * (i + 1)));
    };
    const plain = await digests([]);
    const cat = await digests([item(BLOCK_TOKENS, "cat")]);
    const dog = await digests([item(BLOCK_TOKENS, "dog")]);
    const later = await digests([item(BLOCK_TOKENS, "cat"), item(3 * BLOCK_TOKENS, "dog")]);
    expect(cat[0]).toBe(plain[0]!);
    for (const i of [1, 2, 3]) {
      expect(new Set([plain[i], cat[i], dog[i]]).size).toBe(3);
    }
    expect(later.slice(0, 3)).toEqual(cat.slice(0, 3));
    expect(later[3]).not.toBe(cat[3]!);
    // A request that continues a prompt has the items of its parent.
    const parent = Uint8Array.fromHex(cat[1]!);
    const rest = byTokens(all.slice(2 * BLOCK_TOKENS), { parent });
    expect((await member.lookup(rest)).digests!.toHex()).toBe(cat.slice(2).join(""));
  });
});

describeNative("namespaces of requests", () => {
  test("equal the namespaces of connections with the same manifest", async () => {
    await using agent = await openAgent();
    await using member = await Member.connect(agent.socketPath);
    await using salted = await Member.connect(agent.socketPath, { tenantSalt: "alice" });
    const loraDigest = new Uint8Array(32).fill(7);
    await using adapted = await Member.connect(agent.socketPath, { loraDigest });
    const open = (lora: Uint8Array | null, salt: string | null) =>
      member.client.engine.openNamespace({ loraDigest: lora, salt });
    const alice = await open(null, "alice");
    expect(alice).toEqual({ namespace: 1, namespaceId: salted.client.hello.namespaceId });
    expect(await open(null, "alice")).toEqual(alice);
    const lora = await open(loraDigest, null);
    expect(lora).toEqual({ namespace: 2, namespaceId: adapted.client.hello.namespaceId });
    expect((await open(null, null)).namespace).toBe(0);
    await salted.put("k0", "k1");
    const ask = (namespace: number) => member.lookup(lookupOf(["k0", "k1"], [], { namespace }));
    expect([(await ask(0)).leading, (await ask(1)).leading, (await ask(2)).leading]).toEqual([
      0, 2, 0,
    ]);
  });

  test("are not listed with the namespaces of connections", async () => {
    await using agent = await openAgent();
    await using member = await Member.connect(agent.socketPath);
    const listed = () => agent.store.namespaces.described().map(({ key }) => key.toHex());
    const before = listed();
    expect(before).toContain(member.client.hello.namespaceId.toHex());
    const open = (salt: string) => member.client.engine.openNamespace({ loraDigest: null, salt });
    const { namespaceId } = await open("alice");
    expect(listed()).toEqual(before);
    await using _salted = await Member.connect(agent.socketPath, { tenantSalt: "alice" });
    expect(listed()).toEqual([...before, namespaceId.toHex()]);
    await open("bob");
    await open("alice");
    expect(listed()).toHaveLength(before.length + 1);
  });

  test("are usable in RESERVE and ACQUIRE", async () => {
    await using agent = await openAgent();
    await using member = await Member.connect(agent.socketPath, { tenantSalt: "test" });
    const alice = await member.client.engine.openNamespace({ loraDigest: null, salt: "alice" });
    const { namespace } = alice;
    const batch = batchOf(["a"], LAYER_ALL);
    const handles = createHandleBatch(1);
    await member.client.reserve(batch, 0n, handles, namespace);
    expect(handles.outcome[0]).toBe(0);
    await member.client.commit(handles);
    const options = { tiers: 0, deadlineMs: 0, stopAtMiss: false };
    await member.client.acquire(batch, options, handles);
    expect(handles.outcome[0]).toBe(1);
    await member.client.acquire(batch, { ...options, namespace }, handles);
    expect(handles.outcome[0]).toBe(0);
    member.client.release(handles);
    await agent.untilNothingHeld();
  });

  test("a namespace that was not given on this connection", async () => {
    await using agent = await openAgent();
    await using member = await Member.connect(agent.socketPath);
    await expect(member.lookup(lookupOf(["k0"], [], { namespace: 3 }))).rejects.toThrow(
      "unknown namespace handle 3",
    );
  });
});

describeNative("a refused engine request", () => {
  async function refused(ask: (member: Member) => Promise<unknown>, words: string): Promise<void> {
    await using agent = await openAgent();
    await using member = await Member.connect(agent.socketPath);
    const error: unknown = await ask(member).catch((thrown) => thrown);
    expect(error).toBeInstanceOf(HearthError);
    expect((error as HearthError).message).toContain(words);
    expect(agent.server.stats.faults).toBe(0);
  }

  test("a reservation or an announcement without JOIN", async () => {
    await refused((member) => member.lookup(hold()), "send JOIN first");
    await refused((member) => member.announce(["k0"], 100), "send JOIN first");
  });

  test("a second JOIN on one connection", () =>
    refused(async (member) => {
      await member.join("a");
      await member.join("b");
    }, "already belongs to an engine"));

  test("more blocks in a LOOKUP than `items_max`", () =>
    refused(
      (member) => member.lookup(lookupOf(Array.from({ length: 4_097 }, (_, i) => `k${i}`))),
      "at most 4096 blocks",
    ));

  test("more blocks in a LOOKUP or an ANNOUNCE of a family than one turn names", async () => {
    await using agent = await openAgent();
    await using member = await Member.connect(agent.socketPath, { tpSize: 256 });
    await member.join();
    const keys = Array.from({ length: 257 }, (_, i) => `k${i}`);
    const words = "257 blocks of 256 ranks";
    await expect(member.lookup(lookupOf(keys, ["family"]))).rejects.toThrow(words);
    await expect(member.announce(keys, 100, 1)).rejects.toThrow(words);
    expect(await member.announce(keys.slice(0, 2), 100, 1)).toEqual(["ok", "ok"]);
    expect(agent.server.stats.faults).toBe(0);
  });

  test("a command to an agent that accepts none", () =>
    refused((member) => member.client.engine.command(new Uint8Array(2)), "accepts no commands"));
});

describeNative("a client without feature bit 2", () => {
  const items = keysOf("k0");
  const join = { engine: keyOf("e"), role: 0 } as const;
  const short = { kind: IdentifyKind.shortKeys, layer: 0, count: 1, items };
  const { malformed, unknownOp } = FrameStatus;

  test.each([
    ["JOIN", unknownOp, (output: Output) => encodeJoinRequest(output, 9, join)],
    ["LOOKUP", unknownOp, (output: Output) => encodeLookupRequest(output, 9, lookupOf(["k0"]))],
    [
      "chain keys of 16 bytes",
      malformed,
      (output: Output) => encodeIdentifyRequest(output, 9, short),
    ],
    [
      "a namespace in RESERVE",
      malformed,
      (output: Output) =>
        encodeReserveRequest(output, 9, { session: 0n, namespace: 1 }, batchOf(["a"])),
    ],
  ])("is refused %s", async (_what, status, encode) => {
    await using agent = await openAgent();
    using raw = await agent.rawGreeted();
    expect(await raw.ask(encode)).toMatchObject({ status });
    expect(agent.server.stats.faults).toBe(0);
  });
});
