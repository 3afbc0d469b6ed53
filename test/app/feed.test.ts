import { expect, test } from "bun:test";
import { join } from "node:path";
import { jetstreamManager } from "@nats-io/jetstream";
import { Objm } from "@nats-io/obj";
import { connect } from "@nats-io/transport-node";
import { type Bus, openBus } from "../../src/bus/index.ts";
import type { WorkerId } from "../../src/core/index.ts";
import { decodeStoredSnapshot } from "../../src/kvevents/index.ts";
import { basics } from "../bus/bus-bench.ts";
import { Consumer, digestsOf } from "../feed/consumer.ts";
import { describeNats, NatsServer, waitFor, withTempDir } from "../support/index.ts";
import { chain } from "../tiers/names.ts";
import { AgentProcess, type ConfigKeys } from "./agent-process.ts";

const TIMEOUT_MS = 60_000;
const WORKER = "gpu-01" as WorkerId;

async function open(server: NatsServer): Promise<Bus> {
  const bus = openBus({ ...basics(), url: server.tcpUrl, name: "listener" });
  expect(await bus.connected(5_000)).toBe(true);
  return bus;
}

function configOf(server: NatsServer, folder: string, events: ConfigKeys["events"]): ConfigKeys {
  return {
    node: { id: WORKER },
    kv: { ssd_dir: join(folder, "ssd"), ssd_gib: 0.25 },
    nats: { url: server.tcpUrl },
    events: { cluster: "test", heartbeat: "100ms", ...events },
  };
}

/** What the host says it has is what the consumer has, and so many blocks of it. */
async function holds(consumer: Consumer, host: number, disk: number): Promise<void> {
  await waitFor(
    async () => {
      const latest = consumer.heartbeats.at(-1);
      if (latest === undefined) return false;
      // What was told before there was a connection is asked for.
      if (consumer.sequence < latest.lastSequence) await consumer.catchUp();
      if (!consumer.agreesWith(latest)) return false;
      return consumer.sets.host.size === host && consumer.sets.disk.size === disk;
    },
    TIMEOUT_MS,
    `${host} blocks in RAM and ${disk} on SSD`,
  );
}

describeNats("what an agent tells of its blocks", () => {
  test(
    "is what it has: while it runs, after it was killed, and to its last word",
    () =>
      withTempDir(async (folder) => {
        await using server = await NatsServer.start();
        const bus = await open(server);
        using consumer = new Consumer(bus, "test", WORKER);
        const config = configOf(server, folder, {});
        const first = await AgentProcess.start({ config, folder });
        const names = chain("a/b/c/d/e");
        {
          await using engine = await first.connect();
          await engine.put(...names);
          await engine.reserve("never/committed");
          await holds(consumer, 5, 5);
          const { spaces } = consumer.heartbeats.at(-1)!;
          expect(spaces).toHaveLength(1);
          expect(spaces[0]).toMatchObject({ kind: "blocks", model: "test" });
          const { feed } = await first.status();
          expect(feed).toMatchObject({ mode: "ring", cluster: "test", ranks: 1, stream: null });
          expect(feed).toMatchObject({ host_blocks: 5, disk_blocks: 5, device_blocks: 0 });
          expect(await first.metric("hearth_feed_messages_total", "unsent")).toBe(0);
        }
        const before = consumer.incarnation;
        await first.kill("SIGKILL");
        // Its SSD is still there, and so it says.
        const second = await AgentProcess.start({ config, folder });
        await holds(consumer, 0, 5);
        expect(consumer.incarnation).toBeGreaterThan(before);
        using late = new Consumer(bus, "test", WORKER);
        await late.snapshot();
        expect(late.sets.disk).toEqual(consumer.sets.disk);
        await second.kill("SIGTERM");
        await waitFor(() => consumer.heartbeats.at(-1)?.isClosing);
        await first[Symbol.asyncDispose]();
        await second[Symbol.asyncDispose]();
        await bus.close(0);
      }),
    TIMEOUT_MS,
  );

  test(
    "is in a stream and a bucket, where it is told so; without them that is the matter",
    () =>
      withTempDir(async (folder) => {
        await using server = await NatsServer.start({ jetStream: true });
        const bus = await open(server);
        using consumer = new Consumer(bus, "test", WORKER);
        const config = configOf(server, folder, { mode: "stream" });
        await using agent = await AgentProcess.start({ config, folder });
        const codes = async () =>
          ((await agent.status()).health as { code: string }[]).map(({ code }) => code);
        await waitFor(async () => (await codes()).includes("FEED_STREAM"), TIMEOUT_MS);
        const nc = await connect({ servers: `127.0.0.1:${server.tcpPort}`, reconnect: false });
        const { streams } = await jetstreamManager(nc);
        await streams.add({ name: "kv-events-test", subjects: ["kv-events-test.*.*"] });
        await new Objm(nc).create("kv-snapshots-test");
        await nc.close();
        await waitFor(async () => !(await codes()).includes("FEED_STREAM"), TIMEOUT_MS);
        await using engine = await agent.connect();
        await engine.put(...chain("a/b/c"));
        await holds(consumer, 3, 3);
        expect((await agent.status()).feed.stream).toMatchObject({ status: "publishing" });
        const object = await bus.durable!.objects("kv-snapshots-test").get("gpu-01.0", 2 ** 20);
        if (object.kind !== "value") throw new Error(object.kind);
        expect(decodeStoredSnapshot(object.data).ok).toBe(true);
        expect(digestsOf(consumer.sets)).toEqual([...consumer.heartbeats.at(-1)!.digests]);
        await bus.close(0);
      }),
    TIMEOUT_MS,
  );

  test(
    "is nothing where it is told to say nothing",
    () =>
      withTempDir(async (folder) => {
        await using server = await NatsServer.start();
        const config = configOf(server, folder, { mode: "off" });
        await using agent = await AgentProcess.start({ config, folder });
        expect((await agent.status()).feed).toBeNull();
      }),
    TIMEOUT_MS,
  );
});
