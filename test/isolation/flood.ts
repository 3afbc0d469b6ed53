/** One flood at a time, in a process of its own. `run NAME TARGET...` answers when it is sent. */
import { connect, type Socket } from "node:net";
import {
  type Random,
  randomBelow,
  seededRandom,
  systemClock,
  systemRandom,
} from "../../src/core/index.ts";
import { EngineClient } from "../../src/engine/index.ts";
import { encodeEngineBatch } from "../../src/events/index.ts";
import { bindPublisher } from "../../src/events/zmtp/index.ts";
import { loadNative } from "../../src/native/index.ts";
import { manifestBytes } from "../engine/agent-kit.ts";
import { Engine } from "../engine/engine.ts";
import { obey } from "./child.ts";

const MESSAGES = 30_000;
const BLOCKS = 180_000;
const BLOCK_TOKENS = 16;
/** The last headers of a request, with the empty line behind them. */
const COMMON = ["Host: 127.0.0.1", "Content-Type: application/json", ""];
const ends: (() => unknown)[] = [];

function dial(port: number): Promise<Socket | null> {
  return new Promise((resolve) => {
    const socket = connect(port, "127.0.0.1", () => resolve(socket));
    socket.on("error", () => resolve(null));
    ends.push(() => socket.destroy());
  });
}

/** Publishes the same message many times over a connection of its own. */
async function publish(
  port: number,
  message: string,
  messages = MESSAGES,
  atOnce = 100,
): Promise<number> {
  const socket = (await dial(port))!;
  socket.write('CONNECT {"verbose":false,"pedantic":false}\r\n');
  const piece = message.repeat(atOnce);
  for (let sent = 0; sent < messages; sent += atOnce) {
    if (!socket.write(piece)) await new Promise((resolve) => socket.once("drain", resolve));
  }
  socket.write("PING\r\n");
  await new Promise<void>((resolve) => {
    socket.on("data", (data) => String(data).includes("PONG") && resolve());
  });
  return messages;
}

function pinOf(blocks: number): string {
  const hashes = Array.from({ length: blocks }, (_, i) => BigInt(i + 1) << 40n);
  return `{"type":"Cache","block_hashes":[${hashes.join(",")}],"pin":true}`;
}

/** Some clients ask again and again for `seconds`; how many answers there were. */
async function ask(url: string, seconds: number, clients: number, init: RequestInit = {}) {
  const endMs = performance.now() + seconds * 1_000;
  let answers = 0;
  const one = async () => {
    while (performance.now() < endMs) {
      const response = await fetch(url, init).catch(() => null);
      if (response === null) continue;
      await response.arrayBuffer();
      answers++;
    }
  };
  await Promise.all(Array.from({ length: clients }, one));
  return answers;
}

function natsMessage(subject: string, body: string): string {
  return `PUB ${subject} isolation.answers ${body.length}\r\n${body}\r\n`;
}

async function idleHttp(port: number, count: number, head: string): Promise<number> {
  let opened = 0;
  for (let from = 0; from < count; from += 250) {
    const some = Array.from({ length: Math.min(250, count - from) }, () => dial(port));
    for (const socket of await Promise.all(some)) {
      if (socket === null) continue;
      opened++;
      if (head !== "") socket.write(head);
    }
  }
  return opened;
}

async function engines(socketPath: string, count: number): Promise<EngineClient[]> {
  const options = { socketPath, manifest: manifestBytes("greedy"), name: "greedy" };
  const clients: EngineClient[] = [];
  for (let i = 0; i < count; i++) {
    const client = await EngineClient.connect(loadNative(), options).catch(() => null);
    if (client === null) break;
    clients.push(client);
    ends.push(() => client[Symbol.asyncDispose]());
  }
  return clients;
}

/** Of a header's value, which HTTP forbids or a parser may stumble over. */
const BROKEN = ["\x7f", "\0", "\x01", "\n", "\xff", "\t".repeat(64), "x".repeat(8_000), ": :", ""];

/** A chat with one to four broken headers that asks for worker 0 or 1. */
function brokenRequest(random: Random, nth: number): Buffer {
  const body = '{"model":"acme/tiny-chat","messages":[{"role":"user","content":"x"}]}';
  const broken = Array.from({ length: 1 + randomBelow(random, 4) }, (_, i) => {
    const piece = BROKEN[randomBelow(random, BROKEN.length)]!;
    const name = randomBelow(random, 8) === 0 ? `X-Fuzz${piece}` : `X-Fuzz-${i}`;
    return `${name}: a${piece}b`;
  });
  const lines = [
    ...["POST /v1/chat/completions HTTP/1.1", ...broken],
    ...[`x-dynamo-worker-instance-id: engine-${nth % 2}`, `Content-Length: ${body.length}`],
    ...[...COMMON, body],
  ];
  return Buffer.from(lines.join("\r\n"), "latin1");
}

let publisher: Awaited<ReturnType<typeof bindPublisher>> | null = null;

await obey({
  async publisher() {
    const endpoint = "tcp://127.0.0.1:0";
    publisher = await bindPublisher({ clock: systemClock, random: systemRandom, endpoint });
    return publisher.endpoint;
  },
  "nats-commands": (port) => {
    const pin = '{"type":"Cache","block_hashes":[1,2,3],"pin":true}';
    return publish(Number(port), natsMessage("kv-control-isolation", pin));
  },
  /** As many blocks as a command may have, and bodies beyond that. */
  "nats-large": async (port) => {
    for (const blocks of [1_024, 45_000]) {
      const subject = "kv-control-isolation";
      await publish(Number(port), natsMessage(subject, pinOf(blocks)), 1_000, 10);
    }
    return 2_000;
  },
  "nats-ping": (port) => publish(Number(port), natsMessage("$SRV.PING", "")),
  "zmq-batch": () => {
    const hashes = Array.from({ length: BLOCKS }, (_, i) => BigInt(i + 1) << 20n);
    const tokens = Uint32Array.from({ length: BLOCKS * BLOCK_TOKENS }, (_, i) => i & 0xffff);
    const payload = encodeEngineBatch({
      ...{ seconds: 1, rank: 0 },
      events: [
        {
          kind: "stored",
          ...{ hashes, parent: null, tokens, blockTokens: BLOCK_TOKENS },
          ...{ loraName: null, loraId: null, medium: "GPU", extras: null, group: null },
          ...{ cacheSalt: null, locality: null, ownership: null, sessionId: null },
          eagleNext: null,
        },
      ],
    });
    publisher!.publish([new Uint8Array(), new Uint8Array(8), payload]);
    return payload.length;
  },
  bodies: async (port) => {
    const body = `${(2 ** 19).toString(16)}\r\n${"x".repeat(2 ** 19)}\r\n`;
    const head = ["POST /v1/commands HTTP/1.1", "Transfer-Encoding: chunked", ...COMMON, body];
    return idleHttp(Number(port), 100, head.join("\r\n"));
  },
  /** The same against a proxy. */
  "proxy-bodies": async (port) => {
    const body = `${(2 ** 19).toString(16)}\r\n${"x".repeat(2 ** 19)}\r\n`;
    const start = "POST /v1/chat/completions HTTP/1.1";
    const head = [start, "Transfer-Encoding: chunked", ...COMMON, body];
    return idleHttp(Number(port), 100, head.join("\r\n"));
  },
  idle: (port) => idleHttp(Number(port), 10_000, ""),
  greedy: async (socketPath) => {
    const clients = await engines(socketPath, 256);
    for (const client of clients) {
      const names = Array.from({ length: 512 }, (_, i) => `greedy-${clients.indexOf(client)}-${i}`);
      await new Engine(client).reserve(...names).catch(() => null);
    }
    return clients.length;
  },
  /** 300 connections at a time, opened again as soon as they are closed. */
  connections: async (socketPath, seconds) => {
    const options = { socketPath, manifest: manifestBytes("greedy"), name: "greedy" };
    const native = loadNative();
    const endMs = performance.now() + Number(seconds) * 1_000;
    let tried = 0;
    const one = async () => {
      while (performance.now() < endMs) {
        tried++;
        const client = await EngineClient.connect(native, options).catch(() => null);
        await client?.[Symbol.asyncDispose]();
      }
    };
    await Promise.all(Array.from({ length: 300 }, one));
    return tried;
  },
  http: (port, seconds) => ask(`http://127.0.0.1:${port}/healthz`, Number(seconds), 64),
  metrics: (port, seconds) => ask(`http://127.0.0.1:${port}/metrics`, Number(seconds), 16),
  "http-large": (port, seconds) =>
    ask(`http://127.0.0.1:${port}/v1/commands`, Number(seconds), 8, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: pinOf(1_024),
    }),
  /** Requests with broken headers that name each worker, on several connections at a time. */
  headers: async (port, seconds) => {
    const endMs = performance.now() + Number(seconds) * 1_000;
    const random = seededRandom(7);
    let sent = 0;
    const one = async () => {
      while (performance.now() < endMs) {
        const socket = await dial(Number(port));
        socket?.write(brokenRequest(random, sent++));
        await Bun.sleep(20);
        socket?.destroy();
      }
    };
    await Promise.all(Array.from({ length: 8 }, one));
    return sent;
  },
  /** Ends what the floods opened. */
  async end() {
    for (const end of ends.splice(0)) await end();
  },
});
