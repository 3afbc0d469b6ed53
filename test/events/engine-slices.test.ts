import { expect, test } from "bun:test";
import { loopTurns } from "../../src/core/index.ts";
import { describeNative, waitFor } from "../support/index.ts";
import { engine, follow, number } from "./scripted-engine.ts";

const BLOCKS = 60_000;

describeNative("a large batch of an engine", () => {
  test("is applied whole, in many turns of the loop, and in order with what follows", async () => {
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
    // All of it took one turn before.
    expect(loopTurns.stats.turns - turnsBefore).toBeGreaterThan(20);
    expect(sizes.size).toBeGreaterThan(10);
  });

  test("that is no longer awaited is applied no further", async () => {
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
