import { expect, test } from "bun:test";
import { type BlockName, LAYER_ALL, type NodeId } from "../../../src/core/index.ts";
import { NameResolver } from "../../../src/store/index.ts";
import { describeNative } from "../../support/index.ts";
import { batchOf, digestOf } from "../names.ts";
import { openStoreKit, type StoreKit } from "../store-kit.ts";

const hash = (value: bigint): BlockName => ({
  kind: "hash",
  given: value,
  lo: Number(value & 0xffff_ffffn),
  hi: Number(value >> 32n),
});
const key = (bytes: Uint8Array, layer = LAYER_ALL): BlockName => ({
  kind: "key",
  given: bytes.toHex(),
  bytes,
  layer,
});

const nodeOf = ({ store }: StoreKit, name: string): NodeId => {
  const batch = batchOf([name]);
  store.deriveKeys(batch, false);
  return store.table.find(batch.keys, 0);
};

describeNative("names of blocks", () => {
  test("resolve to nodes by engine hash, page key and digest", async () => {
    await using kit = openStoreKit({ arenaBytes: 2 ** 20 });
    const engine = kit.engine();
    await engine.put({ name: "a", alias: 7n }, "a/b", { name: "c", alias: 2n ** 64n - 1n });
    await kit.engine(2).put({ name: "d", alias: 7n });
    const page = new Uint8Array(32).fill(9);
    kit.store.table.addSha256(nodeOf(kit, "c"), page, 0);
    const resolver = new NameResolver(kit.store);
    const { from, nodes, count } = resolver.resolve([
      hash(7n),
      hash(8n),
      key(digestOf("a/b")),
      hash(2n ** 64n - 1n),
      key(page),
      key(digestOf("a/b"), 3),
      key(page, 3),
    ]);
    const found = Array.from({ length: count }, (_, i) => [
      ...nodes.subarray(from[i]!, from[i + 1]!),
    ]);
    const [a, b, c, d] = ["a", "a/b", "c", "d"].map((name) => nodeOf(kit, name));
    expect(found).toEqual([[a!, d!], [], [b!], [c!], [c!], [], []]);
  });

  test("resolve to a block that is known only as a parent on request", async () => {
    await using kit = openStoreKit({ arenaBytes: 2 ** 20 });
    await kit.engine().put("a/b");
    const resolver = new NameResolver(kit.store);
    expect(resolver.resolveOne(key(digestOf("a")))).toEqual([]);
    expect(resolver.resolveOne(key(digestOf("a")), true)).toEqual([nodeOf(kit, "a")]);
  });

  test("resolve in lists of any length, with layers in any order", async () => {
    await using kit = openStoreKit({ arenaBytes: 2 ** 20 });
    await kit.engine().put("a", "b", "c");
    const resolver = new NameResolver(kit.store);
    const some = ["a", "x", "b", "c"].map((name) => key(digestOf(name)));
    const names = Array.from({ length: 1_500 }, (_, i) =>
      i % 7 === 0 ? key(digestOf("a"), 5) : some[i % 4]!,
    );
    const { from, nodes } = resolver.resolve(names);
    const expected = names.map((_name, i) =>
      i % 7 === 0 || i % 4 === 1 ? [] : [nodeOf(kit, ["a", "x", "b", "c"][i % 4]!)],
    );
    const found = names.map((_, i) => [...nodes.subarray(from[i]!, from[i + 1]!)]);
    expect(found).toEqual(expected as number[][]);
  });
});
