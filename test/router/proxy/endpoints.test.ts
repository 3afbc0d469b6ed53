import { expect, test } from "bun:test";
import { describeNative, tempDir, waitFor } from "../../support/index.ts";
import { POLITE } from "./mock-engine.ts";
import { MODEL, Rig } from "./rig.ts";
import { writeTokenizer } from "./tokenizer-files.ts";

const USER = [{ role: "user", content: "Hello?" }];
/** A body for each path that is forwarded to a worker. */
const BODIES: Readonly<Record<string, Record<string, unknown>>> = {
  "/v1/chat/completions": { messages: USER },
  "/v1/completions": { prompt: "Once" },
  "/v1/chat/completions/batch": { messages: [USER, USER] },
  "/v1/responses": { input: "Hello?" },
  "/v1/messages": { messages: USER, max_tokens: 8 },
  "/v1/messages/count_tokens": { messages: USER },
  "/v1/embeddings": { input: "Hello?" },
  "/v1/score": { text_1: "a", text_2: "b" },
  "/score": { text_1: "a", text_2: "b" },
  "/v1/rerank": { query: "a", documents: ["b"] },
  "/v2/rerank": { query: "a", documents: ["b"] },
  "/rerank": { query: "a", documents: ["b"] },
  "/tokenize": { prompt: "Hello?" },
  "/detokenize": { tokens: [1, 2] },
};
const STREAMED = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"];
/** Requests that compute nothing, so the router does not record them. */
const NO_LOAD = ["/v1/messages/count_tokens", "/tokenize", "/detokenize"];

describeNative("a path of vLLM's server", () => {
  for (const [path, members] of Object.entries(BODIES)) {
    test(`${path}: passed byte for byte, with and without a model`, async () => {
      await using rig = await Rig.open();
      const engine = rig.engine("a");
      for (const more of [{ model: MODEL }, {}, { model: MODEL, stream: true }]) {
        if ("stream" in more && !STREAMED.includes(path)) continue;
        const body = JSON.stringify({ ...more, ...members });
        const proxied = await rig.post(path, body);
        const text = await proxied.text();
        expect([path, proxied.status]).toEqual([path, 200]);
        expect(engine.seen.at(-1)?.text).toBe(body);
        const direct = await fetch(`${engine.url}${path}`, { method: "POST", body });
        // The engine numbers its responses.
        const plain = (value: string) => value.replace(/resp_[0-9a-f]{8}/g, "resp_");
        expect(plain(text)).toBe(plain(await direct.text()));
      }
      await waitFor(() => rig.proxy.snapshot().active === 0);
      const isLoad = !NO_LOAD.includes(path);
      expect(rig.told.some((line) => line.startsWith("routed"))).toBe(isLoad);
      expect(rig.told.filter((line) => line.startsWith("routed")).length).toBe(
        rig.told.filter((line) => line.startsWith("freed")).length,
      );
      expect((await fetch(`${rig.url}${path}`)).status).toBe(405);
    });
  }

  test("/version is answered by a worker, /load counts the proxy's requests", async () => {
    await using rig = await Rig.open();
    const engine = rig.engine("a");
    expect(await (await fetch(`${rig.url}/version`)).json()).toEqual({ version: "0.32.0" });
    engine.manners = { ...POLITE, headMs: 60_000 };
    const abort = new AbortController();
    const members = { model: MODEL, messages: USER };
    const { signal } = abort;
    const pending = rig.post("/v1/chat/completions", members, { signal }).catch(() => null);
    await waitFor(() => engine.seen.length === 2);
    expect(await (await fetch(`${rig.url}/load`)).json()).toEqual({ server_load: 1 });
    abort.abort();
    await pending;
  });

  test("the query is forwarded to the worker", async () => {
    await using rig = await Rig.open();
    const engine = rig.engine("a");
    const body = { model: MODEL, messages: USER, max_tokens: 4 };
    expect((await rig.post("/v1/messages?beta=true", body)).status).toBe(200);
    expect(engine.urls.at(-1)).toEndWith("/v1/messages?beta=true");
  });

  test("a body without a model is refused if there are several models", async () => {
    await using rig = await Rig.open();
    rig.engine("a");
    rig.table.put({
      ...{ worker: "b" as never, rank: 0, model: "other", role: "both", url: "http://127.0.0.1:9" },
      ...{ totalBlocks: null, batchTokensMax: null, spaces: [] },
    });
    const response = await rig.post("/v1/chat/completions", { messages: USER });
    expect(response.status).toBe(400);
    expect(await response.json()).toMatchObject({ error: { param: "model" } });
  });
});

describeNative("errors of the proxy", () => {
  test("errors have the shape of the requested API", async () => {
    await using rig = await Rig.open();
    rig.engine("a");
    const body = { model: "other", messages: USER, max_tokens: 4 };
    const anthropic = await rig.post("/v1/messages", body);
    expect(anthropic.status).toBe(404);
    expect(await anthropic.json()).toMatchObject({
      type: "error",
      error: { type: "not_found_error", message: "The model `other` does not exist." },
    });
    const openai = await rig.post("/v1/responses", { model: "other", input: "x" });
    expect(await openai.json()).toMatchObject({ error: { code: "model_not_found" } });
  });

  for (const [path, last] of [
    ["/v1/messages", /^event: error\ndata: \{"type":"error","error":\{"type":"api_error"/],
    ["/v1/responses", /^event: error\ndata: \{"type":"error","message":.*"error":\{/],
  ] as const) {
    test(`end a broken stream of ${path} as its clients expect`, async () => {
      await using rig = await Rig.open();
      rig.engine("a").manners = { ...POLITE, diesAfter: 4 };
      const members = { ...BODIES[path], model: MODEL, stream: true };
      const text = await (await rig.post(path, members)).text();
      expect(text.trimEnd().split("\n\n").at(-1)).toMatch(last);
      await waitFor(() => rig.proxy.snapshot().outcomes.worker_failed === 1);
    });
  }
});

describeNative("streams of other APIs", () => {
  for (const path of ["/v1/messages", "/v1/responses"]) {
    test(`${path}: output is the worker's, and the first event is not a token`, async () => {
      await using rig = await Rig.open();
      rig.engine("a").manners = { ...POLITE, firstTokenMs: 0 };
      const limit = path === "/v1/messages" ? { max_tokens: 9 } : { max_output_tokens: 9 };
      const members = { ...BODIES[path], ...limit, model: MODEL, stream: true };
      await (await rig.post(path, members)).text();
      await waitFor(() => rig.proxy.snapshot().outputTokens === 9);
      expect(rig.proxy.snapshot().outcomes.done).toBe(1);
    });
  }
});

describeNative("a stored response", () => {
  test("requests that continue or read a stored response reach its worker", async () => {
    await using rig = await Rig.open({ router: { mode: "round-robin" } });
    const engines = new Map([
      ["a", rig.engine("a")],
      ["b", rig.engine("b")],
    ]);
    for (let i = 0; i < 4; i++) {
      const stream = i % 2 === 0;
      const first = await rig.post("/v1/responses", { model: MODEL, input: `${i}`, stream });
      const worker = first.headers.get("x-hearth-worker") ?? "";
      const id = /"(resp_[^"]+)"/.exec(await first.text())?.[1];
      const next = { model: MODEL, input: "more", previous_response_id: id };
      const second = await rig.post("/v1/responses", next);
      expect(second.headers.get("x-hearth-worker")).toBe(worker);
      expect(await (await fetch(`${rig.url}/v1/responses/${id}`)).json()).toEqual({ id });
      expect(engines.get(worker)!.seen.at(-1)?.path).toBe(`/v1/responses/${id}`);
      const cancelled = await fetch(`${rig.url}/v1/responses/${id}/cancel`, { method: "POST" });
      expect(await cancelled.json()).toEqual({ status: "cancelled" });
    }
    expect((await fetch(`${rig.url}/v1/responses/a/b`)).status).toBe(404);
  });
});

describeNative("sessions of agents", () => {
  test("sessions are identified by the headers and fields of Claude Code and Codex", async () => {
    await using rig = await Rig.open();
    rig.engine("a");
    const seen: unknown[] = [];
    rig.router.listen({ routed: ({ sessionId }) => void seen.push(sessionId) });
    const messages = { ...BODIES["/v1/messages"], model: MODEL };
    const responses = { ...BODIES["/v1/responses"], model: MODEL };
    const asks: readonly (readonly [string, object, Record<string, string>])[] = [
      [
        "/v1/messages",
        messages,
        { "x-claude-code-session-id": "s", "x-claude-code-agent-id": "a" },
      ],
      ["/v1/messages", { ...messages, metadata: { user_id: "user_1_session_2" } }, {}],
      ["/v1/responses", responses, { "thread-id": "t" }],
      ["/v1/responses", responses, { session_id: "old" }],
      ["/v1/responses", { ...responses, prompt_cache_key: "k" }, {}],
    ];
    for (const [path, body, headers] of asks) {
      await (await rig.post(path, body, { headers })).text();
    }
    expect(seen).toEqual(["s/a", "user_1_session_2", "t", "old", "k"]);
  });
});

describeNative("the same conversation over three APIs", () => {
  test("the same conversation over three APIs has equal prompt tokens", async () => {
    const tokenizer = writeTokenizer(tempDir());
    await using rig = await Rig.open({ model: { tokenizer } });
    rig.engine("a");
    const seen: (number[] | null)[] = [];
    rig.router.listen({
      routed({ prompt }) {
        seen.push(prompt.kind === "tokens" ? [...prompt.tokens] : null);
      },
    });
    const system = "Be terse.";
    const turns = [
      { role: "user", content: "What is a KV cache?" },
      { role: "assistant", content: "Keys and values." },
      { role: "user", content: "Of what?" },
    ];
    const chat = { messages: [{ role: "system", content: system }, ...turns] };
    for (const [path, body] of [
      ["/v1/chat/completions", chat],
      ["/v1/messages", { system: [{ type: "text", text: system }], messages: turns }],
      ["/v1/responses", { instructions: system, input: turns }],
      ["/v1/chat/completions/batch", { messages: [chat.messages, turns] }],
    ] as const) {
      expect((await rig.post(path, { model: MODEL, ...body })).status).toBe(200);
    }
    expect(seen).toHaveLength(4);
    expect(seen[0]?.length).toBeGreaterThan(10);
    for (const prompt of seen) expect(prompt).toEqual(seen[0]!);
    const more = { model: MODEL, input: "x", previous_response_id: "resp_unknown" };
    expect((await rig.post("/v1/responses", more)).status).toBe(200);
    expect(seen.at(-1)).toBeNull();
  });
});
