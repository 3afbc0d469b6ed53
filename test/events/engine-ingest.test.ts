import { expect, test } from "bun:test";
import { loopTurns } from "../../src/core/index.ts";
import { decodeSavedIngest, type EngineEvent } from "../../src/events/index.ts";
import { describeNative, waitFor } from "../support/index.ts";
import { chain, engine, follow, number, tokensOf } from "./scripted-engine.ts";

describeNative("the events of an engine", () => {
  test("that began before the ingest are replayed, in both forms of answers", async () => {
    for (const isNewForm of [true, false]) {
      await using it = await engine(undefined, 100, isNewForm);
      it.add("stored", 1, null);
      it.add("stored", 2, 1);
      const { endpoint } = it.publisher;
      const { feed, held, state } = follow({ endpoint, replayEndpoint: it.router.endpoint });
      await using _feed = feed;
      await waitFor(() => state.isKnown && held.size === 2);
      expect(held).toEqual(chain(1, 2));
      it.send(it.add("stored", 3, 2));
      await waitFor(() => held.size === 3);
      it.send(it.add("removed", 3, null));
      await waitFor(() => held.size === 2);
      expect(feed.counts.gaps).toBe(0);
    }
  });

  test("that were missed are requested, and live batches wait meanwhile", async () => {
    await using it = await engine();
    const replayEndpoint = it.router.endpoint;
    const { feed, held, state } = follow({ endpoint: it.publisher.endpoint, replayEndpoint });
    await using _feed = feed;
    await waitFor(() => state.isKnown && it.publisher.subscribers === 1);
    it.send(it.add("stored", 1, null));
    it.add("stored", 2, 1);
    const third = it.add("stored", 3, 2);
    it.send(third);
    it.send(it.add("stored", 4, 3));
    await waitFor(() => state.isKnown && held.size === 4);
    expect(held).toEqual(chain(1, 2, 3, 4));
    expect(feed.counts).toMatchObject({ gaps: 1, restarts: 0, lostBatches: 0 });
  });

  test("of another run replace those of the previous run", async () => {
    await using it = await engine();
    const replayEndpoint = it.router.endpoint;
    const { feed, held, state } = follow({ endpoint: it.publisher.endpoint, replayEndpoint });
    await using _feed = feed;
    await waitFor(() => state.isKnown && it.publisher.subscribers === 1);
    for (const block of [1, 2, 3]) it.send(it.add("stored", block, block === 1 ? null : block - 1));
    await waitFor(() => held.size === 3);
    it.restart();
    it.send(it.add("stored", 7, null));
    await waitFor(() => held.size === 1 && state.isKnown);
    expect(held).toEqual(chain(7));
    expect(feed.counts.restarts).toBe(1);
  });

  test(
    "of a restarted engine that has counted further are not confused with the earlier " + "run",
    async () => {
      const before = await engine();
      const endpoint = before.publisher.endpoint;
      const replayEndpoint = before.router.endpoint;
      const { feed, held, state } = follow({ endpoint, replayEndpoint });
      await using _feed = feed;
      await waitFor(() => state.isKnown && before.publisher.subscribers === 1);
      before.send(before.add("stored", 1, null));
      await waitFor(() => held.size === 1);
      await before[Symbol.asyncDispose]();
      await waitFor(() => !state.isHeard);
      await using after = await engine({ publish: endpoint, replay: replayEndpoint });
      for (const block of [5, 6, 7]) after.add("stored", block, block === 5 ? null : block - 1);
      await waitFor(() => state.isKnown && held.size === 3, 15_000);
      expect(held).toEqual(chain(5, 6, 7));
      after.send(after.add("stored", 8, 7));
      await waitFor(() => held.size === 4);
    },
  );

  test("of a run that has published nothing yet are complete", async () => {
    const before = await engine();
    const endpoint = before.publisher.endpoint;
    const replayEndpoint = before.router.endpoint;
    const { feed, held, state } = follow({ endpoint, replayEndpoint });
    await using _feed = feed;
    await waitFor(() => state.isKnown && before.publisher.subscribers === 1);
    before.send(before.add("stored", 1, null));
    await waitFor(() => held.size === 1);
    await before[Symbol.asyncDispose]();
    await waitFor(() => !state.isHeard);
    await using _after = await engine({ publish: endpoint, replay: replayEndpoint });
    await waitFor(() => state.isKnown && feed.counts.restarts === 1);
    expect(held.size).toBe(0);
  });

  test("received by replay before they arrive live do not count as another run", async () => {
    await using it = await engine();
    const replayEndpoint = it.router.endpoint;
    const { feed, held, state } = follow({ endpoint: it.publisher.endpoint, replayEndpoint });
    await using _feed = feed;
    await waitFor(() => state.isKnown && it.publisher.subscribers === 1);
    const sent = [1, 2, 3, 4].map((block) =>
      it.add("stored", block, block === 1 ? null : block - 1),
    );
    it.send(sent[1]!);
    await waitFor(() => state.isKnown && held.size === 4);
    const asked = it.asked;
    it.send(sent[2]!);
    it.send(sent[3]!);
    it.send(it.add("stored", 5, 4));
    await waitFor(() => held.size === 5);
    expect(held).toEqual(chain(1, 2, 3, 4, 5));
    expect(feed.counts).toMatchObject({ gaps: 1, restarts: 0, lostBatches: 0 });
    expect(it.asked).toBe(asked);
  });

  test("that the buffer no longer has restart the state from the buffered ones", async () => {
    await using it = await engine(undefined, 2);
    const replayEndpoint = it.router.endpoint;
    const { feed, held, state } = follow({ endpoint: it.publisher.endpoint, replayEndpoint });
    await using _feed = feed;
    await waitFor(() => state.isKnown && it.publisher.subscribers === 1);
    it.send(it.add("stored", 1, null));
    await waitFor(() => held.size === 1);
    for (const block of [2, 3, 4]) it.add("stored", block, null);
    it.send(it.add("stored", 5, null));
    await waitFor(() => feed.isCurrent && held.size === 2);
    expect(held).toEqual(new Set([...chain(4), ...chain(5)]));
    // Blocks of lost batches may exist.
    expect(state.isKnown).toBe(false);
    it.send(it.batch({ kind: "cleared", ownership: null }));
    await waitFor(() => state.isKnown && held.size === 0);
  });

  test("without a replay endpoint restart the state after a gap", async () => {
    await using it = await engine();
    const { feed, held, state } = follow({ endpoint: it.publisher.endpoint, replayEndpoint: null });
    await using _feed = feed;
    await waitFor(() => it.publisher.subscribers === 1 && state.isHeard);
    it.send(it.add("stored", 1, null));
    await waitFor(() => held.size === 1);
    it.add("stored", 2, 1);
    it.send(it.add("stored", 9, null));
    await waitFor(() => feed.counts.lostBatches === 1);
    expect(held).toEqual(chain(9));
    expect(it.asked).toBe(0);
  });

  test("that cannot be decoded are skipped alone", async () => {
    await using it = await engine();
    const { feed, held, state } = follow({ endpoint: it.publisher.endpoint, replayEndpoint: null });
    await using _feed = feed;
    await waitFor(() => it.publisher.subscribers === 1 && state.isHeard);
    it.send(it.add("stored", 1, null));
    it.publisher.publish([new Uint8Array(), number(1n), Uint8Array.of(0xc1)]);
    it.publisher.publish([Uint8Array.of(1)]);
    it.add("stored", 2, 1);
    it.send(it.add("stored", 3, 1));
    await waitFor(() => held.size === 2);
    expect(feed.counts.dropped.unreadable).toBe(2);
  });
});

const ELSEWHERE = { medium: "GPU", group: null, locality: null, ownership: null };

/** Consecutive blocks in one event; a block of the engine has `size` tokens. */
function stored(blocks: readonly number[], parent: number | null, size = 4): EngineEvent {
  const tokens = blocks.flatMap((block) => [...tokensOf(block)]);
  const count = tokens.length / size;
  return {
    ...{ kind: "stored", hashes: blocks.slice(0, count).map((block) => BigInt(1_000 + block)) },
    ...{ parent: parent === null ? null : BigInt(1_000 + parent), blockTokens: size },
    tokens: Uint32Array.from(tokens),
    ...{ loraName: null, loraId: null, extras: null, cacheSalt: null, sessionId: null },
    ...{ eagleNext: null, ...ELSEWHERE },
  };
}

describeNative("an ingest that starts late", () => {
  test("is incomplete, and links children once their parents are announced", async () => {
    await using it = await engine(undefined, 2);
    it.add("stored", 1, null);
    it.add("stored", 2, 1);
    it.add("stored", 3, 2);
    it.add("stored", 4, 3);
    const { endpoint } = it.publisher;
    const { feed, held, state } = follow({ endpoint, replayEndpoint: it.router.endpoint });
    await using _feed = feed;
    await waitFor(() => feed.isCurrent && feed.orphanBlocks === 2);
    expect([held.size, state.isKnown]).toEqual([0, false]);
    // The events of vLLM for a request with `kv_cache_report_mode` "full".
    it.send(it.batch(stored([1, 2], null)));
    await waitFor(() => held.size === 4);
    expect(held).toEqual(chain(1, 2, 3, 4));
    expect([feed.orphanBlocks, state.isKnown]).toEqual([0, false]);
  });

  test("learns from a prompt the engine's names of earlier blocks", async () => {
    await using it = await engine(undefined, 2);
    for (const block of [1, 2, 3, 4]) it.add("stored", block, block === 1 ? null : block - 1);
    it.add("removed", 2, null);
    it.add("stored", 5, 3);
    const { endpoint } = it.publisher;
    const { feed, held } = follow({ endpoint, replayEndpoint: it.router.endpoint });
    await using _feed = feed;
    await waitFor(() => feed.isCurrent && feed.orphanBlocks === 1);
    const tokens = Uint32Array.from([1, 2, 3].flatMap((block) => [...tokensOf(block)]));
    expect(feed.isWaitedFor(1_003n)).toBe(true);
    feed.learn([1_001n, 1_002n, 1_003n], { tokens, cacheSalt: null });
    const [first, , third] = chain(1, 2, 3);
    const fifth = [...chain(1, 2, 3, 5)][3]!;
    // The second block was removed since.
    expect(held).toEqual(new Set([first!, third!, fifth]));
  });

  test("without a replay endpoint is incomplete while the engine is silent", async () => {
    await using it = await engine();
    it.add("stored", 1, null);
    const { feed, held, state } = follow({ endpoint: it.publisher.endpoint, replayEndpoint: null });
    await using _feed = feed;
    await waitFor(() => it.publisher.subscribers === 1 && state.isHeard);
    expect(state.isKnown).toBe(false);
    it.send(it.add("stored", 2, 1));
    await waitFor(() => feed.counts.lostBatches === 1);
    expect([held.size, state.isKnown]).toEqual([0, false]);
  });

  test("counts requested batches that the engine does not have as lost", async () => {
    await using it = await engine();
    const replayEndpoint = it.router.endpoint;
    const { feed, held, state } = follow({ endpoint: it.publisher.endpoint, replayEndpoint });
    await using _feed = feed;
    await waitFor(() => state.isKnown && it.publisher.subscribers === 1);
    const payloads = [1, 2, 3].map((block) => it.add("stored", block, null));
    it.sendAs(9, payloads[2]!);
    await waitFor(() => feed.counts.lostBatches > 0 && feed.isCurrent);
    expect(state.isKnown).toBe(false);
    expect(held).toEqual(chain(3));
  });
});

describeNative("the block size of an engine", () => {
  test("comes from its events if none is configured", async () => {
    await using it = await engine();
    it.batch(stored([1, 2], null, 8));
    const { endpoint } = it.publisher;
    const options = { endpoint, replayEndpoint: it.router.endpoint, blockTokens: null };
    const { feed, held, state } = follow(options);
    await using _feed = feed;
    await waitFor(() => state.isKnown && held.size === 1);
    expect([state.sizes, feed.engineBlockTokens]).toEqual([[8], 8]);
  });

  test("overrides a configured one, and skipped events are replayed", async () => {
    for (const configured of [2, 16]) {
      await using it = await engine();
      const replayEndpoint = it.router.endpoint;
      const { endpoint } = it.publisher;
      const { feed, held, state } = follow({ endpoint, replayEndpoint, blockTokens: configured });
      await using _feed = feed;
      await waitFor(() => state.isKnown && it.publisher.subscribers === 1);
      it.send(it.add("stored", 1, null));
      it.send(it.batch(stored([2, 3], 1)));
      await waitFor(() => state.isKnown && held.size === 3);
      expect(held).toEqual(chain(1, 2, 3));
      expect(feed.engineBlockTokens).toBe(4);
      expect(state.sizes.at(-1)).toBe(4);
    }
  });

  test("is not taken from a last page with fewer tokens", async () => {
    await using it = await engine();
    const { endpoint } = it.publisher;
    const { feed, held, state } = follow({ endpoint, replayEndpoint: it.router.endpoint });
    await using _feed = feed;
    await waitFor(() => state.isKnown && it.publisher.subscribers === 1);
    const page = { ...stored([1], null), tokens: Uint32Array.of(1, 2), blockTokens: 2 };
    it.send(it.batch(page as EngineEvent));
    await waitFor(() => feed.counts.dropped.partial_block === 1);
    // It may have been a whole block of a smaller size.
    await waitFor(() => !state.isKnown);
    it.send(it.add("stored", 3, null));
    await waitFor(() => state.isKnown);
    expect(held).toEqual(chain(3));
    expect(feed.engineBlockTokens).toBe(4);
  });
});

describeNative("the saved state of an ingest", () => {
  const begin = async (it: Awaited<ReturnType<typeof engine>>) => {
    const places = { endpoint: it.publisher.endpoint, replayEndpoint: it.router.endpoint };
    const { feed, held, state } = follow(places);
    await waitFor(() => state.isKnown && it.publisher.subscribers === 1);
    it.send(it.add("stored", 1, null));
    it.send(it.add("stored", 2, 1));
    it.send(it.add("stored", 2, 1));
    await waitFor(() => held.size === 2);
    const saved = decodeSavedIngest((await feed.save())!);
    await feed[Symbol.asyncDispose]();
    return { places, saved };
  };

  test("is confirmed by a replay of its last batch, and later batches are applied", async () => {
    await using it = await engine(undefined, 2);
    const { places, saved } = await begin(it);
    it.add("removed", 2, null);
    const { feed, held, state } = follow({ ...places, saved });
    await using _feed = feed;
    await waitFor(() => state.isKnown);
    // There was a second copy.
    expect([held, state.restored]).toEqual([chain(1, 2), true]);
    it.send(it.add("removed", 2, null));
    await waitFor(() => held.size === 1);
    expect(feed.counts.restarts).toBe(0);
  });

  test("is discarded if the engine's buffer does not reach back to it", async () => {
    await using it = await engine(undefined, 2);
    const { places, saved } = await begin(it);
    for (const block of [5, 6, 7]) it.add("stored", block, null);
    const { feed, held, state } = follow({ ...places, saved });
    await using _feed = feed;
    await waitFor(() => feed.isCurrent && held.size === 2);
    expect([held, state.restored]).toEqual([new Set([...chain(6), ...chain(7)]), false]);
    expect(state.isKnown).toBe(false);
  });

  test("is discarded for another run, also if that run has counted further", async () => {
    for (const batches of [1, 3, 5]) {
      await using it = await engine();
      const { places, saved } = await begin(it);
      it.restart();
      for (let block = 10; block < 10 + batches; block++) it.add("stored", block, null);
      const { feed, held, state } = follow({ ...places, saved });
      await using _feed = feed;
      await waitFor(() => state.isKnown && held.size === batches);
      expect([state.restored, state.restarts]).toEqual([false, 1]);
      expect(held.has([...chain(10)][0]!)).toBe(true);
    }
  });

  test("is rejected if it is truncated or of another format", async () => {
    await using it = await engine();
    const places = { endpoint: it.publisher.endpoint, replayEndpoint: it.router.endpoint };
    const { feed, state } = follow(places);
    await using _feed = feed;
    await waitFor(() => state.isKnown && it.publisher.subscribers === 1);
    expect(await feed.save()).toBeNull();
    it.send(it.add("stored", 1, null));
    await waitFor(() => feed.counts.batches === 1);
    const pages = (await feed.save())!;
    expect(decodeSavedIngest(pages)?.next).toBe(1);
    expect(decodeSavedIngest(pages.slice(0, 1))).toBeNull();
    expect(decodeSavedIngest([])).toBeNull();
    expect(decodeSavedIngest([pages[0]!.slice(1), ...pages.slice(1)])).toBeNull();
    expect(decodeSavedIngest([pages[0]!, pages[1]!.slice(0, -1)])).toBeNull();
  });
});

const BLOCKS = 60_000;

describeNative("a large batch of an engine", () => {
  test("is applied completely, in many turns of the loop, and before later ones", async () => {
    await using it = await engine();
    const { feed, held } = follow({ endpoint: it.publisher.endpoint, replayEndpoint: null });
    await using _feed = feed;
    await waitFor(() => it.publisher.subscribers === 1);
    const common = { medium: "GPU", group: null, locality: null, ownership: null };
    const large = it.batch({
      kind: "stored",
      ...{ parent: null, loraName: null, loraId: null, extras: null, ...common },
      hashes: Array.from({ length: BLOCKS }, (_, i) => BigInt(i + 1_000_000)),
      tokens: Uint32Array.from({ length: 4 * BLOCKS }, (_, i) => i),
      ...{ blockTokens: 4, cacheSalt: null, sessionId: null, eagleNext: null },
    });
    const cleared = it.batch({ kind: "cleared", ownership: null });
    const last = it.add("stored", 1, null);
    const turnsBefore = loopTurns.stats.turns;
    const sizes = new Set<number>();
    using _watch = loopTurns.onTurn(() => void sizes.add(held.size));
    for (const [at, payload] of [large, cleared, last].entries()) {
      it.publisher.publish([new Uint8Array(), number(BigInt(at)), payload]);
    }
    await waitFor(() => feed.counts.batches === 3, 60_000);
    expect(held.size).toBe(1);
    expect(feed.counts).toMatchObject({ gaps: 0, lostBatches: 0, stored: BLOCKS + 1 });
    // It used to take one turn.
    expect(loopTurns.stats.turns - turnsBefore).toBeGreaterThan(20);
    expect(sizes.size).toBeGreaterThan(10);
  });

  test("is abandoned when the ingest is closed", async () => {
    await using it = await engine();
    const { feed, held } = follow({ endpoint: it.publisher.endpoint, replayEndpoint: null });
    await waitFor(() => it.publisher.subscribers === 1);
    it.send(it.add("stored", 1, null));
    await waitFor(() => held.size === 1);
    await feed[Symbol.asyncDispose]();
    it.send(it.add("stored", 2, 1));
    expect(held.size).toBe(1);
  });
});
