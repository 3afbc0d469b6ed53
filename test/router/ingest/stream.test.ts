import { afterAll, expect, test } from "bun:test";
import { jetstreamManager } from "@nats-io/jetstream";
import { Objm } from "@nats-io/obj";
import { connect } from "@nats-io/transport-node";
import { type Bus, openBus } from "../../../src/bus/index.ts";
import { systemClock, systemRandom, type WorkerId } from "../../../src/core/index.ts";
import { ANY, eventsStream, eventsSubject, snapshotBucket } from "../../../src/events/index.ts";
import {
  BusPublisher,
  EngineBlockSet,
  ResidencyLog,
  StreamPublisher,
} from "../../../src/events/publishing/index.ts";
import type { ResidencyChange } from "../../../src/observability/activity/index.ts";
import { IndexSync, WorkerTable } from "../../../src/router/index.ts";
import { sameDigests } from "../../../src/router/ingest/index.ts";
import { FAST } from "../../bus/bus-bench.ts";
import { describeNats, NatsServer, waitFor } from "../../support/index.ts";
import { ReferenceIndex } from "../prefix-index/reference-index.ts";
import { QUICK } from "./ingest-kit.ts";
import { CLUSTER, SPACE, stored } from "./scripted-worker.ts";

const STREAM = eventsStream(CLUSTER);
const BUCKET = snapshotBucket(CLUSTER);
const ends: (() => Promise<unknown>)[] = [];
afterAll(async () => {
  for (const end of ends.reverse()) await end();
});

async function withStream(): Promise<NatsServer> {
  const server = await NatsServer.start({ jetStream: true });
  ends.push(() => server[Symbol.asyncDispose]());
  const nc = await connect({ servers: `127.0.0.1:${server.tcpPort}`, reconnect: false });
  const subjects = [eventsSubject(CLUSTER, ANY)];
  await (await jetstreamManager(nc)).streams.add({ name: STREAM, subjects });
  await new Objm(nc).create(BUCKET);
  await nc.close();
  return server;
}

async function open({ tcpUrl: url }: NatsServer): Promise<Bus> {
  const basics = { clock: systemClock, random: systemRandom, limits: FAST };
  const bus = openBus({ ...basics, url, name: "stream" });
  ends.push(() => bus.close(0));
  expect(await bus.connected(5_000)).toBe(true);
  return bus;
}

/** A worker whose changes go into the stream, and that answers no questions. */
async function muteWorker(server: NatsServer, snapshotMessages = 1_000_000) {
  const bus = await open(server);
  const { subscribe } = bus;
  const nowhere = (subject: string) => ({ subject, unsubscribe: () => undefined });
  bus.subscribe = (subject, ...rest) =>
    subject.startsWith("kv-events-ask") ? nowhere(subject) : subscribe.call(bus, subject, ...rest);
  const held = new EngineBlockSet(100_000);
  const residency = new ResidencyLog({
    source: { worker: "mute" as WorkerId, rank: 0, incarnation: 5n },
    ring: { changesMax: 1_000, blocksMax: 100_000 },
    ...{ mode: "stream", everyMs: 100, held: [held] },
    spaces: () => [SPACE],
    flush: () => undefined,
  });
  const common = { residency, bus, cluster: CLUSTER, clock: systemClock };
  const publisher = new BusPublisher({ ...common, sendsBatches: false });
  const stream = new StreamPublisher({
    ...{ ...common, snapshots: publisher.snapshots, durable: bus.durable! },
    ...{ stream: STREAM, bucket: BUCKET, snapshotMessages, snapshotEveryMs: 3_600_000 },
    log: () => undefined,
  });
  ends.push(async () => {
    await stream[Symbol.asyncDispose]();
    await publisher[Symbol.asyncDispose]();
  });
  const change = (...changes: ResidencyChange[]) => residency.push(held.apply(changes));
  return { held, change, stream };
}

async function router(server: NatsServer, name: string, resetStates = false) {
  const bus = await open(server);
  const [index, table] = [new ReferenceIndex(), new WorkerTable()];
  const sync = new IndexSync({
    ...{ bus, index, table, clock: systemClock, random: systemRandom, cluster: CLUSTER },
    log: () => undefined,
    load: { requestExpiryMs: 300_000 },
    ...{ blockTokens: 16, ingest: QUICK, isConfigured: () => false, replicas: null, keep: null },
    applyThresholds: () => true,
    ...{ streamConsumer: name, resetStates },
  });
  ends.push(() => sync[Symbol.asyncDispose]());
  await sync.begin();
  const agrees = (held: EngineBlockSet) => {
    const target = table.find("mute" as WorkerId, 0);
    if (target?.isKnown !== true) return false;
    return sameDigests(index.digests(target.id)!, held.digests);
  };
  return { sync, agrees, table };
}

describeNats("a stream of events", () => {
  test("a stream and stored snapshots bring up a router whose workers do not answer", async () => {
    const server = await withStream();
    const worker = await muteWorker(server, 5);
    for (let hash = 1n; hash <= 40n; hash++) worker.change(stored("device", hash));
    await waitFor(() => worker.stream.state.storedSnapshots > 0, 10_000);
    worker.change({ kind: "removed", tier: "device", hashes: BigUint64Array.of(3n, 4n) });
    const first = await router(server, "router-1");
    await waitFor(() => first.agrees(worker.held), 15_000);
    expect(first.sync.fromStore.taken).toBe(1);
    worker.change(stored("host", 100n, 101n));
    await waitFor(() => first.agrees(worker.held), 10_000);
    expect(first.sync.stream!.state.status).toBe("consuming");
  });

  test("a router with resetStates discards the stream", async () => {
    const server = await withStream();
    const worker = await muteWorker(server, 5);
    for (let hash = 1n; hash <= 20n; hash++) worker.change(stored("device", hash));
    await waitFor(() => worker.stream.state.storedSnapshots > 0, 10_000);
    await waitFor(() => worker.stream.state.behind === 0, 10_000);
    const again = await router(server, "router-2", true);
    const bus = await open(server);
    expect(await bus.durable!.objects(BUCKET).list()).toEqual([]);
    await waitFor(() => again.table.targets.length === 1);
    expect(again.agrees(worker.held)).toBe(false);
  });
});
