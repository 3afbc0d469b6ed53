import { describe, expect, test } from "bun:test";
import {
  LAYER_ALL,
  type NamespaceIndex,
  type NodeId,
  readBlockName,
  type WorkerId,
} from "../../src/core/index.ts";
import type { Fetcher, PeerFound, PullOptions, WantedBlock } from "../../src/peers/index.ts";
import { PeerSource } from "../../src/peers/index.ts";
import { type FetchOutcome, Namespaces } from "../../src/store/index.ts";

const KEY = new Uint8Array(32).fill(7);
const OTHER = new Uint8Array(32).fill(8);
const digestOf = (n: number) => new Uint8Array(32).fill(n);

function namespaceOf(n: number): Uint8Array {
  const namespace = new Uint8Array(32);
  new DataView(namespace.buffer).setUint32(0, n);
  return namespace;
}

type Found = PeerFound & { readonly worker: WorkerId };

function foundAt(worker: string, digest: Uint8Array, over: Partial<Found> = {}): Found {
  const copy = { tiers: 2, bytes: 10, generation: 1n, checksum: 2n };
  return { ...copy, namespace: KEY, digest, layer: LAYER_ALL, worker: worker as WorkerId, ...over };
}

interface Pulled {
  readonly namespace: NamespaceIndex;
  readonly digests: readonly number[];
  readonly options: PullOptions;
}

/** Other hosts, in a few lines: `found` by name, `outcome` by a digest's first byte. */
function open(options: {
  readonly found?: (name: Uint8Array) => Found[];
  readonly outcome?: (digest: number) => FetchOutcome["kind"];
}) {
  const namespaces = new Namespaces();
  const source = new PeerSource(namespaces);
  const pulled: Pulled[] = [];
  const names: string[] = [];
  let released = 0;
  const puller = {
    find: async (wanted: readonly Uint8Array[]) => {
      names.push(...wanted.map((name) => name.toHex()));
      return wanted.map((name) => options.found?.(name) ?? []);
    },
    pull: async (namespace: NamespaceIndex, blocks: WantedBlock[], given: PullOptions) => {
      pulled.push({ namespace, digests: blocks.map(({ digest }) => digest[0]!), options: given });
      return blocks.map(({ digest }): FetchOutcome => {
        const kind = options.outcome?.(digest[0]!) ?? "ok";
        if (kind !== "ok") return { kind };
        return { kind, arrival: { node: 1 as NodeId, release: () => void released++ } };
      });
    },
  };
  source.puller = puller as unknown as Fetcher;
  const pull = async (given: (bigint | string)[], sources: string[] = []) => {
    const results = await source.pull(
      given.map((name) => readBlockName(name)!),
      sources,
      null,
    );
    return results.map(({ outcome, reason }): string =>
      reason === undefined ? outcome : `${outcome} ${reason.split(":")[0]}`,
    );
  };
  return { namespaces, source, pulled, names, pull, released: () => released };
}

describe("a warm from other hosts", () => {
  test("a warm without peers misses all blocks", async () => {
    const { source, pull } = open({});
    source.puller = null;
    expect(await pull([5n, "aa".repeat(32)])).toEqual(["missing", "missing"]);
  });

  test("a warm looks names up at peers and pulls the blocks from their holders", async () => {
    const it = open({
      found: (name) =>
        name.length === 8 ? [foundAt("b", digestOf(1)), foundAt("c", digestOf(1))] : [],
    });
    it.namespaces.indexOf(KEY);
    expect(await it.pull([-1n, 258n], ["c", "not a worker"])).toEqual(["done", "done"]);
    expect(it.names).toEqual(["ff".repeat(8), "0201000000000000"]);
    expect(it.pulled).toHaveLength(1);
    expect(it.pulled[0]).toMatchObject({ namespace: 1, digests: [1] });
    const { priority, sources, always, stopAtMiss } = it.pulled[0]!.options;
    expect([priority, always, stopAtMiss]).toEqual(["warm", true, false]);
    expect(sources as readonly string[]).toEqual(["c", "b"]);
    expect(it.released()).toBe(1);
  });

  test("an unknown digest is tried in the namespaces in use", async () => {
    const it = open({ outcome: () => "miss" });
    const none = await it.pull([digestOf(3).toHex()]);
    expect([none, it.pulled]).toEqual([["missing"], []]);
    it.namespaces.indexOf(KEY);
    it.namespaces.indexOf(OTHER);
    expect(await it.pull([`${digestOf(3).toHex()}/5`])).toEqual(["missing"]);
    expect(it.pulled.map(({ namespace }) => namespace as number)).toEqual([1, 2]);
  });

  test("one block per name suffices; otherwise the reason is reported", async () => {
    const it = open({
      found: ([first]) =>
        first === 1
          ? [foundAt("b", digestOf(1)), foundAt("b", digestOf(2), { namespace: OTHER })]
          : [foundAt("b", digestOf(first!))],
      outcome: (digest) => (["miss", "miss", "ok", "full", "late"] as const)[digest]!,
    });
    expect(await it.pull([1n, 3n, 4n])).toEqual(["done", "rejected full", "deferred peers"]);
    expect(it.released()).toBe(1);
  });

  test("fetched blocks are released before more are requested", async () => {
    const many = Array.from({ length: 600 }, (_, i) => BigInt(i + 1));
    const it = open({
      found: (name) => {
        const digest = new Uint8Array(32);
        digest.set(name);
        return [foundAt("b", digest)];
      },
    });
    expect((await it.pull(many)).every((result) => result === "done")).toBe(true);
    expect(it.pulled.map(({ digests }) => digests.length)).toEqual([256, 256, 88]);
  });

  test("the number of namespaces learned from peers is limited", async () => {
    let next = 0;
    const it = open({
      found: () => [foundAt(`w${next % 11}`, digestOf(1), { namespace: namespaceOf(++next) })],
    });
    const results = await it.pull(Array.from({ length: 1_100 }, (_, i) => BigInt(i)));
    expect(it.namespaces.size).toBe(1_024);
    expect(results.filter((result) => result === "missing")).toHaveLength(76);
  });

  test("takes few namespaces from one peer, and leaves numbers for others", async () => {
    let next = 0;
    const it = open({
      found: () => {
        const liars = Array.from({ length: 64 }, () =>
          foundAt("liar", digestOf(1), { namespace: namespaceOf(++next) }),
        );
        return next > 6_000 ? [...liars, foundAt("b", digestOf(2))] : liars;
      },
    });
    expect(await it.pull([1n])).toEqual(["done"]);
    expect(it.pulled.map(({ options }) => options.sources as readonly string[])).toEqual(
      Array(4).fill(["liar"]),
    );
    await it.pull(Array.from({ length: 100 }, (_, i) => BigInt(i)));
    expect(it.namespaces.size).toBe(129);
    expect(it.pulled.at(-1)).toMatchObject({ digests: [2], options: { sources: ["b"] } });
    // A namespace that a local engine has named is not evicted.
    const given = it.namespaces.size;
    it.namespaces.indexOf(namespaceOf(next + 1));
    expect(await it.pull([1n])).toEqual(["done"]);
    expect(it.namespaces.size).toBe(given + 1);
  });
});
