import { afterAll, describe, expect, test } from "bun:test";
import {
  type Bus,
  type BusLimits,
  createLocalBus,
  LocalHub,
  openBus,
} from "../../../src/bus/index.ts";
import { systemClock, systemRandom } from "../../../src/core/index.ts";
import {
  BusPublisher,
  type HostResidencyOptions,
  type ResidencyLog,
} from "../../../src/events/publishing/index.ts";
import { FAST } from "../../bus/bus-bench.ts";
import { describeNats, NatsServer, waitFor } from "../../support/index.ts";
import { Blocks, CLUSTER, Consumer, digestsOf, feedsOf, SPACE, WORKER } from "./publishing-kit.ts";

const opened: Bus[] = [];
afterAll(() => Promise.all(opened.map((bus) => bus.close(0))));

type Open = (limits?: Partial<BusLimits>) => Promise<Bus>;

async function connected(bus: Bus): Promise<Bus> {
  opened.push(bus);
  expect(await bus.connected(5_000)).toBe(true);
  return bus;
}

/** One host that publishes its only rank. */
async function host(open: Open, blocks: Blocks, options: Partial<HostResidencyOptions> = {}) {
  const bus = await open();
  const feeds = feedsOf(blocks, options);
  const [residency] = feeds.logs;
  const publisher = new BusPublisher({
    ...{ residency: residency!, bus, cluster: CLUSTER, clock: systemClock, sendsBatches: true },
  });
  return {
    bus,
    feeds,
    residency: residency!,
    publisher,
    async [Symbol.asyncDispose]() {
      await publisher[Symbol.asyncDispose]();
      feeds[Symbol.dispose]();
    },
  };
}

/** The current state has reached the consumer, confirmed by a heartbeat. */
async function agreed(consumer: Consumer, residency: ResidencyLog): Promise<void> {
  residency.flush();
  await waitFor(() => consumer.agreesWith(residency), 15_000);
}

/** Properties of a publisher on any bus. */
function contract(start: () => Promise<{ open: Open; end(): Promise<void> }>): void {
  test("live changes produce the state, and the last heartbeat ends it", async () => {
    const world = await start();
    const blocks = new Blocks();
    using consumer = new Consumer(await world.open(), CLUSTER, WORKER);
    const one = await host(world.open, blocks);
    await waitFor(() => consumer.heartbeats.length > 0);
    expect(consumer.heartbeats[0]).toMatchObject({ lastSequence: 0, mode: "ring", everyMs: 50 });
    expect(consumer.heartbeats[0]?.spaces).toEqual([SPACE]);
    for (let round = 0; round < 20; round++) {
      blocks.churn(200);
      await agreed(consumer, one.residency);
      expect(consumer.sets).toEqual(blocks.sets);
    }
    expect([consumer.gaps, consumer.refused]).toEqual([0, []]);
    await one[Symbol.asyncDispose]();
    await waitFor(() => consumer.heartbeats.at(-1)?.isClosing);
    await world.end();
  });

  test("a late consumer takes a snapshot and continues from there", async () => {
    const world = await start();
    const blocks = new Blocks(10_000);
    await using one = await host(world.open, blocks);
    blocks.chain(1, 5_000, "host");
    blocks.chain(1, 3_000, "disk");
    one.residency.flush();
    using consumer = new Consumer(await world.open(), CLUSTER, WORKER);
    const asked = consumer.snapshot();
    blocks.churn(300);
    await asked;
    blocks.churn(300);
    one.residency.flush();
    await consumer.catchUp();
    expect(consumer.sets).toEqual(blocks.sets);
    await world.end();
  });

  test("a range that the ring no longer has is answered as evicted", async () => {
    const world = await start();
    const blocks = new Blocks();
    const ring = { changesMax: 20, blocksMax: 10_000 };
    await using one = await host(world.open, blocks, { ring });
    using consumer = new Consumer(await world.open(), CLUSTER, WORKER);
    for (let i = 0; i < 50; i++) {
      blocks.store(1_000 + i, null, "host");
      one.residency.flush();
    }
    const gone = await consumer.ask({ kind: "range", incarnation: null, from: 1, to: null });
    expect(gone).toMatchObject({ kind: "evicted", firstSequence: 31, lastSequence: 50 });
    const part = await consumer.ask({ kind: "range", incarnation: 1n, from: 40, to: 42 });
    expect(part).toMatchObject({ kind: "range", lastSequence: 50 });
    expect(part.kind === "range" && part.batch.changes.length).toBe(3);
    await world.end();
  });

  test("invalid queries are answered without cost", async () => {
    const world = await start();
    const blocks = new Blocks();
    await using one = await host(world.open, blocks);
    blocks.chain(1, 100, "host");
    one.residency.flush();
    const last = one.residency.lastSequence;
    using consumer = new Consumer(await world.open(), CLUSTER, WORKER);
    const range = (from: number, to: number | null, incarnation: bigint | null = null) =>
      consumer.ask({ kind: "range", incarnation, from, to });
    const part = (snapshot: bigint | null, at: number) =>
      consumer.ask({ kind: "snapshot", incarnation: null, snapshot, part: at });
    const huge = Number.MAX_SAFE_INTEGER;
    const kinds = await Promise.all([
      ...[range(0, null), range(5, 4), range(last + 1, null), range(huge, huge)],
      ...[range(1, huge), range(1, 1, 99n), part(null, 3), part(77n, 0), part(1n, huge)],
      consumer.askBytes(new Uint8Array(0)),
      consumer.askBytes(new Uint8Array(100_000).fill(0xc1)),
      consumer.askBytes(crypto.getRandomValues(new Uint8Array(64))),
    ]);
    expect(kinds.map(({ kind }) => kind)).toEqual([
      ...["refused", "refused", "too_new", "too_new"],
      ...["range", "other_incarnation", "refused", "no_snapshot", "no_snapshot"],
      ...["refused", "refused", "refused"],
    ] as never);
    expect(one.publisher.state.questions.refused).toBe(6);
    expect(one.publisher.snapshots.made).toBe(0);
    await world.end();
  });

  test("a killed host returns as another incarnation", async () => {
    const world = await start();
    using consumer = new Consumer(await world.open(), CLUSTER, WORKER);
    const blocks = new Blocks();
    const first = await host(world.open, blocks);
    blocks.churn(500);
    await agreed(consumer, first.residency);
    // Killed: no last heartbeat, and its RAM is lost.
    await first.bus.close(0);
    const again = new Blocks(4_096, 2);
    again.churn(100);
    await using second = await host(world.open, again, { incarnation: 2n });
    await agreed(consumer, second.residency);
    expect(consumer.incarnation).toBe(2n);
    expect(consumer.sets).toEqual(again.sets);
    await first[Symbol.asyncDispose]();
    await world.end();
  });

  test(
    "ten times the ring's capacity at once leaves every consumer with the right " + "state",
    async () => {
      const world = await start();
      const blocks = new Blocks(60_000);
      const ring = { changesMax: 500, blocksMax: 5_000 };
      await using one = await host(world.open, blocks, { ring });
      using consumer = new Consumer(await world.open(), CLUSTER, WORKER);
      await waitFor(() => consumer.heartbeats.length > 0);
      for (let round = 0; round < 10; round++) blocks.churn(5_000, 50_000);
      one.residency.flush();
      expect(one.residency.ring.blocks).toBeLessThanOrEqual(5_000);
      const beats = consumer.heartbeats.length;
      await waitFor(() => consumer.heartbeats.length > beats + 1);
      await consumer.catchUp();
      expect(digestsOf(consumer.sets)).toEqual([...one.residency.heartbeat().digests]);
      expect(consumer.sets).toEqual(blocks.sets);
      await world.end();
    },
  );
}

describe("a rank on a bus inside the process", () => {
  contract(async () => {
    const hub = new LocalHub();
    const basics = { clock: systemClock, random: systemRandom };
    return {
      open: (limits = {}) =>
        connected(createLocalBus(hub, { ...basics, limits: { ...FAST, ...limits } })),
      end: async () => undefined,
    };
  });
});

describeNats("a rank on NATS", () => {
  for (const carrier of ["tcp", "ws"] as const) {
    const nats = async () => {
      const server = await NatsServer.start();
      const url = carrier === "tcp" ? server.tcpUrl : server.wsUrl;
      const basics = { clock: systemClock, random: systemRandom, name: "feed" };
      const open: Open = (limits = {}) =>
        connected(openBus({ ...basics, url, limits: { ...FAST, ...limits } }));
      return { server, open, end: () => server[Symbol.asyncDispose]() };
    };

    describe(`by ${carrier}`, () => {
      contract(nats);

      test("a killed broker leaves every consumer with the right state", async () => {
        const { server, open } = await nats();
        const blocks = new Blocks();
        await using one = await host(open, blocks);
        const bus = await open();
        using consumer = new Consumer(bus, CLUSTER, WORKER);
        // The broker knows the subscription: later messages arrive.
        await waitFor(() => consumer.heartbeats.length > 0);
        blocks.churn(300);
        await agreed(consumer, one.residency);
        await server.kill();
        await waitFor(() => one.bus.state.status === "reconnecting");
        for (let i = 0; i < 20; i++) {
          blocks.churn(50);
          one.residency.flush();
        }
        expect(one.publisher.state.unsent).toBeGreaterThan(0);
        await server.restart();
        const beats = consumer.heartbeats.length;
        await waitFor(() => bus.state.status === "connected" && consumer.heartbeats.length > beats);
        expect(consumer.heartbeats.at(-1)!.lastSequence).toBeGreaterThan(consumer.sequence);
        await consumer.catchUp();
        expect(consumer.sets).toEqual(blocks.sets);
        blocks.churn(50);
        await agreed(consumer, one.residency);
        await server[Symbol.asyncDispose]();
      });

      test("a stalled broker delays nothing on this host", async () => {
        const { server, open } = await nats();
        const blocks = new Blocks(60_000);
        const small = { queueMessages: 50, queueBytes: 2 ** 20, windowBytes: 2 ** 18 };
        await using one = await host(() => open(small), blocks);
        using consumer = new Consumer(await open(), CLUSTER, WORKER);
        await waitFor(() => consumer.heartbeats.length > 0);
        await server.pause();
        for (let i = 0; i < 200; i++) {
          blocks.churn(200, 50_000);
          one.residency.flush();
        }
        const { unsent } = one.publisher.state;
        expect(unsent).toBeGreaterThan(0);
        expect(one.bus.state.queuedMessages).toBeLessThanOrEqual(50);
        await server.resume();
        const beats = consumer.heartbeats.length;
        await waitFor(() => consumer.heartbeats.length > beats + 1, 15_000);
        await consumer.catchUp();
        await agreed(consumer, one.residency);
        expect(consumer.sets).toEqual(blocks.sets);
        await server[Symbol.asyncDispose]();
      });
    });
  }
});
