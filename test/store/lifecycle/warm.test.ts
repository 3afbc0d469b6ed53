import { expect, test } from "bun:test";
import { type BlockResult, LAYER_ALL, type NamespaceIndex } from "../../../src/core/index.ts";
import { Tier } from "../../../src/store/blocks/index.ts";
import type { BlockSourcePort } from "../../../src/store/index.ts";
import { describeNative, waitFor } from "../../support/index.ts";
import { PeerHost } from "../exchange/peer-kit.ts";
import { chain, digestOf } from "../names.ts";
import type { SsdKit } from "../ssd/ssd-kit.ts";
import { openStoreKit } from "../store-kit.ts";
import { hashed, Life, named, outcomes, useLife } from "./lifecycle-kit.ts";

const many = (count: number, prefix = "x") => Array.from({ length: count }, (_, i) => prefix + i);

/** Stores blocks on SSD only. */
async function onSsd(kit: SsdKit, ...names: string[]): Promise<void> {
  await kit.engine().put(...names);
  await kit.settled();
  kit.leaveRam();
}

describeNative("Warm flow", () => {
  const it = useLife();

  it("blocks are read from SSD into RAM, byte for byte", {}, async ({ kit, life, where }) => {
    await onSsd(kit, ...chain("a/b/c"));
    await kit.engine().put("r");
    const report = await life.warm(...chain("a/b/c"), "r", "none");
    expect(outcomes(report.results)).toEqual(["done", "done", "done", "already", "missing"]);
    expect(report.bytes).toBe(15_000);
    expect(where(...chain("a/b/c"))).toEqual(Array(3).fill("ram+ssd"));
    expect(kit.engine().get(...chain("a/b/c"))).toEqual(["ok", "ok", "ok"]);
  });

  it("concurrent reads and bytes of all commands together stay within the limits", {
    slots: 32,
    depth: 16,
    life: { warmReads: 3, warmBytesMax: 11_000 },
  }, async ({ kit, life, faults }) => {
    const names = many(12);
    await onSsd(kit, ...names);
    let most = 0;
    faults("load.read:1+:delay=20");
    const warmed = Promise.all([
      life.warm(...names.slice(0, 6)),
      life.warm(...names.slice(6)),
      life.warm(...names.slice(3, 9)),
    ]);
    let isOver = false;
    const watch = () => {
      most = Math.max(most, kit.ssd.reader.reading);
      if (!isOver) setImmediate(watch);
    };
    watch();
    const reports = await warmed;
    isOver = true;
    expect(
      reports.every(({ results }) => results.every(({ outcome }) => outcome !== "missing")),
    ).toBe(true);
    expect(most).toBe(2);
    expect(kit.engine().get(...names)).toEqual(names.map(() => "ok"));
  });

  it("a request's reads go first, and include warm blocks that it also wants", {
    slots: 32,
    depth: 4,
    life: { warmReads: 8 },
  }, async ({ kit, life, faults }) => {
    const names = many(8);
    await onSsd(kit, ...names, "wanted");
    faults("load.read:1:freeze");
    let isWarm = false;
    const warmed = life.warm(...names).finally(() => {
      isWarm = true;
    });
    // Warm reads have one I/O slot, in which the disk hangs.
    await waitFor(() => kit.ssd.reader.reading === 8);
    const engine = kit.engine();
    expect(await engine.load("wanted", "x7")).toEqual(["ok", "ok"]);
    expect(isWarm).toBe(false);
    expect(kit.ssd.reader.reading).toBe(7);
    faults("");
    expect(outcomes((await warmed).results)).toEqual(names.map(() => "done"));
  });

  it("a warm stops if RAM has no room without evicting blocks in use", {
    slots: 8,
  }, async ({ kit, life, where }) => {
    await onSsd(kit, ...many(8, "s"));
    const engine = kit.engine();
    await engine.put(...many(6, "r"));
    await kit.settled();
    const report = await life.warm(...many(8, "s"));
    const { done, rejected } = report.counts;
    expect(outcomes(report.results).slice(0, done)).toEqual(Array(done).fill("done"));
    expect(outcomes(report.results).slice(done)).toEqual(Array(rejected).fill("rejected full"));
    expect(done).toBe(3);
    const left = many(6, "r").filter((name) => where(name)[0] !== "ssd");
    expect(left.length).toBe(5);
  });

  it("a damaged block is not loaded", {}, async ({ kit, life, faults, where }) => {
    await onSsd(kit, "a", "b");
    faults("load.read:1+:flip");
    const report = await life.warm("a");
    expect(outcomes(report.results)[0]).not.toBe("done");
    expect(where("a")).not.toEqual(["ram"]);
    faults("");
  });

  it("a warm does not wait for a hung disk", {}, async ({ kit, life, faults }) => {
    await onSsd(kit, "a", "b");
    faults("load.read:1+:freeze");
    const warmed = life.warm("a", "b");
    const report = await kit.clock.advanceUntil(warmed, 250);
    expect(outcomes(report.results)).toEqual(["deferred ssd", "deferred ssd"]);
    expect(outcomes((await life.warm("b")).results)).toEqual(["deferred ssd"]);
    faults("");
    await kit.settled();
    await kit.until(() => kit.ssd.readable);
  });

  it("a warm is aborted at shutdown, and when its caller has gone", {
    life: { warmReads: 1 },
  }, async ({ kit, life, faults }) => {
    await onSsd(kit, "a", "b", "c");
    faults("load.read:1:delay=50");
    const gone = new AbortController();
    const options = { target: "ram", sources: [], signal: gone.signal } as const;
    const warmed = life.own.warm(["a", "b", "c"].map(named), options);
    gone.abort();
    const report = await warmed;
    expect(outcomes(report.results)).toEqual(["done", "deferred aborted", "deferred aborted"]);
  });

  it("progress is reported at most ten times a second", { slots: 64 }, async ({ kit, life }) => {
    const names = many(40);
    await onSsd(kit, ...names);
    const told: number[] = [];
    const ticking = setInterval(() => kit.clock.advance(10), 0);
    await life.own.warm(names.map(named), {
      target: "ram",
      sources: [],
      onProgress: ({ doneBlocks, doneBytes, totalBlocks }) => {
        expect([doneBytes, totalBlocks]).toEqual([doneBlocks * 5_000, 40]);
        told.push(doneBlocks);
        kit.clock.advance(50);
      },
    });
    clearInterval(ticking);
    expect(told).toEqual([...told].sort((a, b) => a - b));
    expect(told.length).toBeLessThan(20);
  });

  it("missing blocks are fetched from the named peers", {
    life: {
      peers: {
        pull: async (blocks, sources) =>
          blocks.map(({ given }) =>
            given === named("far").given && sources[0] === "w2"
              ? { outcome: "done" }
              : { outcome: "missing" },
          ),
      } satisfies BlockSourcePort,
    },
  }, async ({ kit, life }) => {
    await onSsd(kit, "a");
    const report = await life.own.warm(["a", "far", "no"].map(named), {
      target: "ram",
      sources: ["w2"],
    });
    expect(outcomes(report.results)).toEqual(["done", "done", "missing"]);
  });

  it("blocks are fetched in batches while peers answer and there is room", {
    slots: 16,
  }, async ({ kit }) => {
    const { table } = kit.store;
    const peer = new PeerHost(kit.store);
    const asked: number[] = [];
    const theirs = many(20, "y");
    let answer: "done" | "late" = "done";
    const peers: BlockSourcePort = {
      pull: async (blocks) => {
        asked.push(blocks.length);
        if (answer === "late") return blocks.map(() => ({ outcome: "deferred" }));
        const results: BlockResult[] = [];
        for (const { given } of blocks) {
          const name = theirs.find((one) => named(one).given === given);
          results.push({ outcome: name === undefined ? "missing" : "done" });
          if (name === undefined) continue;
          // The evicted blocks are on SSD by then.
          await kit.settled();
          peer.pull(name);
        }
        return results;
      },
    };
    await using life = new Life(kit.store, kit.clock, null, { peers });
    const report = await life.warm(...theirs.slice(0, 4), ...many(600));
    expect(asked).toEqual([256, 256, 92]);
    expect(report.counts).toMatchObject({ done: 4, missing: 600 });
    expect(report.bytes).toBe(20_000);
    expect(table.residentBlocks(Tier.ram)).toBe(4);
    // No peer answers: the remaining blocks are not requested.
    asked.length = 0;
    answer = "late";
    const late = await life.warm(...many(600));
    expect(asked).toEqual([256]);
    expect(late.counts).toMatchObject({ deferred: 600 });
    expect(outcomes(late.results).at(-1)).toBe("deferred peers");
    // Beyond the share of RAM for warms, the outcome is the same as for SSD.
    asked.length = 0;
    answer = "done";
    const left = await life.warm(...theirs, ...many(256));
    expect(asked).toEqual([256]);
    expect(left.counts).toMatchObject({ already: 4, done: 16, missing: 240, rejected: 16 });
    expect(outcomes(left.results).at(-1)).toBe("rejected full");
  });

  it("blocks for a GPU are loaded into RAM, then offered to an engine", {}, async ({
    kit,
    life,
    where,
  }) => {
    const engine = kit.engine();
    await onSsd(kit, "a", "b");
    engine.gpuStored({ name: "g", alias: 9n });
    const warm = () =>
      life.own.warm([named("a"), named("b"), hashed(9n), named("no")], {
        target: "gpu",
        sources: [],
      });
    const report = await warm();
    expect(outcomes(report.results)).toEqual([
      "deferred gpu_sink",
      "deferred gpu_sink",
      "already",
      "missing",
    ]);
    expect(where("a", "b")).toEqual(["ram+ssd", "ram+ssd"]);
    const offered: unknown[] = [];
    life.own.setGpuSink({
      async offer(blocks) {
        offered.push(...blocks);
        return [{ outcome: "done" }, { outcome: "rejected", reason: "full: no room" }];
      },
    });
    expect(outcomes((await warm()).results)).toEqual([
      "done",
      "rejected full",
      "already",
      "missing",
    ]);
    const namespace = 1 as NamespaceIndex;
    expect(offered).toEqual(
      ["a", "b"].map((name) => ({ namespace, layer: LAYER_ALL, digest: digestOf(name) })),
    );
    life.own.setGpuSink(null);
    expect(outcomes((await warm()).results)[0]).toBe("deferred gpu_sink");
  });

  test("without an SSD tier only blocks in RAM are available", async () => {
    await using kit = openStoreKit({ arenaBytes: 2 ** 16 });
    await using life = new Life(kit.store, kit.clock, null);
    await kit.engine().put("a");
    expect(outcomes((await life.warm("a", "b")).results)).toEqual(["already", "missing"]);
  });
});
