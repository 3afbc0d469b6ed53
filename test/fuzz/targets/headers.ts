import { type Random, randomBelow, seededRandom, systemClock } from "../../../src/core/index.ts";
import { loadNative } from "../../../src/native/index.ts";
import { ActiveLoad, ROUTER_DEFAULTS, Router, WorkerTable } from "../../../src/router/index.ts";
import {
  OpenAiProxy,
  PROXY_DEFAULTS,
  PROXY_MODEL_DEFAULTS,
} from "../../../src/router/proxy/index.ts";
import { ReferenceIndex } from "../../router/prefix-index/reference-index.ts";
import { must, type Target } from "../target.ts";
import { bytesOf, oneOf } from "./text-input.ts";

const MODEL = "m";
const BODY = JSON.stringify({ model: MODEL, messages: [{ role: "user", content: "x" }] });
const PATHS = ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/tokenize"] as const;
/** Of the runtime's server too: it refuses some heads before the proxy sees them. */
const STATUSES: ReadonlySet<string> = new Set(["200", "400", "404", "413", "417", "431", "501"]);
const STALL_MS = 20;
const ANSWER_MS = 5_000;

const NAMES = [
  "x-dynamo-worker-instance-id",
  "x-dynamo-dp-rank",
  "x-dynamo-request-priority",
  "x-dynamo-request-strict-priority",
  "x-claude-code-session-id",
  "thread-id",
  "x-tenant-id",
  "x-request-id",
  "authorization",
  "x-api-key",
  "connection",
  "te",
  "cookie",
  "accept-encoding",
  "X-Odd",
] as const;
const VALUES = [
  "a",
  "w",
  "\x7f",
  "a\x7fb",
  "\t",
  "\xff\xfe",
  "\x01",
  "-1",
  "1e309",
  "99999999999999999999",
  "close, x-tenant-id, authorization",
  "trailers",
  "Bearer \x7f",
  "x".repeat(9_000),
] as const;

/** The first byte chooses the path; the rest are header lines. */
function input(path: number, lines: string): Uint8Array {
  return Uint8Array.of(path, ...bytesOf(lines));
}

function generate(random: Random): Uint8Array {
  const lines = Array.from({ length: 1 + randomBelow(random, 6) }, () => {
    const blank = oneOf(["", " ", "\t", "  "], random);
    return `${oneOf(NAMES, random)}:${blank}${oneOf(VALUES, random)}\r\n`;
  });
  return input(randomBelow(random, PATHS.length), lines.join(""));
}

interface Stage {
  readonly port: number;
  readonly proxy: OpenAiProxy;
  readonly faults: unknown[];
  close(): Promise<void>;
}

async function openStage(): Promise<Stage> {
  const clock = systemClock;
  const random = seededRandom(3);
  const faults: unknown[] = [];
  const table = new WorkerTable();
  const settings = { ...ROUTER_DEFAULTS, useKvEvents: false };
  const { blockTokens, requestExpiryMs } = settings;
  const load = new ActiveLoad({ clock, blockTokens, requestExpiryMs });
  const index = new ReferenceIndex();
  const native = loadNative();
  const router = new Router({ clock, random, native, settings, table, index, load });
  const engine = Bun.serve({
    ...{ port: 0, hostname: "127.0.0.1", development: false },
    fetch: async (request) => {
      await request.arrayBuffer();
      return Response.json({ choices: [] });
    },
  });
  for (const worker of ["w", "v"]) {
    table.put({
      ...{ worker: worker as never, rank: 0, model: MODEL, role: "both" },
      ...{ url: `http://127.0.0.1:${engine.port}`, totalBlocks: null, batchTokensMax: null },
      spaces: [{ kind: "tokens", model: MODEL, blockTokens }],
    });
  }
  const models = [{ ...PROXY_MODEL_DEFAULTS, name: MODEL }];
  const proxy = await OpenAiProxy.open({
    ...{ clock, random, router, table },
    settings: { ...PROXY_DEFAULTS, models, healthEveryMs: null },
    onFault: (thrown) => void faults.push(thrown),
  });
  const server = Bun.serve({
    ...{ port: 0, hostname: "127.0.0.1", development: false },
    fetch: (request) => proxy.fetch(request),
  });
  return {
    ...{ port: server.port!, proxy, faults },
    async close() {
      await server.stop(true);
      await proxy[Symbol.asyncDispose]();
      router[Symbol.dispose]();
      await engine.stop(true);
    },
  };
}

/** The status of the answer to a request with these bytes as header lines; "": there is none. */
async function statusOf(port: number, bytes: Uint8Array): Promise<string> {
  const path = PATHS[(bytes[0] ?? 0) % PATHS.length]!;
  const head = `POST ${path} HTTP/1.1\r\nHost: localhost\r\n`;
  const rest = `Connection: close\r\nContent-Length: ${BODY.length}\r\n\r\n${BODY}`;
  const lines = Buffer.from(bytes.subarray(1));
  const end = lines.length > 0 && !lines.toString("latin1").endsWith("\r\n") ? "\r\n" : "";
  const { promise, resolve } = Promise.withResolvers<void>();
  let text = "";
  const socket = await Bun.connect({
    hostname: "127.0.0.1",
    port,
    socket: {
      data: (_socket, chunk) => {
        text += Buffer.from(chunk).toString("latin1");
        if (text.includes("\r\n\r\n")) resolve();
      },
      close: () => resolve(),
      error: () => resolve(),
    },
  });
  socket.write(Buffer.concat([Buffer.from(head), lines, Buffer.from(end), Buffer.from(rest)]));
  // Lines of the input may promise a body that never comes.
  using _deadline = systemClock.after(ANSWER_MS, () => resolve());
  await promise;
  socket.terminate();
  return /^HTTP\/1\.1 (\d{3})/.exec(text)?.[1] ?? "";
}

/** Header lines of a request to the proxy, as bytes on a connection, in front of two workers. */
export function headers(): Target {
  let stage: Promise<Stage> | null = null;
  return {
    name: "headers",
    inputBytesMax: 16 * 1024,
    stallMs: STALL_MS,
    corpus: NAMES.flatMap((name, i) => {
      return VALUES.map((value) => input(i % PATHS.length, `${name}: ${value}\r\n`));
    }),
    generate,
    async run(bytes, saw) {
      stage ??= openStage();
      const { port, proxy, faults } = await stage;
      const status = await statusOf(port, bytes);
      must(status === "" || STATUSES.has(status), `status ${status}`);
      if (faults.length > 0) throw faults.splice(0)[0];
      const { retries, outcomes } = proxy.snapshot();
      must(retries === 0, "a header makes no worker look as if it had failed");
      must(outcomes.worker_failed === 0, "a header costs no worker an answer");
      saw(`${(bytes[0] ?? 0) % PATHS.length} ${status}`);
    },
    close: async () => (await stage)?.close(),
  };
}
