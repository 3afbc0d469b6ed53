import { expect, test } from "bun:test";
import { describeNative, waitFor } from "../../support/index.ts";
import { POLITE, wordsFor } from "./mock-engine.ts";
import { chunkOf, deadUrl, RawEngine, STREAM_HEAD } from "./raw-engine.ts";
import { MODEL, Rig, type RigOptions } from "./rig.ts";

const CHAT = "/v1/chat/completions";
const ASK = { model: MODEL, messages: [{ role: "user", content: "Hello?" }], max_tokens: 6 };
const STREAM = { ...ASK, stream: true };

/** Calls that the router received, without ids. */
function toldOf(rig: Rig): string[] {
  return rig.told.map((line) => line.split(" ")[0]!);
}

async function errorOf(response: Response): Promise<Record<string, unknown>> {
  expect(response.headers.get("content-type")).toBe("application/json");
  const { error } = (await response.json()) as { error: Record<string, unknown> };
  expect(Object.keys(error).sort()).toEqual(["code", "message", "param", "status", "type"]);
  return error;
}

/** Opens a proxy with a failing worker, which is chosen first, and a good one. */
async function openPair(url: string, options: RigOptions = {}) {
  // Round robin chooses the failing worker first.
  const router = { mode: "round-robin" as const };
  const rig = await Rig.open({ ...options, router });
  rig.worker("bad", url);
  return rig;
}

/** The content of a stream's events, and the last event. */
function eventsOf(text: string): string[] {
  return text.split("\n\n").filter((event) => event !== "");
}

describeNative("a worker that fails before its first byte", () => {
  const ways: readonly (readonly [string, (socket: Bun.Socket<undefined>) => void])[] = [
    ["closes the connection", (socket) => void socket.end()],
    ["resets the connection", (socket) => void socket.terminate()],
    [
      "sends a head and dies",
      (socket) => {
        socket.write(STREAM_HEAD);
        socket.end();
      },
    ],
  ];
  for (const [way, act] of ways) {
    test(`${way}: another one answers`, async () => {
      using bad = new RawEngine((socket) => act(socket));
      await using rig = await openPair(bad.url);
      rig.engine("good");
      const response = await rig.post(CHAT, STREAM);
      expect(response.headers.get("x-hearth-worker")).toBe("good");
      expect(await response.text()).toEndWith("data: [DONE]\n\n");
      expect(bad.requests).toBeGreaterThan(0);
      await waitFor(() => toldOf(rig).length === 5);
      expect(toldOf(rig)).toEqual(["routed", "freed", "routed", "prefilled", "freed"]);
      expect(rig.proxy.snapshot()).toMatchObject({ retries: 1, active: 0 });
    });
  }

  test("a worker that refuses connections is replaced and excluded for a while", async () => {
    await using rig = await openPair(deadUrl());
    rig.engine("good");
    for (let i = 0; i < 6; i++) {
      const response = await rig.post(CHAT, ASK);
      expect(response.headers.get("x-hearth-worker")).toBe("good");
    }
    expect(rig.proxy.snapshot().retries).toBe(1);
  });

  test("a failure of the only worker is answered 502, or 504 if it is late", async () => {
    await using rig = await Rig.open({ settings: { firstByteMs: 100 } });
    rig.worker("bad", deadUrl());
    const refused = await rig.post(CHAT, ASK);
    expect(refused.status).toBe(502);
    expect(await errorOf(refused)).toMatchObject({ type: "server_error", code: "worker_failed" });
    using silent = new RawEngine(() => undefined);
    rig.worker("bad", silent.url);
    const late = await rig.post(CHAT, ASK);
    expect(late.status).toBe(504);
    expect(await errorOf(late)).toMatchObject({ code: "worker_timeout" });
    expect(rig.proxy.snapshot()).toMatchObject({ retries: 1, active: 0 });
    expect(rig.router.getPotentialLoads({ model: MODEL, prompt: NOTHING })[0]).toMatchObject({
      activeRequests: 0,
    });
  });

  test("a late worker is not replaced", async () => {
    using silent = new RawEngine(() => undefined);
    await using rig = await openPair(silent.url, { settings: { firstByteMs: 100 } });
    const good = rig.engine("good");
    expect((await rig.post(CHAT, ASK)).status).toBe(504);
    expect(good.seen).toHaveLength(0);
  });

  test("a worker that does not complete the handshake is replaced", async () => {
    using silent = new RawEngine(() => undefined);
    const url = silent.url.replace("http:", "https:");
    await using rig = await openPair(url, { settings: { connectMs: 100 } });
    rig.engine("good");
    expect((await rig.post(CHAT, ASK)).headers.get("x-hearth-worker")).toBe("good");
  });

  test("with resend off, a request that a worker had received is answered 502", async () => {
    using bad = new RawEngine((socket) => void socket.end());
    await using rig = await openPair(bad.url, { settings: { isRetriedAfterSent: false } });
    const good = rig.engine("good");
    expect((await rig.post(CHAT, ASK)).status).toBe(502);
    expect(good.seen).toHaveLength(0);
  });

  test("a connection that closes as it is reused is replaced unnoticed", async () => {
    const answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
    using engine = new RawEngine((socket, request) => {
      if (request === 2) socket.terminate();
      else socket.write(answer);
    });
    await using rig = await Rig.open();
    rig.worker("a", engine.url);
    expect(await (await rig.post(CHAT, ASK)).text()).toBe("{}");
    expect(await (await rig.post(CHAT, ASK)).text()).toBe("{}");
    expect(engine.requests).toBe(3);
    expect(engine.connections).toBe(2);
    expect(rig.proxy.snapshot()).toMatchObject({ retries: 0, outcomes: { done: 2 } });
  });
});

const NOTHING = { kind: "tokens", tokens: new Uint32Array(0) } as const;

describeNative("a worker that fails in the middle", () => {
  test("a broken stream ends with whole events, an error event and no [DONE]", async () => {
    await using rig = await Rig.open();
    rig.engine("a").manners = { ...POLITE, diesAfter: 4 };
    const response = await rig.post(CHAT, STREAM);
    const events = eventsOf(await response.text());
    const parsed = events.map((event) => JSON.parse(event.slice("data: ".length)));
    expect(parsed.slice(0, -1).every((event) => event.choices.length === 1)).toBe(true);
    expect(parsed).toHaveLength(5);
    expect(parsed.at(-1).error).toMatchObject({ code: "worker_failed", status: 502 });
    await waitFor(() => rig.told.length === 3);
    expect(toldOf(rig)).toEqual(["routed", "prefilled", "freed"]);
    expect(rig.proxy.snapshot().outcomes).toMatchObject({ worker_failed: 1, done: 0 });
  });

  test("a broken answer that is not a stream is answered 502", async () => {
    await using rig = await Rig.open();
    rig.engine("a").manners = { ...POLITE, diesAfter: 1 };
    const response = await rig.post(CHAT, ASK);
    expect(response.status).toBe(502);
    expect((await errorOf(response)).message).toContain("The worker a failed");
    await waitFor(() => rig.told.length === 3);
  });

  test("a broken long answer closes the connection", async () => {
    await using rig = await Rig.open({ settings: { heldBytesMax: 64 } });
    rig.engine("a").manners = { ...POLITE, diesAfter: 1 };
    const read = async () => (await rig.post(CHAT, { ...ASK, max_tokens: 500 })).text();
    await expect(read()).rejects.toThrow();
    await waitFor(() => rig.told.length === 3);
  });

  test("a silent stream ends with an error event", async () => {
    using engine = new RawEngine((socket) => {
      socket.write(STREAM_HEAD + chunkOf('data: {"choices":[]}\n\n'));
    });
    await using rig = await Rig.open({ settings: { idleMs: 100 } });
    rig.worker("a", engine.url);
    const events = eventsOf(await (await rig.post(CHAT, STREAM)).text());
    expect(events).toHaveLength(2);
    expect(events[1]).toContain("no data for 100 ms");
  });
});

describeNative("answers of a worker", () => {
  test("a worker's refusal of an invalid request passes unchanged", async () => {
    await using rig = await Rig.open();
    const body = {
      error: { message: "too long", type: "BadRequestError", param: null, code: 400 },
    };
    rig.engine("a").manners = { ...POLITE, refuses: { status: 400, body } };
    const response = await rig.post(CHAT, STREAM);
    expect([response.status, await response.json()]).toEqual([400, body]);
    await waitFor(() => rig.told.at(-1)?.startsWith("freed"));
  });

  test("an unavailable worker is replaced, or its answer passes if all are", async () => {
    await using rig = await Rig.open({ router: { mode: "round-robin" } });
    const body = { detail: "starting" };
    const first = rig.engine("a");
    const second = rig.engine("b");
    first.manners = { ...POLITE, refuses: { status: 503, body } };
    expect((await rig.post(CHAT, ASK)).headers.get("x-hearth-worker")).toBe("b");
    second.manners = first.manners;
    const response = await rig.post(CHAT, ASK);
    expect([response.status, await response.json()]).toEqual([503, body]);
    expect(second.seen).toHaveLength(2);
    await waitFor(() => rig.proxy.snapshot().active === 0);
    expect(toldOf(rig).filter((word) => word === "routed")).toHaveLength(4);
    expect(toldOf(rig).filter((word) => word === "freed")).toHaveLength(4);
  });

  test("a compressed answer with duplicate headers passes unchanged", async () => {
    const zipped = Bun.gzipSync(Buffer.from('{"choices":[]}'));
    const head =
      "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n" +
      `Content-Type: application/json\r\nX-Own: 1\r\nContent-Length: ${zipped.length}\r\n\r\n`;
    using engine = new RawEngine((socket) => {
      socket.write(head);
      socket.write(zipped);
    });
    await using rig = await Rig.open();
    rig.worker("a", engine.url);
    const response = await rig.post(CHAT, ASK, { decompress: false } as RequestInit);
    expect(response.headers.getSetCookie()).toEqual(["a=1", "b=2"]);
    expect(response.headers.get("content-encoding")).toBe("gzip");
    expect(response.headers.get("x-own")).toBe("1");
    expect(Buffer.from(await response.arrayBuffer())).toEqual(Buffer.from(zipped));
  });
});

describeNative("no worker to answer", () => {
  test("all workers busy is answered 529 with Retry-After, or the configured status", async () => {
    for (const [settings, status] of [
      [{}, 529],
      [{ busyStatus: 503, retryAfterSeconds: 7 }, 503],
    ] as const) {
      await using rig = await Rig.open({
        settings,
        router: { activePrefillTokensThreshold: 0, queue: { requestsMax: 0, waitMs: 1 } },
      });
      const engine = rig.engine("a");
      engine.manners = { ...POLITE, headMs: 60_000 };
      const first = new AbortController();
      const pending = rig.post(CHAT, ASK, { signal: first.signal }).catch(() => null);
      await waitFor(() => engine.seen.length === 1);
      const response = await rig.post(CHAT, ASK);
      expect(response.status).toBe(status);
      expect(response.headers.get("retry-after")).toBe(status === 529 ? "1" : "7");
      expect(await errorOf(response)).toMatchObject({ type: "overloaded_error", code: "busy" });
      first.abort();
      await pending;
    }
  });

  test("an unknown model is answered 404, a model without workers 503", async () => {
    await using rig = await Rig.open();
    const unknown = await rig.post(CHAT, { ...ASK, model: "other" });
    expect(unknown.status).toBe(404);
    expect(await errorOf(unknown)).toMatchObject({ code: "model_not_found", param: "model" });
    rig.worker("silent", null);
    const none = await rig.post(CHAT, ASK);
    expect([none.status, (await errorOf(none)).code]).toEqual([503, "no_worker"]);
  });

  test("a request beyond streams_max is answered 529", async () => {
    await using rig = await Rig.open({ settings: { streamsMax: 1 } });
    const engine = rig.engine("a");
    engine.manners = { ...POLITE, firstTokenMs: 60_000 };
    const first = new AbortController();
    const pending = rig.post(CHAT, STREAM, { signal: first.signal }).catch(() => null);
    await waitFor(() => engine.live === 1);
    expect((await rig.post(CHAT, ASK)).status).toBe(529);
    first.abort();
    await pending;
    await waitFor(() => rig.proxy.snapshot().active === 0);
    engine.manners = POLITE;
    expect((await rig.post(CHAT, ASK)).status).toBe(200);
  });
});

describeNative("a client that disconnects", () => {
  for (const [when, manners] of [
    ["before the head of an answer", { ...POLITE, headMs: 60_000 }],
    ["before the first token", { ...POLITE, firstTokenMs: 60_000 }],
    ["in the middle of a stream", { ...POLITE, tokenMs: 20 }],
  ] as const) {
    test(`${when}: frees the worker and the router at once`, async () => {
      await using rig = await Rig.open();
      const engine = rig.engine("a");
      engine.manners = manners;
      const abort = new AbortController();
      const body = { ...STREAM, max_tokens: 10_000 };
      const response = rig.post(CHAT, body, { signal: abort.signal });
      if (manners.tokenMs > 0) await (await response).body!.getReader().read();
      else await waitFor(() => engine.seen.length === 1);
      abort.abort();
      if (manners.tokenMs === 0) await expect(response).rejects.toThrow();
      await waitFor(() => rig.proxy.snapshot().active === 0);
      await waitFor(() => engine.aborted === 1 && engine.live === 0);
      await waitFor(() => rig.told.at(-1)?.startsWith("freed"));
      expect(toldOf(rig).filter((word) => word === "freed")).toHaveLength(1);
      expect(rig.proxy.snapshot().outcomes.client_left).toBe(1);
      expect(rig.faults).toEqual([]);
    });
  }

  test("a client that disconnects after [DONE] completes its request", async () => {
    using engine = new RawEngine((socket) => {
      socket.write(STREAM_HEAD + chunkOf("data: {}\n\ndata: [DONE]\n\n"));
    });
    await using rig = await Rig.open();
    rig.worker("a", engine.url);
    const abort = new AbortController();
    const response = await rig.post(CHAT, STREAM, { signal: abort.signal });
    expect(Buffer.from((await response.body!.getReader().read()).value!).toString()).toContain(
      "DONE",
    );
    abort.abort();
    await waitFor(() => rig.proxy.snapshot().active === 0);
    expect(rig.proxy.snapshot().outcomes).toMatchObject({ done: 1, client_left: 0 });
  });

  test("a client that disconnects while waiting reaches no worker", async () => {
    await using rig = await Rig.open({ router: { activePrefillTokensThreshold: 0 } });
    const engine = rig.engine("a");
    engine.manners = { ...POLITE, headMs: 60_000 };
    const [first, second] = [new AbortController(), new AbortController()];
    const one = rig.post(CHAT, ASK, { signal: first.signal }).catch(() => null);
    await waitFor(() => engine.seen.length === 1);
    const two = rig.post(CHAT, ASK, { signal: second.signal }).catch(() => null);
    await waitFor(() => rig.proxy.snapshot().active === 2);
    second.abort();
    await two;
    await waitFor(() => rig.proxy.snapshot().active === 1);
    first.abort();
    await one;
    await waitFor(() => rig.proxy.snapshot().active === 0);
    expect(engine.seen).toHaveLength(1);
  });

  test("a slow client holds its worker back", async () => {
    let written = 0;
    using engine = new RawEngine((socket) => {
      socket.write(STREAM_HEAD);
      const event = chunkOf(`data: ${"x".repeat(60_000)}\n\n`);
      const timer = setInterval(() => {
        // Writes until the kernel's buffers are full, which shows that the other side does not
        // read.
        for (let i = 0; i < 200; i++) {
          const took = socket.write(event);
          written += Math.max(0, took);
          if (took < event.length) return clearInterval(timer);
        }
        if (written > 300e6) clearInterval(timer);
      }, 1);
    });
    await using rig = await Rig.open();
    rig.worker("a", engine.url);
    const port = Number(new URL(rig.url).port);
    let got = 0;
    const text = JSON.stringify(STREAM);
    const client = await Bun.connect({
      hostname: "127.0.0.1",
      port,
      socket: {
        data(socket, bytes) {
          got += bytes.length;
          socket.pause();
        },
      },
    });
    client.write(
      `POST ${CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: ${text.length}\r\n\r\n${text}`,
    );
    await waitFor(() => got > 0);
    let before = -1;
    await waitFor(async () => {
      const isStill = written === before;
      before = written;
      await Bun.sleep(100);
      return isStill;
    });
    expect(written).toBeLessThan(64e6);
    client.terminate();
    await waitFor(() => rig.proxy.snapshot().active === 0);
  });
});

test("the mock engine's output depends only on the prompt", () => {
  expect(wordsFor(ASK)).toEqual(wordsFor(STREAM));
});
