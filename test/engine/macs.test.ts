import { expect, test } from "bun:test";
import { LAYER_ALL, NO_NODE } from "../../src/core/index.ts";
import { EngineClient } from "../../src/engine/index.ts";
import { decodeManifest, encodeManifest, withMacKey } from "../../src/identity/index.ts";
import { loadNative } from "../../src/native/index.ts";
import { Tier } from "../../src/store/blocks/index.ts";
import { CommitFlag, createHandleBatch } from "../../src/store/index.ts";
import { KeyHolder } from "../store/mac-kit.ts";
import { type BlockName, batchOf, outcomeOf, seedOf } from "../store/names.ts";
import { describeNative } from "../support/index.ts";
import { type AgentKit, manifestBytes, openAgent } from "./agent-kit.ts";

const PLANTED = 1_000;
const names = Array.from({ length: PLANTED }, (_, i) => `planted${i}`);
const holder = new KeyHolder();

function keyedManifest(id = holder.id): Uint8Array {
  const decoded = decodeManifest(manifestBytes());
  if (!decoded.ok) throw new Error(decoded.why);
  return encodeManifest(withMacKey(decoded.manifest, id));
}

function connect({ socketPath }: AgentKit): Promise<EngineClient> {
  const options = { socketPath, manifest: keyedManifest(), name: "keyed", hasMacs: true };
  return EngineClient.connect(loadNative(), options);
}

/** Fewer blocks than an engine's share of the arena. */
const AT_ONCE = 250;

/** Stores blocks with the MACs from `macOf`; null: without MACs. */
async function put(
  client: EngineClient,
  blocks: readonly BlockName[],
  macOf: (block: { name: BlockName; offset: number; bytes: number }) => Uint8Array | null,
): Promise<string[]> {
  const outcomes: string[] = [];
  for (let at = 0; at < blocks.length; at += AT_ONCE) {
    outcomes.push(...(await putSome(client, blocks.slice(at, at + AT_ONCE), macOf)));
  }
  return outcomes;
}

async function putSome(
  client: EngineClient,
  blocks: readonly BlockName[],
  macOf: (block: { name: BlockName; offset: number; bytes: number }) => Uint8Array | null,
): Promise<string[]> {
  const batch = batchOf(blocks, LAYER_ALL);
  const handles = createHandleBatch(batch.capacity);
  await client.reserve(batch, 0n, handles);
  for (const [i, name] of blocks.entries()) {
    const place = { name, offset: handles.offset[i]!, bytes: batch.bytes[i]! };
    client.arena.fill(place.offset, place.bytes, seedOf(name));
    const mac = macOf(place);
    handles.flags[i] = mac === null ? 0 : CommitFlag.macGiven;
    if (mac !== null) handles.mac.set(mac, i * 16);
  }
  await client.commit(handles);
  return Array.from(handles.outcome.subarray(0, handles.count), outcomeOf);
}

/** Names of the blocks that a reader with the key accepts. */
async function accepted(client: EngineClient, blocks: readonly BlockName[]): Promise<string[]> {
  const good: string[] = [];
  for (let at = 0; at < blocks.length; at += AT_ONCE) {
    good.push(...(await acceptedOf(client, blocks.slice(at, at + AT_ONCE))));
  }
  return good;
}

async function acceptedOf(client: EngineClient, blocks: readonly BlockName[]): Promise<string[]> {
  const batch = batchOf(blocks, LAYER_ALL);
  const out = createHandleBatch(batch.capacity);
  await client.acquire(batch, { tiers: 0, deadlineMs: 0, stopAtMiss: false }, out);
  const good = blocks.filter((name, i) => {
    if (outcomeOf(out.outcome[i]!) !== "ok") return false;
    const place = { name, offset: out.offset[i]!, bytes: out.bytes[i]! };
    return holder.accepts(client.arena, place, out.mac.slice(i * 16, (i + 1) * 16));
  });
  client.release(out);
  return good;
}

const forged = () => crypto.getRandomValues(new Uint8Array(16));

describeNative("an engine without the key of a namespace", () => {
  test("plants none of 1,000 blocks at an agent that has the key", async () => {
    await using kit = await openAgent({ slots: 1_200, macKeys: holder.keys });
    await using rogue = await connect(kit);
    const outcomes = await put(rogue, names, forged);
    expect(outcomes.filter((outcome) => outcome === "corrupt")).toHaveLength(PLANTED);
    await using victim = await connect(kit);
    expect(await put(victim, names, (block) => holder.macOf(victim.arena, block))).toEqual(
      names.map(() => "ok"),
    );
    expect(await accepted(victim, names)).toEqual(names);
  });

  test("plants none of 1,000 blocks at an agent without it: readers reject them", async () => {
    await using kit = await openAgent({ slots: 1_200 });
    await using rogue = await connect(kit);
    const outcomes = await put(rogue, names, forged);
    expect(outcomes.filter((outcome) => outcome === "ok")).toHaveLength(PLANTED);
    await using victim = await connect(kit);
    expect(await accepted(victim, names)).toEqual([]);
  });

  /** A reader reports block "a". */
  async function reportA(client: EngineClient) {
    const out = createHandleBatch(1);
    const options = { tiers: 0, deadlineMs: 0, stopAtMiss: false };
    await client.acquire(batchOf(["a"], LAYER_ALL), options, out);
    await client.report(out);
  }

  test("deletes no block by a report if the agent has no key to check it", async () => {
    await using kit = await openAgent({ slots: 64 });
    await using victim = await connect(kit);
    expect(await put(victim, ["a"], (block) => holder.macOf(victim.arena, block))).toEqual(["ok"]);
    await using rogue = await connect(kit);
    await reportA(rogue);
    expect(kit.store.checks.stats).toMatchObject({ unknownReports: 1, plantedBlocks: 0 });
    expect(await accepted(victim, ["a"])).toEqual(["a"]);
  });

  test("loses blocks planted before the agent had a key, and pins on them report it", async () => {
    await using kit = await openAgent({ slots: 64, macKeys: holder.keys });
    await using rogue = await connect(kit);
    expect(await put(rogue, ["a"], (block) => holder.macOf(rogue.arena, block))).toEqual(["ok"]);
    const { store } = kit;
    const node = store.table.nextOn(NO_NODE, Tier.ram);
    store.table.setMac(node, new Uint8Array(16).fill(1));
    expect(store.table.pin(node)).toBe(true);
    const lost: string[] = [];
    store.setLossReport((_node, why) => void lost.push(why));
    await reportA(rogue);
    expect(store.checks.stats).toMatchObject({ unknownReports: 0, plantedBlocks: 1 });
    expect(lost).toEqual(["wrong MAC"]);
    expect(await accepted(rogue, ["a"])).toEqual([]);
    store.table.unpin(node);
    expect(await put(rogue, ["a"], (block) => holder.macOf(rogue.arena, block))).toEqual(["ok"]);
  });

  test("cannot commit without a MAC, nor connect without requesting MACs", async () => {
    await using kit = await openAgent();
    await using rogue = await connect(kit);
    expect(await put(rogue, ["a", "b"], () => null)).toEqual(["corrupt", "corrupt"]);
    const plain = { socketPath: kit.socketPath, manifest: keyedManifest(), name: "plain" };
    await expect(EngineClient.connect(loadNative(), plain)).rejects.toThrow("MAC key");
    const wrong = { ...plain, manifest: keyedManifest("ABC"), hasMacs: true };
    await expect(EngineClient.connect(loadNative(), wrong)).rejects.toThrow("MAC key");
  });
});

describeNative("a namespace with a key", () => {
  test("returns blocks stored with the key, whether or not the agent has it", async () => {
    for (const macKeys of [holder.keys, new Map()]) {
      await using kit = await openAgent({ macKeys });
      await using client = await connect(kit);
      const some = ["a", "a/b", "c"];
      const macOf = (block: Parameters<typeof holder.macOf>[1]) =>
        holder.macOf(client.arena, block);
      expect(await put(client, some, macOf)).toEqual(["ok", "ok", "ok"]);
      expect(await accepted(client, some)).toEqual(some);
    }
  });

  test("is another namespace than the one without it", async () => {
    await using kit = await openAgent();
    await using keyed = await connect(kit);
    await put(keyed, ["a"], (block) => holder.macOf(keyed.arena, block));
    await using plain = await kit.connect();
    expect(plain.client.hello.namespaceId).not.toEqual(keyed.hello.namespaceId);
  });
});
