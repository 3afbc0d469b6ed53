import { expect, test } from "bun:test";
import fc from "fast-check";
import { EventCutter, OutputCount } from "../../../src/router/proxy/index.ts";
import { describeNative, waitFor } from "../../support/index.ts";
import { POLITE } from "./mock-engine.ts";
import { chunkOf, RawEngine, STREAM_HEAD } from "./raw-engine.ts";
import { MODEL, Rig } from "./rig.ts";

const CHAT = "/v1/chat/completions";
const ASK = { model: MODEL, messages: [{ role: "user", content: "Hello?" }], max_tokens: 30 };

/** White space, field order and numbers that no JSON serialiser would reproduce. */
const ODD_BODY = `{ "seed": 12345678901234567890 ,"temperature":1.0,
  "model" : "${MODEL}", "stream":true, "unknown": {"a": [1,2e0, "\\u00fc/\\/"]},
  "messages":[{"role":"user","content":"Hi \\ud83d\\ude00"}] }\n`;

describeNative("requests and answers that pass through the proxy", () => {
  for (const kind of ["vllm", "sglang"] as const) {
    for (const stream of [true, false]) {
      test(`${kind}, ${stream ? "a stream" : "no stream"}: passed byte for byte`, async () => {
        await using rig = await Rig.open({ model: { engine: kind } });
        const engine = rig.engine("a", kind);
        const options = stream ? { stream, stream_options: { include_usage: true } } : {};
        for (const [path, body] of [
          [CHAT, { ...ASK, ...options }],
          ["/v1/completions", { model: MODEL, prompt: "Once", ...options }],
        ] as const) {
          const text = JSON.stringify(body);
          const init = { method: "POST", body: text };
          const direct = await (await fetch(`${engine.url}${path}`, init)).arrayBuffer();
          const proxied = await rig.post(path, text);
          expect(Buffer.from(await proxied.arrayBuffer())).toEqual(Buffer.from(direct));
          expect(engine.seen.at(-1)?.text).toBe(text);
          if (stream) expect(proxied.headers.get("x-engine")).toBe(kind);
        }
      });
    }
  }

  test("a request body is forwarded byte for byte", async () => {
    await using rig = await Rig.open();
    const engine = rig.engine("a");
    await (await rig.post(CHAT, ODD_BODY)).text();
    expect(engine.seen[0]?.text).toBe(ODD_BODY);
    expect(engine.seen[0]?.headers.get("content-type")).toBe("application/json");
  });

  test("added fields are appended and nothing else changes", async () => {
    await using rig = await Rig.open();
    const engine = rig.engine("a");
    const headers = { "x-tenant-id": "blue" };
    await (await rig.post(CHAT, ODD_BODY, { headers })).text();
    expect(engine.seen[0]?.text).toBe(ODD_BODY.replace(" }\n", ' ,"cache_salt":"blue"}'));
  });

  test("a replaced field is removed, and exact integers are kept", async () => {
    await using rig = await Rig.open();
    const engine = rig.engine("a");
    const text = ODD_BODY.replace("{", '{"cache_salt":"red",');
    await (await rig.post(CHAT, text, { headers: { "x-tenant-id": "blue" } })).text();
    expect(engine.seen[0]?.body.cache_salt).toBe("blue");
    expect(engine.seen[0]?.text).toContain('"seed":12345678901234567890');
  });

  test("strip_fields removes fields at every depth", async () => {
    await using rig = await Rig.open({ model: { stripFields: ["cache_control", "nvext"] } });
    const engine = rig.engine("a");
    const cache_control = { type: "ephemeral" };
    const content = [{ type: "text", text: "Hello?", cache_control }];
    const body = { ...ASK, nvext: { agent_hints: {} }, messages: [{ role: "user", content }] };
    await (await rig.post(CHAT, body)).text();
    const kept = [{ role: "user", content: [{ type: "text", text: "Hello?" }] }];
    expect(engine.seen[0]?.body).toEqual({ ...ASK, messages: kept });
    await using plain = await Rig.open();
    const other = plain.engine("a");
    await (await plain.post(CHAT, body)).text();
    expect(other.seen[0]?.body).toEqual(body as never);
  });

  test("connection headers are dropped, all others are forwarded", async () => {
    await using rig = await Rig.open({ settings: { authorization: { value: "Bearer engine" } } });
    const engine = rig.engine("a");
    const headers = {
      authorization: "Bearer client",
      "x-request-id": "mine",
      "x-own": "1",
      connection: "x-secret",
      "x-secret": "2",
      te: "trailers",
    };
    await (await rig.post(CHAT, ASK, { headers })).text();
    const seen = engine.seen[0]!.headers;
    expect(seen.get("authorization")).toBe("Bearer engine");
    expect(seen.get("x-request-id")).toBe("mine");
    expect(seen.get("x-own")).toBe("1");
    expect(seen.get("te")).toBeNull();
    expect(seen.get("host")).toBe(`127.0.0.1:${engine.port}`);
  });

  test("an engine with several ranks receives the rank", async () => {
    await using rig = await Rig.open();
    const engine = rig.engine("a");
    rig.worker("a", engine.url, "both", 1);
    const headers = { "x-dynamo-worker-instance-id": "a", "x-dynamo-dp-rank": "1" };
    await (await rig.post(CHAT, ASK, { headers })).text();
    expect(engine.seen[0]?.headers.get("x-data-parallel-rank")).toBe("1");
    const other = rig.engine("b");
    const direct = { "x-dynamo-worker-instance-id": "b" };
    await (await rig.post(CHAT, ASK, { headers: direct })).text();
    expect(other.seen[0]?.headers.get("x-data-parallel-rank")).toBeNull();
  });

  test("bodies that are too long, invalid or of the wrong shape are refused", async () => {
    await using rig = await Rig.open({ settings: { bodyBytesMax: 4_096 } });
    const engine = rig.engine("a");
    const long = JSON.stringify({ ...ASK, user: "x".repeat(5_000) });
    expect((await rig.post(CHAT, long)).status).toBe(413);
    const parts = new ReadableStream({
      start(controller) {
        for (let i = 0; i < 10; i++) controller.enqueue(new Uint8Array(1_000));
        controller.close();
      },
    });
    expect((await fetch(`${rig.url}${CHAT}`, { method: "POST", body: parts })).status).toBe(413);
    for (const text of ["", "{", "[]", '"x"', '{"model":1}', `{"a":${"[".repeat(300)}`]) {
      const response = await rig.post(CHAT, text);
      expect([text, response.status]).toEqual([text, 400]);
      const { error } = (await response.json()) as { error: { type: string } };
      expect(error.type).toBe("invalid_request_error");
    }
    expect((await fetch(`${rig.url}${CHAT}`)).status).toBe(405);
    expect((await fetch(`${rig.url}/v1/other`)).status).toBe(404);
    expect(engine.seen).toEqual([]);
    expect(rig.proxy.snapshot().active).toBe(0);
  });

  test("models are listed as the workers describe them", async () => {
    await using rig = await Rig.open({ model: { loras: ["tuned"] } });
    rig.engine("a");
    const list = (await (await fetch(`${rig.url}/v1/models`)).json()) as {
      data: Record<string, unknown>[];
    };
    expect(list.data.map(({ id }) => id)).toEqual([MODEL, "tuned"]);
    expect(list.data[0]).toMatchObject({ owned_by: "vllm", max_model_len: 32_768 });
    expect(list.data[1]).toMatchObject({ parent: MODEL, owned_by: "hearth" });
    const one = await fetch(`${rig.url}/v1/models/${encodeURIComponent(MODEL)}`);
    expect(await one.json()).toEqual(list.data[0] as never);
    expect((await fetch(`${rig.url}/v1/models/other`)).status).toBe(404);
  });

  test("models of silent workers are listed with default cards", async () => {
    await using rig = await Rig.open();
    using engine = new RawEngine((socket) => void socket.end());
    rig.worker("a", engine.url);
    const list = (await (await fetch(`${rig.url}/v1/models`)).json()) as { data: unknown[] };
    expect(list.data).toMatchObject([{ id: MODEL, owned_by: "hearth" }]);
  });

  test("an adapter is routed to its model's workers under its own name", async () => {
    await using rig = await Rig.open({ model: { loras: ["tuned"] } });
    const engine = rig.engine("a");
    const seen: unknown[] = [];
    rig.router.listen({ routed: ({ model, loraName }) => void seen.push([model, loraName]) });
    for (const model of ["tuned", `${MODEL}:other`, MODEL]) {
      await (await rig.post(CHAT, { ...ASK, model })).text();
    }
    expect(seen).toEqual([
      [MODEL, "tuned"],
      [MODEL, "other"],
      [MODEL, undefined],
    ]);
    expect(engine.seen.map(({ body }) => body.model)).toEqual(["tuned", `${MODEL}:other`, MODEL]);
  });

  test("session, priority, salt and expected output reach the router", async () => {
    await using rig = await Rig.open();
    rig.engine("a");
    const seen: unknown[] = [];
    rig.router.listen({
      routed({ sessionId, priority, cacheSalt, expectedOutputTokens }) {
        seen.push([sessionId, priority, cacheSalt, expectedOutputTokens]);
      },
    });
    const agent = { agent_hints: { priority: 3, osl: 200 }, cache_salt: "from nvext" };
    const asks: readonly (readonly [Record<string, string>, object])[] = [
      [{ "x-dynamo-session-id": "s", "x-session-id": "t" }, { user: "u" }],
      [{ "x-claude-code-session-id": "s", "x-claude-code-agent-id": "a" }, {}],
      [{ "thread-id": "codex" }, { cache_salt: "own", nvext: agent }],
      [{ "x-tenant-id": "blue" }, { user: "u", cache_salt: "own", nvext: agent }],
      [{ "x-dynamo-request-priority": "-2" }, { prompt_cache_key: "k", nvext: agent }],
      [{ "x-dynamo-request-strict-priority": "1" }, { nvext: { agent_hints: { osl: -1 } } }],
    ];
    for (const [headers, more] of asks) {
      await (await rig.post(CHAT, { ...ASK, ...more }, { headers })).text();
    }
    const none = undefined;
    expect(seen).toEqual([
      ["s", none, none, none],
      ["s/a", none, none, none],
      ["codex", 3, "own", 200],
      ["u", 3, "blue", 200],
      ["k", -2, "from nvext", 200],
      [none, 2 ** 32, none, none],
    ]);
  });

  test("a client may choose the worker unless client routing is off", async () => {
    for (const clientsMayRoute of [true, false]) {
      await using rig = await Rig.open({ settings: { clientsMayRoute } });
      rig.engine("a");
      const headers = { "x-dynamo-worker-instance-id": "nobody" };
      const response = await rig.post(CHAT, ASK, { headers });
      expect(response.status).toBe(clientsMayRoute ? 400 : 200);
    }
  });

  test("token prompts are used unchanged, and the first of several counts", async () => {
    await using rig = await Rig.open();
    rig.engine("a");
    const seen: number[][] = [];
    rig.router.listen({
      routed: ({ prompt }) => void (prompt.kind === "tokens" && seen.push([...prompt.tokens])),
    });
    for (const prompt of [
      [1, 2, 3],
      [[4, 5], [6]],
      ["abcd", "efgh"],
    ]) {
      await (await rig.post("/v1/completions", { model: MODEL, prompt })).text();
    }
    expect(seen).toEqual([[1, 2, 3], [4, 5], [0x64636261]]);
  });

  test("output is counted by events, then by the worker's usage", async () => {
    await using rig = await Rig.open();
    rig.engine("a").manners = { ...POLITE };
    await (await rig.post(CHAT, { ...ASK, stream: true })).text();
    // Role, 30 words, end: the worker was not asked for usage.
    await waitFor(() => rig.proxy.snapshot().outputTokens === 32);
    const stream_options = { include_usage: true };
    await (await rig.post(CHAT, { ...ASK, stream: true, stream_options })).text();
    await waitFor(() => rig.proxy.snapshot().outputTokens === 62);
  });

  test("a stream in arbitrary pieces is passed event by event", async () => {
    const text = 'data: {"choices":[{"index":0,"delta":{"content":"ü€😀"}}]}\r\n\r\n: ping\n\n';
    const bytes = Buffer.from(`${text.repeat(3)}data: [DONE]\n\n`);
    using engine = new RawEngine(async (socket) => {
      socket.write(STREAM_HEAD);
      for (const byte of bytes) {
        socket.write(`1\r\n`);
        socket.write(Uint8Array.of(byte));
        socket.write("\r\n");
        if (byte % 7 === 0) await Bun.sleep(0);
      }
      socket.write("0\r\n\r\n");
    });
    await using rig = await Rig.open();
    rig.worker("a", engine.url);
    const response = await rig.post(CHAT, { ...ASK, stream: true });
    expect(Buffer.from(await response.arrayBuffer())).toEqual(bytes);
    expect(chunkOf("ü")).toBe("2\r\nü\r\n");
  });
});

/** Literal definition: an event ends with the line end of an empty line. */
function endOfEvents(text: string): number {
  const lines = [...text.matchAll(/([^\r\n]*)(\r\n|\n|\r)/g)];
  const last = lines.findLast(([, content]) => content === "");
  return last === undefined ? 0 : last.index + last[0].length;
}

test("events are cut after empty lines for any pieces", () => {
  const letter = fc.constantFrom("\n", "\r", "\r\n", "\n\n", "data: x", "y", ":");
  const pieces = fc.array(fc.array(letter, { maxLength: 4 }), { maxLength: 8 });
  fc.assert(
    fc.property(pieces, (parts) => {
      const cutter = new EventCutter();
      let [all, out] = ["", ""];
      for (const part of parts.map((letters) => letters.join(""))) {
        all += part;
        for (const bytes of cutter.push(Buffer.from(part))) out += Buffer.from(bytes).toString();
        expect(all).toStartWith(out);
      }
      const rest = Buffer.concat(cutter.takeHeld()).toString();
      expect(out + rest).toBe(all);
      expect(out.length).toBe(endOfEvents(all));
    }),
    { numRuns: 2_000 },
  );
});

test("an event over the size limit is passed in parts", () => {
  const cutter = new EventCutter();
  const piece = Buffer.alloc(100_000, "x");
  const out = [1, 2, 3, 4].flatMap(() => cutter.push(piece));
  expect(out.reduce((sum, { length }) => sum + length, 0)).toBe(300_000);
});

test("tokens are counted by events until the worker reports usage", () => {
  const count = new OutputCount();
  expect(count.addEvents(Buffer.from(": ping\n\n"))).toBe(false);
  expect(count.addEvents(Buffer.from("data: {}\n\ndata:{}\n\ndata: [DONE]\n\n"))).toBe(true);
  expect(count.tokens).toBe(2);
  count.addEvents(Buffer.from('data: {"a":"\\"completion_tokens\\": 7"}\n\n'));
  expect(count.tokens).toBe(3);
  count.addEvents(Buffer.from('data: {"usage":{"completion_tokens": 41,"x":1}}\n\n'));
  expect(count.tokens).toBe(41);
});
