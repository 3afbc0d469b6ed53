import { afterAll, describe, expect, test } from "bun:test";
import { jetstreamManager } from "@nats-io/jetstream";
import { Objm } from "@nats-io/obj";
import { connect } from "@nats-io/transport-node";
import { type Bus, openBus } from "../../src/bus/index.ts";
import { describeNats, NatsServer, waitFor } from "../support/index.ts";
import { basics, bytes } from "./bus-bench.ts";

const MIB = 2 ** 20;
const opened: Bus[] = [];
afterAll(() => Promise.all(opened.map((bus) => bus.close(0))));

async function open(url: string) {
  const bus = openBus({ ...basics(), url, name: "objects" });
  opened.push(bus);
  expect(await bus.connected(5_000)).toBe(true);
  return { bus, durable: bus.durable! };
}

/** Runs `use` with an operator's permissions. */
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

const makeBucket = (server: NatsServer, name: string) =>
  asOperator(server, (nc) => new Objm(nc).create(name));

/** Bytes in which no two pieces are equal. */
function large(length: number): Uint8Array {
  return new Uint8Array(length).map((_, at) => (at * 2_654_435_761) >>> 24);
}

describeNats("objects in a broker", () => {
  for (const carrier of ["tcp", "ws"] as const) {
    const urlOf = (server: NatsServer) => (carrier === "tcp" ? server.tcpUrl : server.wsUrl);

    describe(`over ${carrier}`, () => {
      test("are returned complete and unchanged, also after being replaced", async () => {
        await using server = await NatsServer.start({ jetStream: true });
        await makeBucket(server, "snapshots");
        const { durable } = await open(urlOf(server));
        const objects = durable.objects("snapshots");
        expect(await objects.list()).toEqual([]);
        expect(await objects.get("w1.0", MIB)).toEqual({ kind: "missing" });
        const first = large(3 * MIB + 17);
        expect(await objects.put("w1.0", first)).toEqual({ kind: "done" });
        const read = await objects.get("w1.0", 4 * MIB);
        expect(read.kind === "value" && Buffer.compare(read.data, first)).toBe(0);
        expect(await objects.get("w1.0", MIB)).toEqual({ kind: "too_large" });
        expect(await objects.put("w1.0", bytes("less"))).toEqual({ kind: "done" });
        expect(await objects.put("w2.0", new Uint8Array(0))).toEqual({ kind: "done" });
        const list = (await objects.list()) ?? [];
        expect([...list].sort((a, b) => a.name.localeCompare(b.name))).toEqual([
          { name: "w1.0", bytes: 4 },
          { name: "w2.0", bytes: 0 },
        ]);
        expect(await objects.get("w2.0", MIB)).toMatchObject({ kind: "value" });
        expect(await objects.delete("w1.0")).toEqual({ kind: "done" });
        expect(await objects.delete("w1.0")).toEqual({ kind: "done" });
        expect(await objects.get("w1.0", MIB)).toEqual({ kind: "missing" });
        expect(await objects.put("two words", bytes("x"))).toMatchObject({ kind: "refused" });
      });

      test("are unavailable without their bucket and without an answer", async () => {
        await using server = await NatsServer.start({ jetStream: true });
        const { bus, durable } = await open(urlOf(server));
        const objects = durable.objects("none");
        expect(await objects.put("a", bytes("x"))).toMatchObject({ kind: "refused" });
        expect(await objects.get("a", MIB)).toEqual({ kind: "missing" });
        expect(await objects.list()).toBeNull();
        const names = await asOperator(server, async (nc) => {
          return (await jetstreamManager(nc)).streams.names().next();
        });
        expect(names).toEqual([]);
        await makeBucket(server, "none");
        expect(await objects.put("a", large(MIB))).toEqual({ kind: "done" });
        await server.kill();
        expect((await objects.put("a", bytes("x"))).kind).toBe("unreachable");
        expect((await objects.get("a", MIB)).kind).toBe("unreachable");
        await waitFor(() => bus.state.status === "reconnecting");
        expect(await objects.list()).toBeNull();
      });

      test("a call ends when its connection ends", async () => {
        await using server = await NatsServer.start({ jetStream: true });
        await makeBucket(server, "snapshots");
        const { durable } = await open(urlOf(server));
        const objects = durable.objects("snapshots");
        await objects.put("a", large(MIB));
        await server.pause();
        const calls = [objects.get("a", MIB), objects.put("a", large(MIB))];
        await server.kill();
        const outcomes = await Promise.all(calls);
        expect(outcomes.map(({ kind }) => kind)).toEqual(["unreachable", "unreachable"]);
      });

      test("purge removes one subject of a stream up to a sequence number", async () => {
        await using server = await NatsServer.start({ jetStream: true });
        await asOperator(server, async (nc) =>
          (await jetstreamManager(nc)).streams.add({ name: "S", subjects: ["s.*"] }),
        );
        const { durable } = await open(urlOf(server));
        const numbers: number[] = [];
        for (const id of ["1", "2", "3", "4"]) {
          const subject = id === "2" ? "s.other" : "s.mine";
          const sent = await durable.publish(subject, bytes(id), { id, timeoutMs: 5_000 });
          if (sent.kind === "acknowledged") numbers.push(sent.sequence);
        }
        expect(await durable.purge("S", "s.mine", numbers[2]!)).toEqual({ kind: "done" });
        const left = await asOperator(server, async (nc) => {
          const { streams } = await jetstreamManager(nc);
          const { state } = await streams.info("S", { subjects_filter: ">" });
          return state.subjects;
        });
        expect(left).toEqual({ "s.mine": 1, "s.other": 1 });
        expect(await durable.purge("none", "s.mine", 1)).toMatchObject({ kind: "refused" });
      });
    });
  }
});
