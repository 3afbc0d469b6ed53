import { expect, test } from "bun:test";
import { join } from "node:path";
import { jetstreamManager } from "@nats-io/jetstream";
import { Objm } from "@nats-io/obj";
import { connect } from "@nats-io/transport-node";
import { type Bus, openBus } from "../../src/bus/index.ts";
import { systemClock, systemRandom, type WorkerId } from "../../src/core/index.ts";
import {
  decodeEngineBatch,
  decodeStoredSnapshot,
  type EngineEvent,
} from "../../src/events/index.ts";
import { ZmqPublisher } from "../../src/events/publishing/index.ts";
import { basics } from "../bus/bus-bench.ts";
import { localHashes, sequenceHashes } from "../events/literal-hashes.ts";
import { Consumer, digestsOf } from "../events/publishing/publishing-kit.ts";
import { ask, collect } from "../events/zmtp/support.ts";
import { chain } from "../store/names.ts";
import { describeNats, NatsServer, waitFor, withTempDir } from "../support/index.ts";
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
    peers: { cluster: "test" },
    events: { ...events },
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

const BLOCK = 4;

/** An engine as far as its KV events go. */
const mockEngine = (endpoint = "tcp://127.0.0.1:*", replay = endpoint) =>
  ZmqPublisher.open({
    ...{ endpoint, replay, topic: "" },
    ...{ rank: 0, clock: systemClock, random: systemRandom },
  });

const tokensOf = (block: number) =>
  Uint32Array.from({ length: BLOCK }, (_, i) => block * BLOCK + i);

const hashesOf = (blocks: number) => {
  const all = Array.from({ length: blocks }, (_, i) => [...tokensOf(i + 1)]).flat();
  return sequenceHashes(localHashes(Uint32Array.from(all), BLOCK));
};

/** Its own hashes are its own affair. */
function blockStored(block: number, parent: number | null): EngineEvent {
  return {
    ...{ kind: "stored", hashes: [BigInt(7_000 + block)], tokens: tokensOf(block) },
    ...{ parent: parent === null ? null : BigInt(7_000 + parent), blockTokens: BLOCK },
    ...{ loraName: null, loraId: null, medium: "GPU", extras: null, group: null },
    ...{ cacheSalt: null, locality: null, ownership: null, sessionId: null, eagleNext: null },
  };
}

function freePort(): number {
  const listener = Bun.listen({
    hostname: "127.0.0.1",
    port: 0,
    socket: { data: () => undefined },
  });
  const { port } = listener;
  listener.stop(true);
  return port;
}

describeNats("residency events of an agent", () => {
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
          expect(await first.metric("hearth_feed_changes_total")).toBeGreaterThan(1);
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
    "events go to a stream and a bucket if configured; a missing stream raises a health code",
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
        await waitFor(async () => {
          const { stream } = (await agent.status()).feed;
          expect(stream).toMatchObject({ status: "publishing", why: null });
          return true;
        }, TIMEOUT_MS);
        const object = await bus.durable!.objects("kv-snapshots-test").get("gpu-01.0", 2 ** 20);
        if (object.kind !== "value") throw new Error(object.kind);
        expect(decodeStoredSnapshot(object.data).ok).toBe(true);
        expect(digestsOf(consumer.sets)).toEqual([...consumer.heartbeats.at(-1)!.digests]);
        await bus.close(0);
      }),
    TIMEOUT_MS,
  );

  test(
    "events include the engine's GPU blocks, over NATS and ZMQ",
    () =>
      withTempDir(async (folder) => {
        await using server = await NatsServer.start();
        const bus = await open(server);
        using consumer = new Consumer(bus, "test", WORKER);
        await using vllm = await mockEngine();
        const { endpoint, replay } = vllm.state;
        vllm.publish([blockStored(1, null), blockStored(2, 1)]);
        const [zmq, zmqReplay] = [`tcp://127.0.0.1:${freePort()}`, `tcp://127.0.0.1:${freePort()}`];
        const config = configOf(server, folder, { zmq, zmq_replay: zmqReplay });
        const kv = { kv_events: endpoint, kv_events_replay: replay, kv_events_model: "m" };
        const engine = { ...kv, kv_events_block_tokens: BLOCK };
        await using agent = await AgentProcess.start({ config: { ...config, engine }, folder });
        await using dealer = ask(zmqReplay);
        await using sub = collect(zmq);
        const onDevice = (count: number) =>
          waitFor(
            async () => {
              const latest = consumer.heartbeats.at(-1);
              if (latest === undefined) return false;
              if (consumer.sequence < latest.lastSequence) await consumer.catchUp();
              return consumer.agreesWith(latest) && consumer.sets.device.size === count;
            },
            TIMEOUT_MS,
            `${count} blocks on the GPU`,
          );
        // What it had before the agent was there, by its replay.
        await onDevice(2);
        const space = { kind: "tokens", model: "m", blockTokens: BLOCK } as const;
        expect(consumer.heartbeats.at(-1)?.spaces).toEqual([space]);
        expect([...consumer.sets.device]).toEqual([...hashesOf(2)]);
        await waitFor(() => sub.state.status === "connected");
        await waitFor(() => agent.metric("hearth_feed_zmq_subscribers"));
        vllm.publish([blockStored(3, 2)]);
        await onDevice(3);
        const third = hashesOf(3)[2]!;
        const heard = () =>
          sub.messages
            .map(([, , batch]) => decodeEngineBatch(batch!))
            .flatMap((read) => (read.ok ? read.value.events : []))
            .find((event) => event.kind === "stored" && event.hashes.includes(third));
        expect(await waitFor(heard)).toMatchObject({ medium: "GPU", tokens: tokensOf(3) } as never);
        await waitFor(() => dealer.state.status === "connected");
        dealer.send([new Uint8Array(0), new Uint8Array(8)]);
        await waitFor(() => dealer.messages.length >= 3);
        vllm.publish([{ kind: "cleared", ownership: null }]);
        await onDevice(0);
        const { feed } = await agent.status();
        expect(feed.engine).toMatchObject({ heard: 1, known: 1, blocks: 0, gaps: 0 });
        vllm.publish([blockStored(1, null), blockStored(2, 1)]);
        await onDevice(2);
        // Killed, and there again with nothing but one block.
        await vllm[Symbol.asyncDispose]();
        const isMissed = async () =>
          JSON.stringify((await agent.status()).health).includes("FEED_ENGINE");
        await waitFor(isMissed, TIMEOUT_MS);
        await using again = await mockEngine(endpoint, replay!);
        again.publish([blockStored(1, null)]);
        await onDevice(1);
        await waitFor(async () => !(await isMissed()), TIMEOUT_MS);
        await bus.close(0);
      }),
    TIMEOUT_MS,
  );

  test(
    "an agent with publishing disabled publishes nothing",
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
