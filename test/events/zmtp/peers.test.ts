import { describe, expect, test } from "bun:test";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import fc from "fast-check";
import { HearthError } from "../../../src/core/index.ts";
import {
  bindPublisher,
  bindRouter,
  connectSubscriber,
  encodeMessage,
  engineBinds,
  FrameReader,
  formatEndpoint,
  parseEndpoint,
  type ZmtpFrame,
  type ZmtpMessage,
} from "../../../src/events/zmtp/index.ts";
import { ManualClock, waitFor, withTempDir } from "../../support/index.ts";
import {
  ask,
  bytes,
  clock,
  collect,
  greeting,
  LIMITS,
  portOf,
  random,
  rawClient,
  ready,
  texts,
} from "./support.ts";

const ANY = { endpoint: "tcp://127.0.0.1:*", clock, random };

function command(name: string, data: Uint8Array): Uint8Array {
  const body = Buffer.concat([Uint8Array.of(name.length), bytes(name), data]);
  return Buffer.concat([Uint8Array.of(4, body.length), body]);
}

function message(body: Uint8Array): Uint8Array {
  return Buffer.concat([Uint8Array.of(0, body.length), body]);
}

/** Input that makes a listening socket close the connection, whatever follows. */
const GARBAGE: Readonly<Record<string, readonly Uint8Array[]>> = {
  "another protocol": [bytes("GET / HTTP/1.1\r\nHost: a\r\n\r\n")],
  "an older ZMTP": [greeting(0, 1)],
  "a mechanism that is not spoken": [greeting(0, 3, "CURVE")],
  "a message before READY": [greeting(), message(bytes("x"))],
  "a socket of a wrong type": [greeting(), ready("PUB")],
  "a READY of lies": [greeting(), Uint8Array.fromHex("040b055245414459ff41424344")],
  "READY twice": [greeting(), ready("SUB"), ready("SUB")],
  "a frame longer than may be": [
    greeting(),
    ready("SUB"),
    Uint8Array.fromHex("027fffffffffffffff"),
  ],
  "flags that are not known": [greeting(), ready("SUB"), Uint8Array.of(0x40, 0)],
  "a command without a name": [greeting(), ready("SUB"), Uint8Array.of(4, 0)],
  "a PING with too much behind it": [
    greeting(),
    ready("SUB"),
    command("PING", new Uint8Array(200)),
  ],
  "a topic that is too long": [greeting(), ready("SUB"), command("SUBSCRIBE", new Uint8Array(99))],
};

describe("invalid peers", () => {
  for (const [name, parts] of Object.entries(GARBAGE)) {
    test(`${name} ends its connection, and no other`, async () => {
      const limits = { ...LIMITS, topicBytesMax: 50 };
      await using pub = await bindPublisher({ ...ANY, limits });
      await using sub = collect(pub.endpoint);
      await waitFor(() => pub.subscribers === 1);
      using client = await rawClient(portOf(pub.endpoint));
      for (const part of parts) client.socket.write(part);
      await waitFor(() => client.state.isClosed);
      await waitFor(() => {
        pub.publish([bytes("t"), bytes("still here")]);
        return sub.messages.length > 0;
      });
      expect(pub.subscribers).toBe(1);
      expect(sub.state.connections).toBe(1);
    });
  }

  test("a silent connection is closed, and so are those above the limit", async () => {
    const manual = new ManualClock();
    const limits = { handshakeMs: 500, peersMax: 2 };
    await using pub = await bindPublisher({ ...ANY, clock: manual, limits });
    const port = portOf(pub.endpoint);
    using first = await rawClient(port);
    using second = await rawClient(port);
    await waitFor(() => first.heard.length === 64 && second.heard.length === 64);
    using third = await rawClient(port);
    await waitFor(() => third.state.isClosed);
    second.socket.write(Buffer.concat([greeting(), ready("SUB"), message(Uint8Array.of(1))]));
    await waitFor(() => pub.subscribers === 1);
    manual.advance(500);
    await waitFor(() => first.state.isClosed);
    expect(second.state.isClosed).toBe(false);
  });

  test("a subscriber of ZMTP 3.0 is served with input of one byte at a time", async () => {
    await using pub = await bindPublisher(ANY);
    using client = await rawClient(portOf(pub.endpoint));
    const wish = message(Buffer.concat([Uint8Array.of(1), bytes("kv")]));
    for (const byte of Buffer.concat([greeting(0), ready("SUB"), wish])) {
      client.socket.write(Uint8Array.of(byte));
    }
    await waitFor(() => {
      pub.publish([bytes("kv"), bytes("hello")]);
      pub.publish([bytes("other"), bytes("no")]);
      return client.heard.includes("hello");
    });
    expect(client.heard.includes("other")).toBe(false);
    client.socket.write(command("PING", Uint8Array.of(0, 9, 7, 7)));
    await waitFor(() => client.heard.includes(command("PONG", Uint8Array.of(7, 7))));
  });

  test("too many subscriptions close the connection; a cancelled one makes room", async () => {
    await using pub = await bindPublisher({ ...ANY, limits: { subscriptionsMax: 2 } });
    using client = await rawClient(portOf(pub.endpoint));
    const wish = (topic: string) => command("SUBSCRIBE", bytes(topic));
    const cancel = command("CANCEL", bytes("a"));
    const parts = [greeting(1), ready("SUB"), wish("a"), wish("a"), wish("b"), cancel, cancel];
    client.socket.write(Buffer.concat([...parts, wish("c")]));
    await waitFor(() => {
      pub.publish([bytes("a1")]);
      pub.publish([bytes("c1")]);
      return client.heard.includes("c1");
    });
    expect(client.heard.includes("a1")).toBe(false);
    client.socket.write(wish("d"));
    await waitFor(() => client.state.isClosed);
  });
});

describe("a dialed peer", () => {
  test("that does not speak ZMTP is reported and redialed", async () => {
    let said: Uint8Array = bytes("220 mail.example ESMTP\r\n");
    using server = Bun.listen({
      hostname: "127.0.0.1",
      port: 0,
      socket: { open: (socket) => void socket.write(said), data: () => {} },
    });
    await using sub = collect(`tcp://127.0.0.1:${server.port}`);
    await waitFor(() => sub.state.refused >= 2);
    expect(sub.state).toMatchObject({ status: "connecting", why: "the peer does not speak ZMTP" });
    said = Buffer.concat([greeting(), command("ERROR", bytes("\u0003no!"))]);
    await waitFor(() => sub.state.why?.includes("no!"));
    said = Buffer.concat([greeting(), ready("ROUTER")]);
    await waitFor(() => sub.state.why?.includes("ROUTER"));
    said = Buffer.concat([greeting(), ready("PUB"), message(bytes("t"))]);
    await waitFor(() => sub.messages.length === 1);
    expect(texts(sub.messages[0]!)).toEqual(["t"]);
    expect(sub.state).toMatchObject({ status: "connected", why: null, connections: 1 });
  });

  test("that floods with frames or large messages is disconnected", async () => {
    const more = Uint8Array.of(1, 1, 65);
    const floods = [Buffer.concat(Array.from({ length: 70 }, () => more)), encodeFlood(20, 100)];
    for (const flood of floods) {
      const said = Buffer.concat([greeting(), ready("PUB"), flood]);
      using server = Bun.listen({
        hostname: "127.0.0.1",
        port: 0,
        socket: { open: (socket) => void socket.write(said), data: () => {} },
      });
      const limits = { messageBytesMax: 1_000 };
      await using sub = collect(`tcp://127.0.0.1:${server.port}`, [""], limits);
      await waitFor(() => sub.state.refused > 0);
      expect(sub.messages).toEqual([]);
    }
  });

  test("is redialed with growing waits, until the socket is closed", async () => {
    const manual = new ManualClock();
    const attempts: number[] = [];
    using server = Bun.listen({
      hostname: "127.0.0.1",
      port: 0,
      socket: {
        open: (socket) => {
          attempts.push(manual.monotonicMs());
          socket.terminate();
        },
        data: () => {},
      },
    });
    const endpoint = `tcp://127.0.0.1:${server.port}`;
    const sub = connectSubscriber({
      ...{ endpoint, random, clock: manual, topics: [""], onMessage: () => {} },
      limits: { redialFirstMs: 100, redialMaxMs: 1_000 },
    });
    for (let tries = 1; tries <= 7; tries++) {
      const wanted = tries;
      // The end of a connection must be noticed before its wait begins.
      await waitFor(() => {
        manual.advance(attempts.length < wanted ? 10 : 0);
        return attempts.length >= wanted;
      });
    }
    // 100, 200, 400, 800, 1,000 and 1,000, each 25 % less at most.
    expect(attempts[1]! - attempts[0]!).toBeGreaterThanOrEqual(75);
    expect(attempts.at(-1)! - attempts[0]!).toBeGreaterThanOrEqual(2_625);
    await sub[Symbol.asyncDispose]();
    expect(sub.state).toMatchObject({ status: "closed", why: "closed" });
    const before = attempts.length;
    manual.advance(60_000);
    expect([attempts.length, manual.pending]).toEqual([before, 0]);
  });
});

/** One message of `count` frames with `length` bytes each. */
function encodeFlood(count: number, length: number): Uint8Array {
  const frames = Array.from({ length: count }, (_, i) => {
    return Buffer.concat([Uint8Array.of(i < count - 1 ? 1 : 0, length), new Uint8Array(length)]);
  });
  return Buffer.concat(frames);
}

describe("Hearth's sockets with each other", () => {
  test("large messages arrive whole through small buffers", async () => {
    const asked: ZmtpMessage[] = [];
    await using router = await bindRouter({
      ...ANY,
      onMessage: (question, reply) => {
        asked.push(question);
        for (let i = 0; i < 8; i++) reply([new Uint8Array(), new Uint8Array(3_000_000).fill(i)]);
      },
    });
    await using dealer = ask(router.endpoint);
    await waitFor(() => dealer.send([new Uint8Array(), new Uint8Array(5_000_000).fill(7)]));
    await waitFor(() => dealer.messages.length === 8, 20_000);
    expect(asked[0]![1]!.every((byte) => byte === 7)).toBe(true);
    const fine = dealer.messages.every(([, body], i) => body!.every((byte) => byte === i));
    expect(fine).toBe(true);
  });

  test("a request is not sent if the queue is full", async () => {
    const limits = { queueBytesMax: 100_000, queueMessagesMax: 4 };
    using server = Bun.listen({
      hostname: "127.0.0.1",
      port: 0,
      socket: {
        open: (socket) => {
          socket.write(Buffer.concat([greeting(), ready("ROUTER")]));
          socket.pause();
        },
        data: () => {},
      },
    });
    await using dealer = ask(`tcp://127.0.0.1:${server.port}`, limits);
    expect(dealer.send([bytes("early")])).toBe(false);
    await waitFor(() => dealer.state.status === "connected");
    const body = new Uint8Array(50_000);
    await waitFor(() => !dealer.send([body]), 20_000);
    expect(dealer.state.status).toBe("connected");
  });

  test("an invalid, used or unavailable endpoint is refused with a reason", async () => {
    await using pub = await bindPublisher(ANY);
    const bind = (endpoint: string) => bindPublisher({ ...ANY, endpoint });
    for (const endpoint of ["tcp://nothing", pub.endpoint, "ipc:///nowhere/at/all"]) {
      const refused = await bind(endpoint).catch((error) => error);
      expect(refused).toBeInstanceOf(HearthError);
      expect(refused.code).toBe("ZMTP_UNAVAILABLE");
    }
    expect(() => collect("tcp://nothing")).toThrow(HearthError);
  });

  test("a stale Unix socket is replaced, and a live one is left", async () => {
    await withTempDir(async (folder) => {
      const endpoint = `ipc://${join(folder, "kv")}`;
      const script = `Bun.listen({ unix: process.argv[1], socket: { data() {} } });
        process.kill(process.pid, "SIGKILL");`;
      await Bun.spawn([process.execPath, "-e", script, join(folder, "kv")]).exited;
      const bind = () => bindPublisher({ ...ANY, endpoint });
      const first = await bind();
      await using sub = collect(endpoint);
      await waitFor(() => first.subscribers === 1);
      expect((await bind().catch((error) => error)).code).toBe("ZMTP_UNAVAILABLE");
      await first[Symbol.asyncDispose]();
      await using second = await bind();
      await waitFor(() => second.subscribers === 1);
      await waitFor(() => {
        second.publish([bytes("t")]);
        return sub.messages.length > 0;
      });
      mkdirSync(join(folder, "other"));
      writeFileSync(join(folder, "other/file"), "x");
      const onFile = bindPublisher({ ...ANY, endpoint: `ipc://${join(folder, "other/file")}` });
      expect((await onFile.catch((error) => error)).code).toBe("ZMTP_UNAVAILABLE");
    });
  });
});

const MESSAGES = 20_000;

test("a paused subscriber gets nothing, and everything in order after resume", async () => {
  const endpoint = "tcp://127.0.0.1:0";
  await using publisher = await bindPublisher({ clock, random, endpoint });
  await using subscriber = collect(publisher.endpoint);
  await waitFor(() => publisher.subscribers === 1);
  subscriber.pause();
  for (let i = 0; i < MESSAGES; i++) publisher.publish([bytes("t"), bytes(String(i))]);
  for (let turn = 0; turn < 50; turn++) await new Promise((resolve) => setImmediate(resolve));
  const early = subscriber.messages.length;
  // Input received before the pause may still be delivered.
  expect(early).toBeLessThan(MESSAGES / 2);
  subscriber.resume();
  await waitFor(() => subscriber.messages.length === MESSAGES, 60_000);
  expect(subscriber.messages.map((message) => Number(texts(message)[1]))).toEqual(
    Array.from({ length: MESSAGES }, (_, i) => i),
  );
});

const frame = fc.oneof(
  fc.uint8Array({ maxLength: 20 }),
  fc.integer({ min: 250, max: 70_000 }).map((length) => new Uint8Array(length).fill(length & 0xff)),
);

/** The same bytes in pieces, split at `cuts`. */
function pieces(bytes: Uint8Array, cuts: readonly number[]): Uint8Array[] {
  const places = [...new Set(cuts.map((cut) => cut % (bytes.length + 1)))].sort((a, b) => a - b);
  const ends = [...places, bytes.length];
  return ends.map((end, i) => bytes.subarray(i === 0 ? 0 : ends[i - 1]!, end));
}

function readAll(chunks: readonly Uint8Array[], bytesMax = 1 << 20) {
  const reader = new FrameReader(bytesMax);
  const frames: ZmtpFrame[] = [];
  for (const chunk of chunks) {
    const why = reader.push(Buffer.from(chunk), (one) => frames.push(one) > 0);
    if (why !== null) return { why, frames };
  }
  return { why: null, frames };
}

describe("frames", () => {
  test("survive a round trip, wherever the stream is split", () => {
    const messages = fc.array(fc.array(frame, { minLength: 1, maxLength: 4 }), { maxLength: 4 });
    const property = fc.property(messages, fc.array(fc.nat(), { maxLength: 12 }), (sent, cuts) => {
      const stream = Buffer.concat(sent.map((message) => encodeMessage(message)));
      const { why, frames } = readAll(pieces(stream, cuts));
      expect(why).toBeNull();
      expect(frames.map(({ body }) => body.length)).toEqual(
        sent.flat().map(({ length }) => length),
      );
      const equal = sent.flat().every((body, i) => Buffer.compare(body, frames[i]!.body) === 0);
      expect(equal).toBe(true);
      const ends = sent.flatMap((message) => message.map((_, i) => i < message.length - 1));
      expect(frames.map(({ hasMore }) => hasMore)).toEqual(ends);
    });
    fc.assert(property, { numRuns: 100 });
  });

  test("are owned by the receiver: the next read does not change them", () => {
    const chunk = Buffer.from(encodeMessage([Uint8Array.of(1, 2, 3)]));
    const frames: ZmtpFrame[] = [];
    new FrameReader(10).push(chunk, (one) => frames.push(one) > 0);
    chunk.fill(9);
    expect([...frames[0]!.body]).toEqual([1, 2, 3]);
  });

  test("that are too long or invalid end the stream before they allocate memory", () => {
    const heads = ["02ffffffffffffffff", "020000000000000401", "08", "0500", "80", "ff"];
    for (const head of heads) {
      expect(readAll([Uint8Array.fromHex(head)], 1_024).why).not.toBeNull();
    }
    expect(readAll([Uint8Array.fromHex("020000000000000400")], 1_024).why).toBeNull();
  });

  test("after an unwanted one are not parsed", () => {
    const frames: ZmtpFrame[] = [];
    const stream = Buffer.concat([encodeMessage([Uint8Array.of(1)]), Uint8Array.of(0xff)]);
    const why = new FrameReader(10).push(stream, (one) => frames.push(one) < 1);
    expect([why, frames.length]).toEqual([null, 1]);
  });
});

describe("endpoints", () => {
  test("are parsed in the engines' syntax", () => {
    const tcp = (host: string, port: number) => ({ kind: "tcp" as const, host, port });
    expect(parseEndpoint("tcp://*:5557")).toEqual(tcp("0.0.0.0", 5557));
    expect(parseEndpoint("tcp://127.0.0.1:*")).toEqual(tcp("127.0.0.1", 0));
    expect(parseEndpoint("tcp://[::1]:80")).toEqual(tcp("::1", 80));
    expect(parseEndpoint("tcp://:::80")).toEqual(tcp("::", 80));
    expect(parseEndpoint("tcp://gpu-1.lan:5557")).toEqual(tcp("gpu-1.lan", 5557));
    expect(parseEndpoint("ipc:///run/kv")).toEqual({ kind: "ipc", path: "/run/kv" });
    const none = ["", "tcp://", "tcp://a", "tcp://a:b", "tcp://a:65536", "tcp://a b:1", "ipc://"];
    const others = ["ipc://@abstract", `ipc://${"x".repeat(108)}`, "inproc://a", "http://a:1"];
    for (const text of [...none, ...others]) expect(parseEndpoint(text)).toBeNull();
    for (const text of ["tcp://[::1]:80", "tcp://a:1", "ipc:///run/kv"]) {
      expect(formatEndpoint(parseEndpoint(text)!)).toBe(text);
    }
  });

  test("determine which end binds", () => {
    expect(engineBinds("tcp://*:5557", "vllm")).toBe(true);
    expect(engineBinds("tcp://[::]:5557", "vllm")).toBe(true);
    expect(engineBinds("ipc:///run/kv", "sglang")).toBe(true);
    expect(engineBinds("tcp://10.0.0.1:5557", "vllm")).toBe(false);
    expect(engineBinds("tcp://0.0.0.0:5557", "vllm")).toBe(false);
    expect(engineBinds("tcp://0.0.0.0:5557", "sglang")).toBe(true);
  });
});
