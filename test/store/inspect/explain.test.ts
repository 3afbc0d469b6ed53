import { expect } from "bun:test";
import { readFileSync, writeFileSync } from "node:fs";
import { LAYER_ALL, type NodeId, readBlockName } from "../../../src/core/index.ts";
import { loadNative } from "../../../src/native/index.ts";
import { createAddressBatch, createHandleBatch, purgeBlocks } from "../../../src/store/index.ts";
import { chain, digestOf } from "../names.ts";
import type { SsdKit } from "../ssd/ssd-kit.ts";
import { describeSsd } from "../ssd/use-kit.ts";
import type { StoreEngine } from "../store-engine.ts";
import { byDigest, byHash, inspect } from "./inspect-kit.ts";

const BLOCK_TOKENS = 4;
const keyOf = (namespace: number) => new Uint8Array(32).fill(namespace);
const promptOf = (count: number) =>
  Uint32Array.from({ length: count * BLOCK_TOKENS + 3 }, (_, at) => at * 7 + 1);

/** Commits blocks with these digests as a chain. */
async function putDigests(kit: SsdKit, engine: StoreEngine, digests: Uint8Array) {
  const count = digests.length / 32;
  const batch = createAddressBatch(count);
  batch.count = count;
  batch.layer = LAYER_ALL;
  batch.digests.set(digests);
  batch.parents.set(digests.subarray(0, (count - 1) * 32), 32);
  batch.bytes.fill(5_000, 0, count);
  kit.store.deriveKeys(batch, true);
  const handles = createHandleBatch(count);
  engine.holder.reserve(batch, handles);
  expect(handles.outcome.every((outcome) => outcome === 0)).toBe(true);
  await engine.holder.commit(handles);
  expect(handles.outcome.every((outcome) => outcome === 0)).toBe(true);
}

function digestsOf(namespace: number, count: number): Uint8Array {
  const digests = new Uint8Array(count * 32);
  loadNative().prefixDigests(keyOf(namespace), promptOf(count), BLOCK_TOKENS, digests);
  return digests;
}

const prompt = (namespace: number, count: number) => ({
  tokens: promptOf(count),
  namespace: keyOf(namespace),
  blockTokens: BLOCK_TOKENS,
  layer: LAYER_ALL,
});

const names = (...list: string[]) => ({ names: list.map(byDigest) });

describeSsd("an explanation", (it) => {
  it("of a prompt lists the hits by tier, and the tokens after the last block", {}, async ({
    kit,
  }) => {
    const { inspector } = inspect(kit.store);
    const engine = kit.engine(2);
    const digests = digestsOf(2, 4);
    await putDigests(kit, engine, digests.subarray(0, 3 * 32));
    await kit.settled();
    const answer = await inspector.explain(prompt(2, 4));
    expect(answer.leading).toBe(3);
    expect(answer.blocks.map(({ tier }) => tier)).toEqual(["ram", "ram", "ram", null]);
    expect(answer.blocks[3]!.name).toBe(digests.subarray(96).toHex());
    expect(answer.miss).toEqual({ index: 3, why: { kind: "never_stored" } });
    kit.leaveRam();
    const whole = await inspector.explain(prompt(2, 3));
    expect(whole).toMatchObject({ leading: 3, miss: null });
    expect(whole.blocks.map(({ tier }) => tier)).toEqual(["ssd", "ssd", "ssd"]);
    const none = { leading: 0, blocks: [], miss: null };
    expect(await inspector.explain({ ...prompt(2, 3), tokens: new Uint32Array(3) })).toEqual(none);
  });

  it("covers a prompt with more blocks than one batch", {}, async ({ kit }) => {
    const { inspector } = inspect(kit.store);
    const engine = kit.engine(1);
    await putDigests(kit, engine, digestsOf(1, 2));
    const answer = await inspector.explain(prompt(1, 1_000));
    expect(answer.leading).toBe(2);
    expect(answer.blocks).toHaveLength(1_000);
    expect(answer.blocks[999]!.name).toBe(digestsOf(1, 1_000).subarray(-32).toHex());
  });

  it("finds the same prompt in another namespace", {}, async ({ kit }) => {
    const { inspector } = inspect(kit.store);
    await putDigests(kit, kit.engine(3), digestsOf(3, 4));
    await putDigests(kit, kit.engine(1), digestsOf(1, 1));
    const elsewhere = { kind: "other_namespace", namespace: "03".repeat(32) } as const;
    expect((await inspector.explain(prompt(1, 4))).miss).toEqual({ index: 1, why: elsewhere });
    expect((await inspector.explain(prompt(1, 5))).miss).toEqual({ index: 1, why: elsewhere });
    // A namespace without blocks on this host.
    expect((await inspector.explain(prompt(77, 2))).miss).toMatchObject({
      index: 0,
      why: { kind: "other_namespace" },
    });
    expect((await inspector.explain(prompt(3, 5))).miss!.why).toEqual({ kind: "never_stored" });
  });

  it("accepts names of each kind, also one that resolves to several namespaces", {}, async ({
    kit,
  }) => {
    const { inspector } = inspect(kit.store);
    await kit.engine(1).put({ name: "a", alias: 11n }, { name: "a/b", alias: 12n });
    await kit.engine(2).put({ name: "x", alias: 11n }, { name: "x/y", alias: 13n });
    const explain = async (...hashes: number[]) => {
      const { leading, blocks, miss } = await inspector.explain({ names: hashes.map(byHash) });
      expect(blocks.map(({ name }) => name)).toEqual(hashes.map(String));
      return { leading, tiers: blocks.map(({ tier }) => tier), miss };
    };
    const never = (index: number) => ({ index, why: { kind: "never_stored" } as const });
    expect(await explain(11, 12)).toEqual({ leading: 2, tiers: ["ram", "ram"], miss: null });
    expect(await explain(11, 13)).toEqual({ leading: 2, tiers: ["ram", "ram"], miss: null });
    expect(await explain(11, 12, 13)).toEqual({
      leading: 2,
      tiers: ["ram", "ram", null],
      miss: { index: 2, why: { kind: "other_namespace", namespace: "02".repeat(32) } },
    });
    expect(await explain(99, 12)).toEqual({ leading: 0, tiers: [null, "ram"], miss: never(0) });
    expect(await inspector.explain(names(...chain("a/b")))).toMatchObject({
      leading: 2,
      miss: null,
      blocks: [{ name: digestOf("a").toHex() }, { tier: "ram" }],
    });
  });

  it("reports blocks being written, and blocks only on a GPU", {}, async ({ kit }) => {
    const { inspector } = inspect(kit.store);
    const engine = kit.engine();
    const handles = engine.reserve("a");
    const why = async (name: string) => (await inspector.explain(names(name))).miss?.why;
    expect(await why("a")).toEqual({ kind: "being_written" });
    engine.abort(handles);
    engine.gpuStored("g");
    expect(await why("g")).toEqual({ kind: "gpu_only" });
    expect((await inspector.explain(names("g"))).blocks[0]!.tier).toBeNull();
    await engine.put("g");
    expect(await inspector.explain(names("g"))).toMatchObject({ leading: 1, miss: null });
    expect((await inspector.explain(names("g"))).blocks[0]!.tier).toBe("gpu");
    expect(await why("g/child")).toEqual({ kind: "never_stored" });
  });

  it("reports evicted blocks, and purged ones with the issuer", {
    writePolicy: "write_back",
  }, async (t) => {
    const { kit } = t;
    const { inspector } = inspect(kit.store);
    const engine = kit.engine();
    await engine.put(...chain("a/b"), { name: "t", transient: true });
    const by = "router-1 command-7";
    const purged = [{ digest: digestOf("a/b"), layer: LAYER_ALL }];
    expect(await purgeBlocks(kit.store, purged, { reason: "purged", by })).toEqual(["done"]);
    const atSeconds = kit.store.nowSeconds();
    const departure = { reason: "purged", by, tier: "ram", atSeconds } as const;
    expect(await inspector.explain(names(...chain("a/b")))).toMatchObject({
      leading: 1,
      miss: { index: 1, why: { kind: "departed", departure } },
    });
    kit.clock.advance(3_000);
    kit.leaveRam();
    const { miss } = await inspector.explain(names("t"));
    const evicted = { reason: "evicted", by: null, tier: "ram", atSeconds: atSeconds + 3 };
    expect(miss).toMatchObject({ why: { kind: "departed", departure: evicted } });
  });

  it("finds a removed block by its engine hash or page key", {}, async ({ kit }) => {
    const { inspector } = inspect(kit.store);
    const [small, large] = [444n, 2n ** 63n + 5n];
    await kit.engine().put({ name: "a", alias: small }, { name: "b", alias: large });
    const nodes = new Int32Array(1);
    kit.store.table.nodesOfAlias(444, 0, nodes);
    const page = digestOf("page key");
    expect(kit.store.table.addSha256(nodes[0] as NodeId, page, 0)).toBe("added");
    await kit.settled();
    const both = ["a", "b"].map((name) => ({ digest: digestOf(name), layer: LAYER_ALL }));
    await purgeBlocks(kit.store, both, { reason: "pruned", by: "router-1" });
    const why = async (name: bigint | string) =>
      (await inspector.explain({ names: [readBlockName(name)!] })).miss?.why;
    const pruned = { kind: "departed", departure: { reason: "pruned", by: "router-1" } };
    for (const name of [small, large, page.toHex()]) expect(await why(name)).toMatchObject(pruned);
    for (const name of [small + 1n, small + (1n << 32n), `${page.toHex()}/3`]) {
      expect(await why(name)).toEqual({ kind: "never_stored" });
    }
  });

  it("finds a block that was removed although a descendant is stored", {}, async ({ kit }) => {
    const { inspector } = inspect(kit.store);
    const engine = kit.engine();
    await engine.put("a", "a/b");
    engine.gpuStored("a/b");
    const both = ["a/b", "a"].map((name) => ({ digest: digestOf(name), layer: LAYER_ALL }));
    await kit.settled();
    await purgeBlocks(kit.store, both, { reason: "pruned", by: "op" });
    const { miss } = await inspector.explain(names("a"));
    expect(miss).toMatchObject({ why: { kind: "departed", departure: { reason: "pruned" } } });
  });

  it("finds a removed block by an engine's chain key", {}, async ({ kit }) => {
    const { inspector } = inspect(kit.store);
    const pageKey = digestOf("page key");
    const hash = new Uint8Array(8);
    hash[0] = 42;
    const native = loadNative();
    for (const [namespace, items] of [
      [1, pageKey],
      [2, hash],
    ] as const) {
      const digest = new Uint8Array(32);
      native.chainDigests(keyOf(namespace), items, items.length, digest);
      await putDigests(kit, kit.engine(namespace), digest);
      await kit.settled();
      await purgeBlocks(kit.store, [{ digest, layer: LAYER_ALL }]);
    }
    for (const name of [byDigest("page key"), byHash(42)]) {
      const { miss } = await inspector.explain({ names: [name] });
      expect(miss).toMatchObject({ why: { kind: "departed", departure: { reason: "purged" } } });
    }
  });

  it("reports a quarantined block", {}, async ({ kit }) => {
    const { inspector } = inspect(kit.store);
    expect(await kit.engine().put("a")).toEqual(["ok"]);
    await kit.settled();
    kit.leaveRam();
    const bytes = readFileSync(kit.fileOf("a"));
    bytes[5_000]! ^= 1;
    writeFileSync(kit.fileOf("a"), bytes);
    expect(await kit.engine().load("a")).not.toEqual(["ok"]);
    await kit.settled();
    const { miss } = await inspector.explain(names("a"));
    expect(miss).toMatchObject({
      why: { kind: "departed", departure: { reason: "quarantined", tier: "ssd" } },
    });
  });

  it("reports a block on an SSD that does not respond", { slots: 16 }, async ({ kit, faults }) => {
    const { inspector } = inspect(kit.store);
    const list = Array.from({ length: 6 }, (_, i) => `x${i}`);
    const engine = kit.engine();
    expect(await engine.put(...list)).toEqual(list.map(() => "ok"));
    await kit.settled();
    kit.leaveRam();
    faults("load.read:1+:EIO");
    for (const name of list.slice(0, 5)) await engine.load(name);
    const { leading, miss } = await inspector.explain(names("x5"));
    expect(leading).toBe(0);
    expect(miss!.why).toEqual({ kind: "ssd_unavailable", why: "io_error" });
  });
});
