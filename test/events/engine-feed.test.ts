import { expect, test } from "bun:test";
import { describeNative, waitFor } from "../support/index.ts";
import { chain, engine, follow, number } from "./scripted-engine.ts";

describeNative("the events of an engine", () => {
  test("that began before us are replayed, in either form of answers", async () => {
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

  test("that were missed are asked for, and what comes meanwhile waits", async () => {
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

  test("of another run replace those of the one before", async () => {
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

  test("that was killed and counts further than before by now are not mixed up", async () => {
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
  });

  test("of a run that has published nothing yet are all known", async () => {
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

  test("that a replay brought before they came live are no other run", async () => {
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

  test("that its buffer has no more begin anew with what it has", async () => {
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
    // Blocks of batches that nobody has any more may be there.
    expect(state.isKnown).toBe(false);
    it.send(it.batch({ kind: "cleared", ownership: null }));
    await waitFor(() => state.isKnown && held.size === 0);
  });

  test("without a replay endpoint begin anew behind a hole", async () => {
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

  test("that cannot be read cost themselves alone", async () => {
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
