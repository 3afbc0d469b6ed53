import { afterAll, describe, expect, test } from "bun:test";
import { readdirSync } from "node:fs";
import { type Bus, type BusLimits, type BusOptions, openBus } from "../../src/bus/index.ts";
import { describeNats, NatsServer, waitFor } from "../support/index.ts";
import { basics, bytes, type LogLine, text } from "./bus-bench.ts";
import { StallProxy } from "./stall-proxy.ts";

const CARRIERS = ["tcp", "ws"] as const;
const urlOf = (server: NatsServer, carrier: "tcp" | "ws") =>
  carrier === "tcp" ? server.tcpUrl : server.wsUrl;
/** Detects a hung broker within half a second. */
const IMPATIENT: Partial<BusLimits> = { pingMs: 100, silenceMs: 300, connectMs: 300 };

const opened: Bus[] = [];
function open(url: string, more: Partial<BusOptions> & { lines?: LogLine[] } = {}): Bus {
  const { limits, lines, ...rest } = more;
  const bus = openBus({ ...basics(limits, lines), url, name: "faults", ...rest });
  opened.push(bus);
  return bus;
}
afterAll(() => Promise.all(opened.map((bus) => bus.close(0))));

const openFiles = () => readdirSync("/proc/self/fd").length;

describeNats("NATS", () => {
  for (const carrier of CARRIERS) {
    describe(`over ${carrier}, a broker`, () => {
      test("that is down at the start is waited for", async () => {
        await using server = await NatsServer.start();
        await server.kill();
        const lines: LogLine[] = [];
        const bus = open(urlOf(server, carrier), { lines });
        const seen: string[] = [];
        bus.subscribe("early", (message) => void seen.push(text(message)));
        expect(bus.publish("early", bytes("1"))).toBe("queued");
        await waitFor(() => bus.state.why?.includes("ECONNREFUSED"));
        expect(bus.state).toMatchObject({ status: "connecting", server: null });
        // One line regardless of the number of attempts.
        await waitFor(() => lines.length > 0);
        await server.restart();
        await waitFor(() => seen.length === 1);
        expect(lines.map(({ message }) => message)).toEqual([
          "NATS connection failed, retrying",
          "NATS connected",
        ]);
        expect(bus.state).toMatchObject({ reconnects: 0, why: null });
      });

      test("that accepts and says nothing is left again, no socket stays behind", async () => {
        let accepted = 0;
        using silent = Bun.listen({
          hostname: "127.0.0.1",
          port: 0,
          socket: { open: () => void accepted++, data: () => undefined },
        });
        const scheme = carrier === "tcp" ? "nats" : "ws";
        const before = openFiles();
        const limits = { connectMs: 30, retryMinMs: 1, retryMaxMs: 2 };
        const bus = open(`${scheme}://127.0.0.1:${silent.port}`, { limits });
        await waitFor(() => accepted >= 20);
        expect(bus.state.why).toMatch(/sends no greeting|no answer within 30 ms/);
        const startedMs = performance.now();
        await bus.close(50);
        expect(performance.now() - startedMs).toBeLessThan(1_000);
        // Each attempt has two ends in this process.
        await waitFor(() => openFiles() <= before + 8);
      });

      test("that dies repeatedly loses no subscriptions", async () => {
        await using server = await NatsServer.start();
        using proxy = new StallProxy(carrier === "tcp" ? server.tcpPort : server.wsPort);
        const bus = open(urlOf(server, carrier).replace(/[0-9]+$/, String(proxy.port)));
        const seen: string[] = [];
        bus.subscribe("again", (message) => void seen.push(text(message)));
        for (let round = 0; round < 5; round++) {
          await bus.connected(5_000);
          bus.publish("again", bytes(String(round)));
          await waitFor(() => seen.includes(String(round)));
          await server.kill();
          await waitFor(() => bus.state.status === "reconnecting");
          await server.restart();
        }
        expect(await bus.connected(5_000)).toBe(true);
        expect(seen).toEqual(["0", "1", "2", "3", "4"]);
        expect(bus.state.reconnects).toBe(5);
      });

      test("behind a partition is found out, and memory stays bounded meanwhile", async () => {
        await using server = await NatsServer.start();
        using proxy = new StallProxy(carrier === "tcp" ? server.tcpPort : server.wsPort);
        const url = urlOf(server, carrier).replace(/[0-9]+$/, String(proxy.port));
        const queueBytes = 2 ** 20;
        const windowBytes = 2 ** 20;
        const bus = open(url, { limits: { ...IMPATIENT, queueBytes, windowBytes } });
        expect(await bus.connected(5_000)).toBe(true);
        proxy.stall();
        // Far more than the socket buffers hold: the rest must be refused, not kept in memory.
        let [sent, queued, dropped] = [0, 0, 0];
        for (let at = 0; at < 2_000; at++) {
          const outcome = bus.publish("flood", new Uint8Array(64 * 1024));
          if (outcome === "sent") sent++;
          else if (outcome === "queued") queued++;
          else dropped++;
        }
        expect(sent).toBe(16);
        expect(queued).toBe(15);
        expect(dropped).toBe(2_000 - 31);
        await waitFor(() => bus.state.status === "reconnecting");
        expect(bus.state.why).toContain("no answer for");
        expect(bus.state.doubtfulMessages).toBe(16);
        const seen: number[] = [];
        bus.subscribe("flood", ({ data }) => void seen.push(data.length));
        proxy.resume();
        await waitFor(() => bus.state.status === "connected");
        await waitFor(() => bus.state.queuedMessages === 0);
        // Queued messages are sent once; messages sent before are not sent again.
        expect(await bus.flush(5_000)).toBe(true);
        expect(bus.state.sentMessages).toBe(31);
        expect(seen.length).toBeLessThanOrEqual(31);
      });

      test("that hangs does not delay close beyond its timeout", async () => {
        await using server = await NatsServer.start();
        const bus = open(urlOf(server, carrier));
        expect(await bus.connected(5_000)).toBe(true);
        await server.pause();
        for (let at = 0; at < 100; at++) bus.publish("flood", new Uint8Array(64 * 1024));
        const asked = bus.request("anyone", bytes("x"), { timeoutMs: 60_000 });
        const startedMs = performance.now();
        expect(await bus.flush(50)).toBe(false);
        await bus.close(100);
        expect(performance.now() - startedMs).toBeLessThan(1_500);
        expect(await asked).toEqual({ kind: "unreachable" });
        server.resume();
      });

      test("that is slow holds messages back and takes them all, in order", async () => {
        await using server = await NatsServer.start();
        using proxy = new StallProxy(carrier === "tcp" ? server.tcpPort : server.wsPort);
        const url = urlOf(server, carrier).replace(/[0-9]+$/, String(proxy.port));
        const windowBytes = 256 * 1024;
        const bus = open(url, { limits: { windowBytes, queueBytes: 2 ** 26 } });
        const other = open(urlOf(server, carrier));
        await Promise.all([bus.connected(5_000), other.connected(5_000)]);
        const seen: number[] = [];
        other.subscribe(
          "slow",
          ({ data }) => void seen.push(new DataView(data.buffer).getUint32(0)),
        );
        await other.flush(5_000);
        const outcomes = new Set<string>();
        for (let at = 0; at < 400; at++) {
          if (at % 20 === 0) {
            proxy.stall();
            await Bun.sleep(1);
            proxy.resume();
          }
          const data = new Uint8Array(32 * 1024);
          new DataView(data.buffer).setUint32(0, at);
          outcomes.add(bus.publish("slow", data));
        }
        await waitFor(() => seen.length === 400, 15_000);
        expect(seen).toEqual(Array.from({ length: 400 }, (_, at) => at));
        expect(outcomes).toEqual(new Set(["sent", "queued"]));
        expect(bus.state).toMatchObject({ status: "connected", droppedMessages: 0 });
      });

      test("with a smaller limit after a restart receives the messages that fit", async () => {
        await using server = await NatsServer.start({ maxPayload: "8KB" });
        const bus = open(urlOf(server, carrier));
        const sizes: number[] = [];
        bus.subscribe("sizes", ({ data }) => void sizes.push(data.length));
        // The limit is not known yet, so the default of NATS servers applies.
        expect(bus.publish("sizes", new Uint8Array(100_000))).toBe("queued");
        expect(bus.publish("sizes", new Uint8Array(8_000))).toBe("queued");
        await waitFor(() => sizes.length === 1);
        expect(sizes).toEqual([8_000]);
        expect(bus.state).toMatchObject({ droppedMessages: 1, sentMessages: 1 });
        expect(bus.payloadBytesMax).toBe(8 * 1024);
        // Data and headers count together.
        const headers = { a: "b".repeat(500) };
        expect(bus.publish("sizes", new Uint8Array(8_000), { headers })).toBe("dropped");
      });

      test("that refuses a subject is reported, and other subjects work", async () => {
        const lines = [
          "authorization {",
          "  default_permissions {",
          '    publish: { deny: ["secret.>"] }',
          '    subscribe: { deny: ["secret.>"] }',
          "  }",
          '  users: [ { user: "u", password: "p" } ]',
          "}",
        ];
        await using server = await NatsServer.start({ lines });
        const log: LogLine[] = [];
        const bus = open(urlOf(server, carrier).replace("//", "//u:p@"), { lines: log });
        const seen: string[] = [];
        bus.subscribe("secret.a", () => undefined);
        bus.subscribe("open", (message) => void seen.push(text(message)));
        await waitFor(() => bus.state.refusedSubjects.length === 1);
        expect(bus.state.refusedSubjects).toEqual(["secret.a"]);
        bus.publish("secret.b", bytes("x"));
        bus.publish("open", bytes("y"));
        await waitFor(() => seen.length === 1);
        await waitFor(() => log.some(({ fields }) => JSON.stringify(fields).includes("secret.b")));
        expect(JSON.stringify(log)).not.toContain("u:p");
        await server.restart();
        await waitFor(() => bus.state.reconnects === 1 && bus.state.refusedSubjects.length === 1);
        bus.publish("open", bytes("z"));
        await waitFor(() => seen.length === 2);
      });

      test("from a list is tried after others that are down", async () => {
        await using server = await NatsServer.start();
        const url = urlOf(server, carrier);
        const dead = url.replace(/[0-9]+$/, "1");
        const bus = open(`${dead}, ${url},${dead}`);
        expect(await bus.connected(5_000)).toBe(true);
        expect(bus.state.server).toBe(url);
      });
    });
  }

  test("a message with invalid headers does not end the connection", async () => {
    await using server = await NatsServer.start();
    const bus = open(server.tcpUrl);
    const seen: string[] = [];
    bus.subscribe("raw", (message) => {
      seen.push(`${text(message)} ${JSON.stringify(message.headers)}`);
    });
    await bus.connected(5_000);
    await bus.flush(5_000);
    const poison = "NATS/1.0\r\nb\u00e4d n\u00e4me: x\r\n__proto__: y\r\n\r\n";
    const size = Buffer.byteLength(poison);
    const raw = await Bun.connect({
      hostname: "127.0.0.1",
      port: server.tcpPort,
      socket: { data: () => undefined },
    });
    raw.write(`CONNECT {"verbose":false,"headers":true}\r\n`);
    raw.write(`HPUB raw ${size} ${size + 1}\r\n${poison}1\r\n`);
    raw.write("HPUB raw 12 13\r\nNATS/1.0\r\n\r\n2\r\nPUB raw 1\r\n3\r\n");
    await waitFor(() => seen.length === 3);
    expect(seen).toEqual(["1 {}", "2 {}", "3 {}"]);
    expect(({} as { y?: string }).y).toBeUndefined();
    raw.end();
  });

  test("servers that the cluster reports are used when the configured one is down", async () => {
    const cluster = (routes: string) => [
      "cluster {",
      "  name: c",
      "  host: 127.0.0.1",
      "  port: -1",
      `  routes: [ ${routes} ]`,
      "}",
    ];
    await using first = await NatsServer.start({ lines: cluster("") });
    const route = /Listening for route connections on (\S+)/.exec(first.log())![1];
    await using second = await NatsServer.start({ lines: cluster(`nats://${route}`) });
    const probe = open(first.tcpUrl);
    await probe.connected(5_000);
    await waitFor(() => /Route connection created/.test(second.log()));
    const bus = open(first.tcpUrl);
    expect(await bus.connected(5_000)).toBe(true);
    await first.kill();
    await waitFor(() => bus.state.reconnects === 1);
    expect(bus.state.server).toBe(second.tcpUrl);
  });
});
