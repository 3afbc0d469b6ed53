import { afterAll, describe, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { jetstreamManager } from "@nats-io/jetstream";
import { Objm } from "@nats-io/obj";
import { connect } from "@nats-io/transport-node";
import { type Bus, openBus } from "../../../src/bus/index.ts";
import { systemClock, systemRandom, type WorkerId } from "../../../src/core/index.ts";
import {
  decodeStoredSnapshot,
  eventsStream,
  eventsSubject,
  snapshotBucket,
  snapshotObject,
} from "../../../src/events/index.ts";
import {
  BusPublisher,
  type HostResidencyOptions,
  StreamPublisher,
} from "../../../src/events/publishing/index.ts";
import { basics, FAST } from "../../bus/bus-bench.ts";
import { describeNats, NatsServer, waitFor } from "../../support/index.ts";
import { Blocks, CLUSTER, Consumer, feedsOf, WORKER } from "./publishing-kit.ts";

const STREAM = eventsStream(CLUSTER);
const BUCKET = snapshotBucket(CLUSTER);
const OF = { worker: WORKER, rank: 0 };
const opened: Bus[] = [];
afterAll(() => Promise.all(opened.map((bus) => bus.close(0))));

async function open(url: string): Promise<Bus> {
  const basics = { clock: systemClock, random: systemRandom, limits: FAST, name: "feed" };
  const bus = openBus({ ...basics, url });
  opened.push(bus);
  expect(await bus.connected(5_000)).toBe(true);
  return bus;
}

async function asOperator<T>(
  server: NatsServer,
  use: (nc: Awaited<ReturnType<typeof connect>>) => Promise<T>,
): Promise<T> {
  const nc = await connect({ servers: `127.0.0.1:${server.tcpPort}`, reconnect: false });
  try {
    return await use(nc);
  } finally {
    await nc.close();
  }
}

const makeStream = (server: NatsServer) =>
  asOperator(server, async (nc) => {
    const subjects = [eventsSubject(CLUSTER, { worker: "*", rank: "*" })];
    await (await jetstreamManager(nc)).streams.add({ name: STREAM, subjects });
  });
const makeBucket = (server: NatsServer) =>
  asOperator(server, async (nc) => void (await new Objm(nc).create(BUCKET)));
const messagesIn = (server: NatsServer) =>
  asOperator(server, async (nc) => {
    return (await (await jetstreamManager(nc)).streams.info(STREAM)).state.messages;
  });

interface HostOptions extends Partial<HostResidencyOptions> {
  readonly snapshotMessages?: number;
}

async function host(url: string, blocks: Blocks, options: HostOptions = {}) {
  const { snapshotMessages = 1_000_000, ...feedOptions } = options;
  const bus = await open(url);
  const feeds = feedsOf(blocks, { mode: "stream", ...feedOptions });
  const residency = feeds.logs[0]!;
  const common = { residency, bus, cluster: CLUSTER, clock: systemClock };
  const publisher = new BusPublisher({ ...common, sendsBatches: false });
  const stream = new StreamPublisher({
    ...{ ...common, snapshots: publisher.snapshots, durable: bus.durable! },
    ...{ stream: STREAM, bucket: BUCKET, snapshotMessages, snapshotEveryMs: 600_000 },
    log: () => undefined,
  });
  return {
    ...{ bus, feeds, residency, publisher, stream },
    /** Changes the table and publishes in many small messages. */
    async churn(rounds: number, each = 20) {
      for (let i = 0; i < rounds; i++) {
        blocks.churn(each);
        residency.flush();
        await waitFor(() => stream.state.behind === 0);
      }
    },
    async [Symbol.asyncDispose]() {
      await stream[Symbol.asyncDispose]();
      await publisher[Symbol.asyncDispose]();
      feeds[Symbol.dispose]();
    },
  };
}

/** A consumer that joins late: the stored snapshot, then the stream, without a query. */
async function readAll(server: NatsServer, url: string, name: string, until: number) {
  const bus = await open(url);
  const silent = await open(url);
  const consumer = new Consumer(silent, "nobody", WORKER);
  const object = await bus.durable!.objects(BUCKET).get(snapshotObject(OF), 2 ** 24);
  if (object.kind === "value") {
    const read = decodeStoredSnapshot(object.data);
    if (!read.ok) throw new Error(read.why);
    consumer.replace(read.value);
  }
  const options = { stream: STREAM, consumer: name, subject: eventsSubject(CLUSTER, OF) };
  const consumption = bus.durable!.consume(options, async ({ data }) => consumer.take(data));
  await waitFor(() => consumer.sequence >= until, 10_000);
  await consumption[Symbol.asyncDispose]();
  expect([consumer.gaps, consumer.refused]).toEqual([0, []]);
  await messagesIn(server);
  return consumer;
}

describeNats("a rank in a stream", () => {
  for (const carrier of ["tcp", "ws"] as const) {
    const start = async () => {
      const server = await NatsServer.start({ jetStream: true });
      return { server, url: carrier === "tcp" ? server.tcpUrl : server.wsUrl };
    };

    describe(`by ${carrier}`, () => {
      test("snapshot and stream give a late consumer the current state", async () => {
        const { server, url } = await start();
        await makeStream(server);
        await makeBucket(server);
        const blocks = new Blocks();
        const one = await host(url, blocks);
        using live = new Consumer(await open(url), CLUSTER, WORKER);
        // The broker knows the subscription: what is published from here on arrives.
        await waitFor(() => live.heartbeats.length > 0);
        await one.churn(30);
        await waitFor(() => one.stream.state.storedSnapshots === 1);
        expect(one.stream.state).toMatchObject({ status: "publishing", why: null, holes: 0 });
        await waitFor(() => live.agreesWith(one.residency));
        expect(live.heartbeats.at(-1)?.mode).toBe("stream");
        // The host is gone permanently; its messages remain.
        const last = one.residency.lastSequence;
        await one[Symbol.asyncDispose]();
        using late = await readAll(server, url, "late", last);
        expect(late.sets).toEqual(blocks.sets);
        // Heartbeats are not kept, except for the first one.
        expect(live.heartbeats.length).toBeGreaterThan(2);
        expect(late.heartbeats.length).toBeLessThanOrEqual(1);
        await server[Symbol.asyncDispose]();
      });

      test("a stored snapshot lets the stream delete the changes it covers", async () => {
        const { server, url } = await start();
        await makeStream(server);
        await makeBucket(server);
        const blocks = new Blocks();
        await using one = await host(url, blocks, { snapshotMessages: 5 });
        await waitFor(async () => {
          await one.churn(3);
          return one.stream.state.storedSnapshots >= 3;
        });
        await waitFor(async () => (await messagesIn(server)) <= 6, 15_000);
        using late = await readAll(server, url, "late", one.residency.lastSequence);
        expect(late.sets).toEqual(blocks.sets);
        await server[Symbol.asyncDispose]();
      });

      test("a returning broker gets the changes in the ring, or a snapshot", async () => {
        const { server, url } = await start();
        await makeStream(server);
        await makeBucket(server);
        const blocks = new Blocks();
        const ring = { changesMax: 2_000, blocksMax: 100_000 };
        await using one = await host(url, blocks, { ring });
        await one.churn(5);
        await waitFor(() => one.stream.state.storedSnapshots === 1);
        await server.kill();
        blocks.churn(200);
        one.residency.flush();
        await waitFor(() => one.stream.state.status === "waiting");
        expect(one.stream.state.behind).toBeGreaterThan(0);
        await server.restart();
        await waitFor(() => one.stream.state.behind === 0, 15_000);
        expect(one.stream.state).toMatchObject({ holes: 0, storedSnapshots: 1 });
        using first = await readAll(server, url, "first", one.residency.lastSequence);
        expect(first.sets).toEqual(blocks.sets);
        // More changes than the ring keeps.
        await server.kill();
        for (let i = 0; i < 200; i++) {
          blocks.churn(50);
          one.residency.flush();
        }
        expect(one.stream.state.behind).toBeGreaterThan(2_000);
        await server.restart();
        await waitFor(() => one.stream.state.behind === 0, 15_000);
        await waitFor(() => one.stream.state.storedSnapshots === 2, 15_000);
        expect(one.stream.state).toMatchObject({ holes: 1, status: "publishing" });
        using second = await readAll(server, url, "second", one.residency.lastSequence);
        expect(second.sets).toEqual(blocks.sets);
        await server[Symbol.asyncDispose]();
      });

      test("a missing stream or bucket is reported, and used as soon as it exists", async () => {
        const { server, url } = await start();
        const blocks = new Blocks();
        await using one = await host(url, blocks);
        blocks.churn(100);
        await waitFor(() => one.stream.state.status === "refused");
        expect(one.stream.state.why).toBe("no stream of the server accepts this subject");
        await makeStream(server);
        await waitFor(() => one.stream.state.behind === 0, 15_000);
        await waitFor(() => /not found/.test(one.stream.state.why ?? ""), 15_000);
        await makeBucket(server);
        await waitFor(() => one.stream.state.status === "publishing", 15_000);
        expect(one.stream.state.storedSnapshots).toBe(1);
        await server[Symbol.asyncDispose]();
      });

      test("closing is quick while the broker is stopped", async () => {
        const { server, url } = await start();
        await makeStream(server);
        await makeBucket(server);
        const blocks = new Blocks();
        const one = await host(url, blocks, { snapshotMessages: 1 });
        await one.churn(3);
        await server.pause();
        // The broker has been asked for a message and a snapshot.
        blocks.churn(50);
        one.residency.flush();
        const made = one.publisher.snapshots.made;
        await waitFor(() => one.publisher.snapshots.made > made, 15_000);
        let isOver = false;
        const ending = one[Symbol.asyncDispose]().then(() => {
          isOver = true;
        });
        // One call of the object store may take half a minute.
        await waitFor(() => isOver, 15_000);
        await ending;
        server.resume();
        await server[Symbol.asyncDispose]();
      });

      test("another run replaces the previous one", async () => {
        const { server, url } = await start();
        await makeStream(server);
        await makeBucket(server);
        const before = new Blocks();
        const first = await host(url, before);
        await first.churn(10);
        await first[Symbol.asyncDispose]();
        const blocks = new Blocks(4_096, 2);
        await using second = await host(url, blocks, { incarnation: 2n });
        await second.churn(10);
        await waitFor(() => second.stream.state.storedSnapshots === 1);
        using late = await readAll(server, url, "late", second.residency.lastSequence);
        expect(late.incarnation).toBe(2n);
        expect(late.sets).toEqual(blocks.sets);
        await server[Symbol.asyncDispose]();
      });
    });
  }
});

const page = readFileSync(join(import.meta.dir, "../../../docs/operating/operations.md"), "utf8");
const [, block = ""] = /```conf\n(authorization [\s\S]*?)```/.exec(page) ?? [];
const OPERATOR_STREAM = "kv-events-hearth";
const OPERATOR_BUCKET = "kv-snapshots-hearth";

describeNats("under the permissions of docs/operating/operations.md", () => {
  for (const carrier of ["tcp", "ws"] as const) {
    test(`an agent writes its stream and its snapshots, by ${carrier}`, async () => {
      await using server = await NatsServer.start({ jetStream: true, lines: block.split("\n") });
      const nc = await connect({
        ...{ servers: `127.0.0.1:${server.tcpPort}`, user: "operator", pass: "change-me-3" },
        inboxPrefix: "_INBOX.operator",
      });
      const { streams } = await jetstreamManager(nc);
      await streams.add({ name: OPERATOR_STREAM, subjects: ["kv-events-hearth.*.*"] });
      await new Objm(nc).create(OPERATOR_BUCKET);
      const place = new URL(carrier === "tcp" ? server.tcpUrl : server.wsUrl).host;
      const url = `${carrier === "tcp" ? "nats" : "ws"}://agent-gpu-01:change-me-1@${place}`;
      const bus = openBus({ ...basics(), url, name: "agent", inboxPrefix: "_INBOX.gpu-01" });
      expect(await bus.connected(5_000)).toBe(true);
      const blocks = new Blocks();
      using feeds = feedsOf(blocks, { worker: "gpu-01" as WorkerId, mode: "stream" });
      const residency = feeds.logs[0]!;
      const common = { residency, bus, cluster: "hearth", clock: systemClock };
      await using publisher = new BusPublisher({ ...common, sendsBatches: false });
      const { snapshots } = publisher;
      await using stream = new StreamPublisher({
        ...{
          ...common,
          snapshots,
          durable: bus.durable!,
          stream: OPERATOR_STREAM,
          bucket: OPERATOR_BUCKET,
        },
        ...{ snapshotMessages: 1, snapshotEveryMs: 600_000, log: () => undefined },
      });
      for (let round = 0; round < 2; round++) {
        blocks.churn(50);
        residency.flush();
        const before = stream.state.storedSnapshots;
        // A snapshot that replaces another one, followed by a purge.
        await waitFor(() => stream.state.storedSnapshots > before, 15_000);
      }
      await waitFor(() => stream.state.behind === 0);
      await waitFor(() => stream.state.status === "publishing" || stream.state.why, 15_000);
      expect(stream.state).toMatchObject({ status: "publishing", why: null });
      expect(bus.state.refusedSubjects).toEqual([]);
      const { messages } = (await streams.info(OPERATOR_STREAM)).state;
      expect(messages).toBeLessThan(4);
      await stream[Symbol.asyncDispose]();
      await publisher[Symbol.asyncDispose]();
      await bus.close(100);
      await nc.close();
    });
  }
});
