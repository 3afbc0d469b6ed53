import { expect, test } from "bun:test";
import fc from "fast-check";
import { LAYER_ALL } from "../../../src/core/index.ts";
import { describeNative } from "../../support/index.ts";
import { chain, digestOf } from "../names.ts";
import { openStoreKit, PAGE, type StoreKit } from "../store-kit.ts";
import { byDigest, byHash, inspect, namesOf, walkTree } from "./inspect-kit.ts";

const ALL = { root: null, depthMax: 1_000, limit: 1_000, after: null };

const kitOf = (gpuWindowBlocks = 0): StoreKit =>
  openStoreKit({ arenaBytes: 64 * 2 * PAGE, blocksMax: 512, gpuWindowBlocks });

describeNative("the tree", () => {
  test("shows all attributes of a block", async () => {
    await using kit = kitOf(4);
    const { inspector } = inspect(kit.store);
    const engine = kit.engine(2);
    await engine.put("a", { name: "a/b", bytes: 4_321, alias: 2n ** 64n - 2n, transient: true });
    await engine.put("a/c");
    engine.gpuStored("a/b");
    kit.clock.advance(5_000);
    expect(engine.get("a", "a/b")).toEqual(["ok", "ok"]);
    kit.clock.advance(7_000);
    const { blocks, next, missing } = await inspector.tree(ALL);
    expect({ next, missing }).toEqual({ next: null, missing: false });
    expect(namesOf(blocks, ["a", "a/b", "a/c"])).toEqual(["a", "a/c", "a/b"]);
    expect(blocks[2]).toEqual({
      digest: digestOf("a/b").toHex(),
      layer: LAYER_ALL,
      namespace: "02".repeat(32),
      parent: digestOf("a").toHex(),
      depth: 1,
      bytes: 4_321,
      tiers: ["gpu", "ram"],
      pins: 0,
      locks: 0,
      heldBy: [],
      transient: true,
      uses: blocks[2]!.uses,
      idleSeconds: 7,
      children: 0,
      aliases: ["18446744073709551614"],
    });
    expect(blocks[2]!.uses).toBeGreaterThan(0);
    expect(blocks[0]).toMatchObject({ parent: null, depth: 0, children: 2, tiers: ["ram"] });
  });

  test("looks up owners of protected blocks only", async () => {
    await using kit = kitOf();
    const holders = [{ kind: "engine" }] as const;
    const { inspector, asked } = inspect(kit.store, holders);
    const engine = kit.engine();
    await engine.put(...chain("a/b/c"), "x");
    const read = engine.acquire(["a/b"]);
    const { blocks } = await inspector.tree(ALL);
    const held = new Map(namesOf(blocks, [...chain("a/b/c"), "x"]).map((name, i) => [name, i]));
    const of = (name: string) => blocks[held.get(name)!]!;
    expect([of("a").heldBy, of("a/b").heldBy]).toEqual([holders, holders]);
    expect([of("a/b/c").heldBy, of("x").heldBy]).toEqual([[], []]);
    expect([of("a/b").locks, of("a").locks]).toEqual([1, 0]);
    expect(asked).toHaveLength(2);
    engine.release(read);
  });

  test("starts at a block given by digest, hash or page key, in all namespaces", async () => {
    await using kit = kitOf();
    const { inspector } = inspect(kit.store);
    const names = ["a", "a/b", "a/b/c", "a/d", "x", "x/y"];
    await kit.engine().put(...names.slice(0, 4));
    await kit.engine(2).put("x", "x/y");
    kit.engine().alias("a/b", 77n);
    kit.engine(2).alias("x", 77n);
    const tree = async (root: ReturnType<typeof byHash>, depthMax = 100) =>
      namesOf(await walkTree(inspector, { root, depthMax }), names);
    expect(await tree(byDigest("a/b"))).toEqual(["a/b", "a/b/c"]);
    expect(await tree(byDigest("a"), 1)).toEqual(["a", "a/d", "a/b"]);
    expect(await tree(byDigest("a"), 0)).toEqual(["a"]);
    expect((await tree(byHash(77))).sort()).toEqual(["a/b", "a/b/c", "x", "x/y"]);
    expect((await tree(byHash(77), 0)).sort()).toEqual(["a/b", "x"]);
    // A block below another one is not listed twice.
    kit.engine().alias("a", 77n);
    expect((await tree(byHash(77))).sort()).toEqual([...names].sort());
    const unknown = { blocks: [], next: null, missing: true };
    expect(await inspector.tree({ ...ALL, root: byDigest("b") })).toEqual(unknown);
    expect(await inspector.tree({ ...ALL, root: byHash(78) })).toEqual(unknown);
  });

  test("shows a block that is known only as a parent without a digest", async () => {
    await using kit = kitOf();
    const { inspector } = inspect(kit.store);
    await kit.engine().put("a/b", "a/c");
    const blocks = await walkTree(inspector, {});
    expect(namesOf(blocks, ["a/b", "a/c"])).toEqual(["ghost", "a/c", "a/b"]);
    expect(blocks.map(({ tiers }) => tiers.length)).toEqual([0, 1, 1]);
    expect(blocks.map(({ parent }) => parent)).toEqual([null, null, null]);
    expect(await walkTree(inspector, { root: byDigest("a") })).toEqual(blocks);
  });

  test("is the same with pages of any size, and rejects cursors of another process", async () => {
    await using kit = kitOf();
    const { inspector } = inspect(kit.store);
    await kit.engine().put(...chain("a/b/c/d"), "a/b/x", "a/y", "e", "e/f", "g");
    const whole = await walkTree(inspector, {});
    expect(whole).toHaveLength(9);
    for (const limit of [1, 2, 3, 8, 9, 10]) {
      expect(await walkTree(inspector, { limit })).toEqual(whole);
    }
    const { next } = await inspector.tree({ ...ALL, limit: 2 });
    kit.clock.advance(1);
    const other = inspect(kit.store).inspector;
    const places = [next, "", "x", "AAAA", `${next}AAAA`, "A".repeat(10_000)];
    for (const after of places) {
      expect(await other.tree({ ...ALL, after })).toEqual({
        blocks: [],
        next: null,
        missing: true,
      });
    }
    // A cursor from below another root continues with the first root after it.
    const after = (await inspector.tree({ ...ALL, root: byDigest("a"), limit: 3 })).next;
    const elsewhere = await inspector.tree({ ...ALL, root: byDigest("e"), after });
    expect(namesOf(elsewhere.blocks, ["e", "e/f"])).toEqual(["e", "e/f"]);
  });
});

const part = fc.constantFrom("a", "b", "c");
const path = fc.array(part, { minLength: 1, maxLength: 4 }).map((parts) => parts.join("/"));
const turn = fc.record({
  limit: fc.integer({ min: 1, max: 5 }),
  puts: fc.array(path, { maxLength: 3 }),
  drops: fc.array(fc.nat(100), { maxLength: 4 }),
});

describeNative("tree pages while blocks are stored and removed", () => {
  test("show every remaining block once, and none twice", async () => {
    const property = fc.asyncProperty(
      fc.array(path, { maxLength: 40 }),
      fc.array(turn, { minLength: 1, maxLength: 20 }),
      fc.boolean(),
      async (first, turns, isBelow) => {
        await using kit = kitOf(256);
        const { inspector } = inspect(kit.store);
        const engine = kit.engine();
        const resident = new Set<string>();
        const put = (name: string) => {
          // With all its ancestors: a block that gets a parent later may appear again.
          for (const one of chain(name)) {
            if (resident.has(one)) continue;
            engine.gpuStored(one);
            resident.add(one);
          }
        };
        put("a");
        for (const name of first) put(name);
        const stayed = new Set(resident);
        const seen: string[] = [];
        const all = new Set(resident);
        const root = isBelow ? byDigest("a") : null;
        let after: string | null = null;
        for (let i = 0; ; i++) {
          const { limit, puts, drops } = turns[i % turns.length]!;
          const query = { ...ALL, root, limit: limit + (i > 60 ? 1_000 : 0), after };
          const page = await inspector.tree(query);
          if (page.missing) break;
          seen.push(...namesOf(page.blocks, [...all]));
          after = page.next;
          if (after === null) break;
          for (const pick of drops) {
            const leaves = [...resident].filter(
              (name) => ![...resident].some((other) => other.startsWith(`${name}/`)),
            );
            const name = leaves[pick % leaves.length];
            if (name === undefined || name === "a") continue;
            engine.gpuEvicted(name);
            resident.delete(name);
            stayed.delete(name);
          }
          for (const name of puts) put(name);
          for (const name of resident) all.add(name);
        }
        const below = [...stayed].filter((name) => root === null || /^a(\/|$)/.test(name));
        for (const name of below) expect(seen).toContain(name);
        expect(seen).not.toContain("?");
        // A block that was removed and stored again is another block.
        const steady = seen.filter((name) => stayed.has(name));
        expect(steady).toHaveLength(new Set(steady).size);
        for (const [at, name] of steady.entries()) {
          const parent = chain(name).at(-2);
          if (parent !== undefined && stayed.has(parent) && (root === null || name !== "a")) {
            expect(steady.indexOf(parent)).toBeLessThan(at);
          }
        }
      },
    );
    await fc.assert(property, { numRuns: 150 });
  });

  test("continue above a subtree that was removed", async () => {
    await using kit = kitOf(256);
    const { inspector } = inspect(kit.store);
    const engine = kit.engine();
    const deep = chain(`a/${Array.from({ length: 30 }, (_, i) => `n${i}`).join("/")}`);
    engine.gpuStored("a", "a/last", "a/last/x");
    engine.gpuStored(...deep.slice(1));
    const names = [...deep, "a/last", "a/last/x"];
    const gone = deep.slice(3).reverse();
    const seen = await walkTree(inspector, { root: byDigest("a"), limit: 6 }, (page) => {
      if (page === 0) for (const name of gone) engine.gpuEvicted(name);
    });
    expect(namesOf(seen, names)).toEqual([...deep.slice(0, 6), "a/last", "a/last/x"]);
  });

  test("end if the root was removed, and report it as missing", async () => {
    await using kit = kitOf(256);
    const { inspector } = inspect(kit.store);
    const engine = kit.engine();
    engine.gpuStored(...chain("a/b/c"), "x");
    const query = { ...ALL, limit: 2 };
    const below = (await inspector.tree({ ...query, root: byDigest("a") })).next;
    const { next } = await inspector.tree(query);
    for (const name of chain("a/b/c").reverse()) engine.gpuEvicted(name);
    const ended = await inspector.tree({ ...query, root: byDigest("a"), after: below });
    expect(ended).toEqual({ blocks: [], next: null, missing: true });
    const rest = await inspector.tree({ ...query, after: next });
    expect(namesOf(rest.blocks, ["x"])).toEqual(["x"]);
  });
});
