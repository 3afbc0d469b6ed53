import { afterAll, describe, expect, test } from "bun:test";
import { AckPolicy, jetstream, jetstreamManager } from "@nats-io/jetstream";
import { Kvm } from "@nats-io/kv";
import { connect } from "@nats-io/transport-node";
import { type Bus, createLocalBus, LocalHub, openBus, Presence } from "../../src/bus/index.ts";
import { describeNats, NatsServer, waitFor } from "../support/index.ts";
import { basics, bytes, type LogLine, text } from "./bus-bench.ts";

const opened: Bus[] = [];
afterAll(() => Promise.all(opened.map((bus) => bus.close(0))));

async function open(url: string, lines: LogLine[] = []) {
  const bus = openBus({ ...basics({}, lines), url, name: "durable" });
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

const makeStream = (server: NatsServer, name: string, subjects: string[]) =>
  asOperator(server, async (nc) => (await jetstreamManager(nc)).streams.add({ name, subjects }));

const acknowledged = (duplicate: boolean, sequence: number) => {
  return { kind: "acknowledged" as const, duplicate, sequence };
};

test("a bus inside the process has no durable storage", async () => {
  const bus = createLocalBus(new LocalHub(), basics());
  expect(bus.durable).toBeNull();
  await bus.close(0);
});

describeNats("durable storage of a broker", () => {
  for (const carrier of ["tcp", "ws"] as const) {
    const urlOf = (server: NatsServer) => (carrier === "tcp" ? server.tcpUrl : server.wsUrl);

    describe(`over ${carrier}`, () => {
      test("a publish is acknowledged once per id, or refused", async () => {
        await using server = await NatsServer.start({ jetStream: true });
        await makeStream(server, "S", ["s.>"]);
        const { bus, durable } = await open(urlOf(server));
        const send = (subject: string, id: string) =>
          durable.publish(subject, bytes("x"), { id, timeoutMs: 2_000, headers: { a: "b" } });
        expect(await send("s.1", "one")).toEqual(acknowledged(false, 1));
        expect(await send("s.1", "one")).toEqual(acknowledged(true, 1));
        expect(await send("s.1", "two")).toEqual(acknowledged(false, 2));
        expect(await send("elsewhere", "x")).toEqual({
          kind: "refused",
          why: "no stream of the server accepts this subject",
        });
        await server.pause();
        const options = { id: "three", timeoutMs: 100 };
        expect(await durable.publish("s.1", bytes("x"), options)).toEqual({ kind: "unreachable" });
        await server.kill();
        await waitFor(() => bus.state.status === "reconnecting");
        expect(await send("s.1", "four")).toEqual({ kind: "unreachable" });
      });

      test("messages stored without a consumer are consumed in order after a restart", async () => {
        await using server = await NatsServer.start({ jetStream: true });
        await makeStream(server, "S", ["s.*"]);
        const [sender, first] = [await open(urlOf(server)), await open(urlOf(server))];
        const send = async (from: number, to: number) => {
          for (let at = from; at < to; at++) {
            const options = { id: String(at), timeoutMs: 5_000, headers: { at: String(at) } };
            const sent = await sender.durable.publish("s.me", bytes(String(at)), options);
            expect(sent.kind).toBe("acknowledged");
            await sender.durable.publish("s.other", bytes("no"), {
              ...options,
              id: `other ${at}`,
            });
          }
        };
        await send(0, 20);
        const seen: string[] = [];
        const options = { stream: "S", consumer: "me", subject: "s.me" };
        const handle = async (message: Parameters<typeof text>[0]) => void seen.push(text(message));
        const consumption = first.durable.consume(options, handle);
        await waitFor(() => seen.length === 20);
        expect(consumption.state).toMatchObject({ status: "consuming", why: null });
        // The consumer's process has ended; messages published meanwhile wait for the next one.
        await consumption[Symbol.asyncDispose]();
        expect(consumption.state).toMatchObject({ status: "closed", handled: 20 });
        await first.bus.close(1_000);
        await send(20, 30);
        const second = await open(urlOf(server));
        const again = second.durable.consume(options, handle);
        await waitFor(() => seen.length === 30);
        await server.restart();
        await waitFor(() => sender.bus.state.reconnects === 1);
        await waitFor(() => second.bus.state.reconnects === 1);
        await send(30, 40);
        await waitFor(() => seen.includes("39"), 15_000);
        // Messages whose acknowledgement the killed broker had not stored are redelivered, never
        // out of order.
        expect([...new Set(seen)]).toEqual(Array.from({ length: 40 }, (_, at) => String(at)));
        // Closing the bus ends the consumption too.
        await second.bus.close(1_000);
        await waitFor(() => again.state.status === "closed");
        await again[Symbol.asyncDispose]();
      });

      test("a message whose handler failed is redelivered", async () => {
        await using server = await NatsServer.start({ jetStream: true });
        await makeStream(server, "S", ["s"]);
        const lines: LogLine[] = [];
        const { durable } = await open(urlOf(server), lines);
        const seen: unknown[] = [];
        const options = { stream: "S", consumer: "me", subject: "s" };
        await using consumption = durable.consume(options, async (message) => {
          seen.push([text(message), message.subject, message.reply, message.headers.a]);
          if (seen.length === 1) throw new Error("not now");
        });
        const sent = { id: "1", timeoutMs: 5_000, headers: { a: "b" } };
        await durable.publish("s", bytes("x"), sent);
        await waitFor(() => consumption.state.handled === 1, 10_000);
        expect(seen).toEqual(Array(2).fill(["x", "s", null, "b"]));
        expect(lines.some(({ fields }) => fields.why === "not now")).toBe(true);
      });

      test("later messages do not overtake a redelivered message", async () => {
        await using server = await NatsServer.start({ jetStream: true });
        await makeStream(server, "S", ["s"]);
        const { durable } = await open(urlOf(server));
        const seen: string[] = [];
        const keys = new Set<string>();
        const options = { stream: "S", consumer: "me", subject: "s" };
        await using consumption = durable.consume(options, async (message) => {
          seen.push(`${text(message)} ${message.delivery}`);
          keys.add(message.key);
          if (text(message) === "1" && message.delivery < 3) throw new Error("not now");
        });
        for (const id of ["0", "1", "2", "3"]) {
          await durable.publish("s", bytes(id), { id, timeoutMs: 5_000 });
        }
        await waitFor(() => consumption.state.handled === 4, 15_000);
        expect(seen).toEqual(["0 1", "1 1", "1 2", "1 3", "2 1", "3 1"]);
        expect([...keys].map((key) => key.split("/").slice(0, 2).join("/"))).toEqual([
          "S/1",
          "S/2",
          "S/3",
          "S/4",
        ]);
      });

      test("a slowly handled message and its successors are delivered once", async () => {
        await using server = await NatsServer.start({ jetStream: true });
        await makeStream(server, "S", ["s"]);
        const { durable } = await open(urlOf(server));
        const seen: string[] = [];
        const options = { stream: "S", consumer: "me", subject: "s", silenceMs: 500 };
        await using consumption = durable.consume(options, async (message) => {
          seen.push(`${text(message)} ${message.delivery}`);
          if (text(message) === "0") await Bun.sleep(4 * options.silenceMs);
        });
        for (const id of ["0", "1", "2"]) {
          await durable.publish("s", bytes(id), { id, timeoutMs: 5_000 });
        }
        await waitFor(() => consumption.state.handled === 3, 15_000);
        expect(seen).toEqual(["0 1", "1 1", "2 1"]);
      });

      test("a message that always fails is dropped and logged", async () => {
        await using server = await NatsServer.start({ jetStream: true });
        await makeStream(server, "S", ["s"]);
        const lines: LogLine[] = [];
        const { durable } = await open(urlOf(server), lines);
        // The broker has delivered the message this often already, to processes that died.
        await asOperator(server, async (nc) => {
          const manager = await jetstreamManager(nc);
          const none = { filter_subject: "s", ack_wait: 100e6, max_deliver: 10 };
          const consumer = { durable_name: "me", max_ack_pending: 1, ...none };
          await manager.consumers.add("S", { ...consumer, ack_policy: AckPolicy.Explicit });
          await durable.publish("s", bytes("x"), { id: "1", timeoutMs: 5_000 });
          await durable.publish("s", bytes("y"), { id: "2", timeoutMs: 5_000 });
          const own = await jetstream(nc).consumers.get("S", "me");
          await waitFor(async () => (await own.next())?.info.deliveryCount === 9);
        });
        const seen: string[] = [];
        const options = { stream: "S", consumer: "me", subject: "s", silenceMs: 100 };
        await using consumption = durable.consume(options, async (message) => {
          seen.push(`${text(message)} ${message.delivery} ${message.isLast}`);
          if (text(message) === "x") throw new Error("boom");
        });
        await waitFor(() => consumption.state.handled === 1, 20_000);
        expect(seen).toEqual(["x 10 true", "y 1 false"]);
        expect(consumption.state.givenUp).toBe(1);
        const reported = lines.find(({ message }) => message.includes("every delivery failed"));
        expect(reported).toMatchObject({ level: "warn", fields: { why: "boom", delivery: 10 } });
      });

      test("consumption waits for a missing stream", async () => {
        await using server = await NatsServer.start({ jetStream: true });
        const { durable } = await open(urlOf(server));
        const options = { stream: "LATER", consumer: "me", subject: "later" };
        const seen: string[] = [];
        await using consumption = durable.consume(options, async (m) => void seen.push(text(m)));
        await waitFor(() => consumption.state.status === "missing");
        expect(consumption.state.why).toContain("stream not found");
        await makeStream(server, "LATER", ["later"]);
        await durable.publish("later", bytes("x"), { id: "1", timeoutMs: 5_000 });
        await waitFor(() => seen.length === 1, 10_000);
        // Also after the bucket is deleted and recreated.
        await asOperator(server, async (nc) =>
          (await jetstreamManager(nc)).streams.delete("LATER"),
        );
        await waitFor(() => consumption.state.status !== "consuming", 20_000);
        await makeStream(server, "LATER", ["later"]);
        await durable.publish("later", bytes("y"), { id: "2", timeoutMs: 5_000 });
        await waitFor(() => seen.length === 2, 10_000);
      });

      test("a broker without JetStream is reported", async () => {
        await using server = await NatsServer.start();
        const { durable } = await open(urlOf(server));
        const options = { stream: "S", consumer: "me", subject: "s" };
        await using consumption = durable.consume(options, async () => undefined);
        await waitFor(() => consumption.state.status === "missing");
        expect(consumption.state.why).toBe("no stream of the server accepts this subject");
        const put = await durable.bucket("b").put("k", bytes("v"));
        expect(put).toEqual({
          kind: "refused",
          why: "no stream of the server accepts this subject",
        });
        expect(await durable.bucket("b").get("k")).toEqual({ kind: "missing" });
        expect(await durable.bucket("b").keys()).toBeNull();
      });

      test("a presence value stays in its bucket for the worker's lifetime", async () => {
        await using server = await NatsServer.start({ jetStream: true });
        const lines: LogLine[] = [];
        const { bus, durable } = await open(urlOf(server), lines);
        const common = { ...basics({}, lines), bus, bucket: "workers", key: "w1", everyMs: 200 };
        const presence = new Presence({ ...common, data: bytes("here") });
        await waitFor(() => presence.refusal);
        await asOperator(server, (nc) => new Kvm(nc).create("workers", { ttl: 1_000 }));
        const isThere = async () => (await durable.bucket("workers").get("w1")).kind === "value";
        await waitFor(isThere);
        await waitFor(() => presence.refusal === null);
        const firstMs = performance.now();
        // Longer than the bucket keeps a value that is not refreshed.
        await waitFor(async () => {
          expect(await isThere()).toBe(true);
          return performance.now() - firstMs > 2_000;
        });
        await server.restart();
        await waitFor(() => bus.state.reconnects === 1);
        await waitFor(isThere);
        await presence[Symbol.asyncDispose]();
        expect(await isThere()).toBe(false);
        expect(lines.filter(({ message }) => message.includes("bucket"))).toHaveLength(1);
      });

      test("buckets return stored values and expire them", async () => {
        await using server = await NatsServer.start({ jetStream: true });
        await asOperator(server, (nc) => new Kvm(nc).create("workers", { ttl: 2_000 }));
        const { bus, durable } = await open(urlOf(server));
        const bucket = durable.bucket("workers");
        expect(await bucket.keys()).toEqual([]);
        expect(await bucket.get("w1")).toEqual({ kind: "missing" });
        expect(await bucket.put("w1", bytes("one"))).toEqual({ kind: "done" });
        expect(await bucket.put("w2", bytes("two"))).toEqual({ kind: "done" });
        expect(await bucket.put("w1", bytes("more"))).toEqual({ kind: "done" });
        const read = await bucket.get("w1");
        expect(read.kind === "value" && text(read)).toBe("more");
        expect(await bucket.keys()).toEqual(["w1", "w2"]);
        expect(await bucket.delete("w2")).toEqual({ kind: "done" });
        expect(await bucket.get("w2")).toEqual({ kind: "missing" });
        expect(await bucket.keys()).toEqual(["w1"]);
        await waitFor(async () => (await bucket.get("w1")).kind === "missing", 10_000);
        expect(await durable.bucket("none").keys()).toBeNull();
        expect(await durable.bucket("none").get("w1")).toEqual({ kind: "missing" });
        await server.kill();
        await waitFor(() => bus.state.status === "reconnecting");
        expect(await bucket.put("w1", bytes("x"))).toEqual({ kind: "unreachable" });
        expect(await bucket.get("w1")).toEqual({ kind: "unreachable" });
      });
    });
  }
});
