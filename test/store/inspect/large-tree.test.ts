import { expect, test } from "bun:test";
import { type NamespaceIndex, seededRandom, systemClock } from "../../../src/core/index.ts";
import { loadNative } from "../../../src/native/index.ts";
import { Tier } from "../../../src/store/blocks/index.ts";
import { Inspector, Namespaces, TieredStore } from "../../../src/store/index.ts";
import { describeNative } from "../../support/index.ts";
import { openStoreKit, PAGE } from "../store-kit.ts";

const NODES = 1_000_000;
const BATCH = 10_000;

/** Chains of a thousand blocks below one root, and as many single blocks. */
function fill(store: TieredStore): void {
  const source = {
    layer: 0,
    keys: new Uint32Array(BATCH * 8),
    digests: new Uint8Array(BATCH * 32),
    parentKeys: new Uint32Array(BATCH * 8),
    bytes: new Uint32Array(BATCH).fill(1),
  };
  const digests = new Uint32Array(source.digests.buffer);
  const key = (words: Uint32Array, at: number, number: number) => {
    words[at * 8] = Math.imul(number + 1, 0x9e37_79b1);
    words[at * 8 + 1] = number;
  };
  for (let number = 0; number < NODES; number++) {
    const at = number % BATCH;
    const isAlone = number >= NODES / 2;
    key(source.keys, at, number);
    digests[at * 8] = number;
    key(source.parentKeys, at, number % 1_000 === 1 ? 0 : number - 1);
    const hasParent = !isAlone && number > 0 && number % 1_000 !== 0;
    store.table.insertResident(source, at, 1 as NamespaceIndex, hasParent, Tier.gpu);
  }
}

describeNative("a tree of a million blocks", () => {
  test("is walked in slices that do not block the event loop", async () => {
    await using kit = openStoreKit({ arenaBytes: 16 * PAGE });
    const { region, queue } = kit;
    const native = loadNative();
    await using store = new TieredStore({
      ...{ native, region, queue, clock: systemClock },
      random: seededRandom(7),
      blocksMax: NODES + 10,
      gpuWindowBlocks: 0,
      policy: "lru",
      marks: { high: 1, low: 1 },
    });
    fill(store);
    const parts = { namespaces: new Namespaces(), native, holdersOf: () => [] };
    const inspector = new Inspector(store, parts);
    // Processor time between two beats, so that other load on the host does not count.
    const stalls: number[] = [];
    const spentMs = () => {
      const { user, system } = process.threadCpuUsage();
      return (user + system) / 1_000;
    };
    let last = spentMs();
    const beat = setInterval(() => {
      stalls.push(spentMs() - last);
      last = spentMs();
    }, 0);
    let seen = 0;
    let after: string | null = null;
    do {
      const page = await inspector.tree({ root: null, depthMax: 1_000_000, limit: 20_000, after });
      seen += page.blocks.length;
      after = page.next;
    } while (after !== null);
    clearInterval(beat);
    expect(seen).toBe(NODES);
    expect(stalls.length).toBeGreaterThan(100);
    stalls.sort((a, b) => a - b);
    expect(stalls[Math.floor(stalls.length / 2)]!).toBeLessThan(4);
    // All but a few beats, which the garbage collector delays.
    expect(stalls[Math.floor(stalls.length * 0.98)]!).toBeLessThan(10);
  });
});
