import { expect, test } from "bun:test";
import {
  LAYER_ALL,
  type NamespaceIndex,
  seededRandom,
  systemClock,
} from "../../../src/core/index.ts";
import type { IngestChange } from "../../../src/events/index.ts";
import { EngineRank } from "../../../src/events/publishing/index.ts";
import { PromptDigests } from "../../../src/identity/index.ts";
import { loadNative } from "../../../src/native/index.ts";
import type { ResidencyChange } from "../../../src/observability/activity/index.ts";
import { Tier } from "../../../src/store/blocks/index.ts";
import { createAddressBatch } from "../../../src/store/index.ts";
import { namespaceKey, openStoreKit, PAGE } from "../../store/store-kit.ts";
import { verifyStore } from "../../store/verify-store.ts";
import { describeNative, waitFor } from "../../support/index.ts";
import { localHashes, sequenceHashes } from "../literal-hashes.ts";
import { engine } from "../scripted-engine.ts";
import { feedsOf } from "./publishing-kit.ts";

const BLOCK = 4;
const SPACE = { kind: "tokens", model: "m", blockTokens: BLOCK } as const;
const NAMESPACE = 1 as NamespaceIndex;

/** Naming of blocks: by digests of tokens, or of an engine's chain keys. */
type Chain = string | null;

function open(chain: Chain = null) {
  const kit = openStoreKit({ arenaBytes: 16 * PAGE, gpuWindowBlocks: 100 });
  const { store } = kit;
  const feeds = feedsOf({ residency: store.residency });
  const rank = new EngineRank({
    ...{
      rank: 0,
      model: "m",
      blockTokens: BLOCK,
      hashing: loadNative(),
      store,
      residency: feeds,
      zmq: null,
      engine: null,
      blocksMax: 100,
    },
    namespaces: () => [{ key: namespaceKey(NAMESPACE), chain }],
  });
  const device = () => store.table.residentBlocks(Tier.gpu);
  return { kit, store, feeds, rank, device, residency: feeds.logs[0]! };
}

/** The blocks of a prompt on SSD, up to the table's capacity. */
function keep(
  store: ReturnType<typeof open>["store"],
  tokens: Uint32Array,
  chain: Chain = null,
): void {
  const blocks = tokens.length / BLOCK;
  const batch = createAddressBatch(blocks);
  batch.count = blocks;
  batch.layer = LAYER_ALL;
  const digests = new PromptDigests(loadNative(), { tokens, blockTokens: BLOCK });
  batch.digests.set(digests.in(namespaceKey(NAMESPACE), chain)!);
  batch.parents.set(batch.digests.subarray(0, (blocks - 1) * 32), 32);
  store.deriveKeys(batch, true);
  for (let i = 0; i < blocks; i++) {
    store.table.insertResident(batch, i, NAMESPACE, i > 0, Tier.ssd);
  }
}

const prompt = Uint32Array.from({ length: 5 * BLOCK }, (_, i) => 7 * i);
const hashes = sequenceHashes(localHashes(prompt, BLOCK));

function stored(from: number, end: number): IngestChange {
  const parent = from === 0 ? null : hashes[from - 1]!;
  const own = hashes.slice(from, end);
  const change: ResidencyChange = {
    kind: "stored",
    ...{ tier: "device", parent, hashes: own, tokenHashes: null },
  };
  return { change, tokens: prompt.slice(from * BLOCK, end * BLOCK), isPlain: true };
}

function other(change: ResidencyChange): IngestChange {
  return { change, tokens: null, isPlain: true };
}

describeNative("an engine's own events", () => {
  test("mirror GPU contents for blocks named by chain keys", async () => {
    const chain = "vllm sha256 tagged vllm-none-hash";
    const { kit, store, rank, device } = open(chain);
    await using _kit = kit;
    keep(store, prompt, chain);
    rank.changed([stored(0, 3)]);
    expect(device()).toBe(3);
  });

  test("mirror GPU contents for stored blocks, whichever came first", async () => {
    const { kit, store, rank, feeds, residency, device } = open();
    await using _kit = kit;
    keep(store, prompt.slice(0, 3 * BLOCK));
    rank.changed([stored(0, 5)]);
    expect(device()).toBe(3);
    keep(store, prompt);
    residency.flush();
    expect(device()).toBe(5);
    // Both key spaces: five by tokens, and five by keys.
    expect(residency.heartbeat().digests.map(({ blocks }) => blocks)).toEqual([10, 0, 5]);
    rank.changed([other({ kind: "removed", tier: "device", hashes: hashes.slice(3) })]);
    expect(device()).toBe(3);
    rank.changed([other({ kind: "cleared", tier: null })]);
    expect(device()).toBe(0);
    expect(residency.heartbeat().digests.map(({ blocks }) => blocks)).toEqual([0, 0, 5]);
    rank.changed([stored(0, 2)]);
    expect(device()).toBe(2);
    await rank[Symbol.asyncDispose]();
    expect(device()).toBe(0);
    feeds[Symbol.dispose]();
    verifyStore(store);
  });

  test("received late leave the device unknown until all of it is known", async () => {
    await using it = await engine(undefined, 1);
    it.add("stored", 1, null);
    it.add("stored", 2, 1);
    const kit = openStoreKit({ arenaBytes: 16 * PAGE, gpuWindowBlocks: 100 });
    await using _kit = kit;
    const feeds = feedsOf({ residency: kit.store.residency }, { hasEngines: true });
    const residency = feeds.logs[0]!;
    const told: boolean[] = [];
    using _listening = residency.onDeviceKnown(
      () => void told.push(residency.heartbeat().isDeviceKnown),
    );
    const native = loadNative();
    await using rank = new EngineRank({
      ...{
        rank: 0,
        model: "m",
        blockTokens: BLOCK,
        hashing: native,
        store: kit.store,
        residency: feeds,
      },
      ...{ zmq: null, blocksMax: 3, namespaces: () => [] },
      engine: {
        ...{ native, clock: systemClock, random: seededRandom(1) },
        ...{ endpoint: it.publisher.endpoint, replayEndpoint: it.router.endpoint },
      },
    });
    await waitFor(() => rank.state?.counts.replayed === 1 && rank.state.isHeard);
    expect(residency.heartbeat().isDeviceKnown).toBe(false);
    it.send(it.batch({ kind: "cleared", ownership: null }));
    await waitFor(() => residency.isDeviceKnown);
    expect(told).toEqual([true]);
    // More blocks than the agent remembers.
    for (let block = 1; block <= 4; block++)
      it.send(it.add("stored", block, block === 1 ? null : block - 1));
    await waitFor(() => !residency.isDeviceKnown);
    it.send(it.batch({ kind: "cleared", ownership: null }));
    await waitFor(() => residency.isDeviceKnown);
    feeds[Symbol.dispose]();
  });

  test("with other tokens, or of prompts without a known start, mirror nothing", async () => {
    const { kit, store, rank, device, residency } = open();
    await using _kit = kit;
    keep(store, prompt);
    rank.changed([stored(2, 5), { ...stored(0, 2), isPlain: false }]);
    expect(device()).toBe(0);
    expect(residency.heartbeat().digests[0]!.blocks).toBe(5);
    expect(residency.heartbeat().spaces).toContainEqual(SPACE);
  });
});
