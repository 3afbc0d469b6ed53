import { expect, test } from "bun:test";
import { seededRandom, systemClock } from "../../src/core/index.ts";
import {
  EngineFeed,
  type EngineFeedOptions,
  encodeEngineBatch,
  type FeedChange,
  localHashes,
  sequenceHashes,
} from "../../src/kvevents/index.ts";
import { loadNative } from "../../src/native/index.ts";
import {
  bindPublisher,
  bindRouter,
  type ZmtpMessage,
  type ZmtpReply,
} from "../../src/zmtp/index.ts";
import { describeNative, waitFor } from "../support/index.ts";

const basics = { clock: systemClock, random: seededRandom(3) };
const ANY_PORT = "tcp://127.0.0.1:*";
const LAST = 0xffff_ffff_ffff_ffffn;

function number(value: bigint): Uint8Array {
  const frame = new Uint8Array(8);
  new DataView(frame.buffer).setBigUint64(0, value);
  return frame;
}

const tokensOf = (block: number) => Uint32Array.from({ length: 4 }, (_, at) => block * 10 + at);

/** An engine that publishes blocks, one a batch, and replays what its buffer has. */
async function engine(
  { publish = ANY_PORT, replay = ANY_PORT } = {},
  buffer = 100,
  isNewForm = true,
) {
  const publisher = await bindPublisher({ ...basics, endpoint: publish });
  let first = 0;
  let batches: Uint8Array[] = [];
  let asked = 0;
  const answer = (message: ZmtpMessage, reply: ZmtpReply) => {
    asked++;
    const from = Number(new DataView(message[1]!.buffer, message[1]!.byteOffset).getBigUint64(0));
    const topic = isNewForm ? [new Uint8Array()] : [];
    for (const [at, payload] of batches.entries()) {
      if (at >= first && at >= from)
        reply([new Uint8Array(), ...topic, number(BigInt(at)), payload]);
    }
    reply([new Uint8Array(), ...topic, number(LAST), new Uint8Array()]);
  };
  const router = await bindRouter({ ...basics, endpoint: replay, onMessage: answer });
  const add = (kind: "stored" | "removed", block: number, parent: number | null): Uint8Array => {
    const hashes = [BigInt(1_000 + block)];
    const common = { medium: "GPU", group: null, locality: null, ownership: null };
    const stored = {
      ...{ kind: "stored" as const, hashes, tokens: tokensOf(block), blockTokens: 4 },
      ...{ parent: parent === null ? null : BigInt(1_000 + parent), loraName: null, loraId: null },
      ...{ extras: null, cacheSalt: null, sessionId: null, eagleNext: null, ...common },
    };
    const event = kind === "stored" ? stored : { kind: "removed" as const, hashes, ...common };
    const payload = encodeEngineBatch({ seconds: batches.length, rank: 0, events: [event] });
    batches.push(payload);
    first = Math.max(first, batches.length - buffer);
    return payload;
  };
  return {
    ...{ publisher, router, add },
    get asked() {
      return asked;
    },
    send: (payload: Uint8Array) =>
      publisher.publish([new Uint8Array(), number(BigInt(batches.indexOf(payload))), payload]),
    restart: () => {
      [first, batches] = [0, []];
    },
    async [Symbol.asyncDispose]() {
      await publisher[Symbol.asyncDispose]();
      await router[Symbol.asyncDispose]();
    },
  };
}

/** What the changes come to: sequence hashes on the device. */
function follow(options: Pick<EngineFeedOptions, "endpoint" | "replayEndpoint">) {
  const held = new Set<bigint>();
  const state = { isKnown: false, isHeard: false };
  const apply = ({ change }: FeedChange) => {
    if (change.kind === "cleared") held.clear();
    else if (change.kind === "stored") for (const hash of change.hashes) held.add(hash);
    else for (const hash of change.hashes) held.delete(hash);
  };
  const feed = new EngineFeed(
    { native: loadNative(), ...basics, topic: "", rank: 0, blockTokens: 4, ...options },
    {
      changes: (changes) => changes.forEach(apply),
      known: (isKnown) => {
        state.isKnown = isKnown;
      },
      heard: (isHeard) => {
        state.isHeard = isHeard;
      },
    },
  );
  return { feed, held, state };
}

/** Sequence hashes of blocks that follow each other. */
const chain = (...blocks: number[]) => {
  const tokens = Uint32Array.from(blocks.flatMap((block) => [...tokensOf(block)]));
  return new Set(sequenceHashes(localHashes(tokens, 4)));
};

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
  }, 20_000);

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
    await waitFor(() => state.isKnown && held.size === 2);
    expect(held).toEqual(new Set([...chain(4), ...chain(5)]));
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
