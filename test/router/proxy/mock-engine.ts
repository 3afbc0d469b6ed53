import { sleep, systemClock } from "../../../src/core/index.ts";
import { apiAnswer, ENGINE_VERSION } from "./mock-apis.ts";

/** Behaviour of an engine for its next requests. */
export interface EngineManners {
  /** Delay until the head of an answer. */
  readonly headMs: number;
  /** Delay from the head to the first token. */
  readonly firstTokenMs: number;
  /** Delay between tokens. */
  readonly tokenMs: number;
  /** Number of tokens after which the connection breaks. Null: never. */
  readonly diesAfter: number | null;
  /** Refusal sent instead of an answer. */
  readonly refuses: { readonly status: number; readonly body: unknown } | null;
  /** KV parameters of a prefill worker's answer. Null: none. */
  readonly kvTransferParams: unknown;
  /** Reasoning text in front of the content. */
  readonly reasoning: string | null;
  /** Status of `GET /health`. Null: no answer. */
  readonly health: number | null;
  /** Endpoint of KV events in vLLM's notation. Null: the path does not exist. */
  readonly eventsEndpoint: string | null;
  /** Prompt tokens to report. Null: the number of characters of the body. */
  readonly promptTokens: number | null;
}

export const POLITE: EngineManners = {
  headMs: 0,
  firstTokenMs: 0,
  tokenMs: 0,
  diesAfter: null,
  refuses: null,
  kvTransferParams: null,
  reasoning: null,
  health: 200,
  eventsEndpoint: null,
  promptTokens: null,
};

export interface SeenRequest {
  readonly path: string;
  readonly headers: Headers;
  readonly text: string;
  readonly body: Record<string, unknown>;
}

type Fields = Record<string, unknown>;

/** Output of an engine, which depends only on the prompt. */
export function wordsFor(body: Fields): string[] {
  const limit = body.max_completion_tokens ?? body.max_tokens ?? body.max_output_tokens;
  const count = Number(limit ?? 16);
  const prompt = body.messages ?? body.prompt ?? body.input ?? null;
  const seed = Bun.hash.xxHash3(JSON.stringify(prompt));
  return Array.from({ length: count }, (_, i) => {
    const word = Bun.hash
      .xxHash3(String(i), seed)
      .toString(36)
      .slice(0, 1 + (i % 7));
    return `${i === 0 ? "" : " "}${word}${i % 5 === 4 ? " — ü€😀\n" : ""}`;
  });
}

/** HTTP server with the answers of vLLM or SGLang and configurable behaviour. */
export class MockEngine implements Disposable {
  readonly kind: "vllm" | "sglang";
  readonly model: string;
  readonly seen: SeenRequest[] = [];
  readonly urls: string[] = [];
  manners: EngineManners = POLITE;
  healthChecks = 0;
  /** Requests whose client disconnected before the end. */
  aborted = 0;
  /** Requests in flight. */
  live = 0;
  liveMost = 0;
  readonly #server: Bun.Server<undefined>;

  constructor(kind: "vllm" | "sglang", model: string, port = 0) {
    [this.kind, this.model] = [kind, model];
    this.#server = Bun.serve({
      port,
      hostname: "127.0.0.1",
      idleTimeout: 0,
      development: false,
      fetch: (request) => this.#answer(request),
    });
  }

  get url(): string {
    return `http://127.0.0.1:${this.#server.port}`;
  }

  get port(): number {
    return this.#server.port!;
  }

  [Symbol.dispose](): void {
    void this.#server.stop(true);
  }

  async #answer(request: Request): Promise<Response> {
    const path = new URL(request.url).pathname;
    if (path !== "/health") this.urls.push(request.url);
    const { signal } = request;
    if (request.method === "GET") return this.#look(path, request);
    const text = await request.text();
    const body = JSON.parse(text || "{}") as Fields;
    this.seen.push({ path, headers: request.headers, text, body });
    const { refuses, headMs } = this.manners;
    if (headMs > 0) await pause(headMs, signal);
    if (signal.aborted) {
      this.aborted++;
      return new Response(null, { status: 499 });
    }
    if (refuses !== null) return Response.json(refuses.body, { status: refuses.status });
    const writer = writerOf(this.kind, this.model, path, body, this.manners);
    if (writer === null) return Response.json({ detail: "Not Found" }, { status: 404 });
    if (body.stream !== true) {
      if (this.manners.tokenMs > 0) await pause(this.manners.tokenMs, signal);
      if (this.manners.diesAfter !== null) return new Response(dying(writer.whole()));
      return new Response(writer.whole(), { headers: { "content-type": "application/json" } });
    }
    return this.#stream(writer, signal);
  }

  async #look(path: string, { headers, signal }: Request): Promise<Response> {
    const { health, eventsEndpoint } = this.manners;
    if (path === "/health") {
      this.healthChecks++;
      if (health === null) await pause(3_600_000, signal);
      return new Response(null, { status: health ?? 499 });
    }
    if (path === "/kv_event_sources") {
      if (eventsEndpoint === null) return new Response(null, { status: 404 });
      const source = { enable_kv_cache_events: true, publisher: "zmq", endpoint: eventsEndpoint };
      return Response.json({ "0": { ...source, replay_endpoint: null, topic: "" } });
    }
    this.seen.push({ path, headers, text: "", body: {} });
    if (path === "/v1/models") return Response.json(modelList(this.kind, this.model));
    if (path === "/version") return Response.json({ version: ENGINE_VERSION });
    if (path.startsWith("/v1/responses/")) return Response.json({ id: path.slice(14) });
    return Response.json({ detail: "Not Found" }, { status: 404 });
  }

  #stream(writer: Writer, signal: AbortSignal): Response {
    const { firstTokenMs, tokenMs, diesAfter } = this.manners;
    const chunks = writer.chunks();
    let [sent, isOver] = [0, false];
    this.live++;
    this.liveMost = Math.max(this.liveMost, this.live);
    const end = (isAborted: boolean) => {
      if (isOver) return;
      isOver = true;
      this.live--;
      // Many clients disconnect after the last event. That does not count as an abort.
      if (isAborted && sent < chunks.length) this.aborted++;
    };
    const encoder = new TextEncoder();
    const stream = new ReadableStream<Uint8Array>({
      pull: async (controller) => {
        await pause(sent === 0 ? firstTokenMs : tokenMs, signal);
        if (isOver) return;
        if (diesAfter !== null && sent >= diesAfter) {
          end(false);
          // Half an event, as left by a killed process.
          controller.enqueue(encoder.encode('data: {"id":"half'));
          await pause(5, signal);
          return controller.error(new Error("the engine dies"));
        }
        const chunk = chunks[sent++];
        if (chunk !== undefined) return controller.enqueue(encoder.encode(chunk));
        end(false);
        controller.close();
      },
      cancel: () => end(true),
    });
    const headers = { "content-type": "text/event-stream; charset=utf-8", "x-engine": this.kind };
    return new Response(stream, { headers });
  }
}

async function pause(ms: number, signal: AbortSignal): Promise<void> {
  if (ms > 0) await sleep(systemClock, ms, signal).catch(() => undefined);
}

/** Half of a body, then nothing. */
function dying(text: string): ReadableStream<Uint8Array> {
  let isSent = false;
  return new ReadableStream({
    async pull(controller) {
      if (isSent) {
        await pause(5, new AbortController().signal);
        return controller.error(new Error("the engine dies"));
      }
      isSent = true;
      controller.enqueue(new TextEncoder().encode(text.slice(0, text.length / 2)));
    },
  });
}

function modelList(kind: string, id: string): unknown {
  const card = { id, object: "model", created: 1_790_000_000, root: id, parent: null };
  return { object: "list", data: [{ ...card, owned_by: kind, max_model_len: 32_768 }] };
}

interface Writer {
  whole(): string;
  chunks(): string[];
}

/** Null: the engine has no such path. */
function writerOf(
  kind: "vllm" | "sglang",
  model: string,
  path: string,
  body: Fields,
  manners: EngineManners,
): Writer | null {
  if (/\/v1\/responses\/[^/]+\/cancel$/.test(path)) return jsonWriter({ status: "cancelled" });
  const other = apiAnswer(path, model, body, wordsFor(body), manners.promptTokens);
  if (other !== null) {
    const { whole, events } = other;
    const lines = events?.map(
      ({ name, data }) => `event: ${name}\ndata: ${JSON.stringify(data)}\n\n`,
    );
    return { ...jsonWriter(whole), chunks: () => [...(lines ?? [])] };
  }
  if (!/^\/v1\/(?:chat\/)?completions$/.test(path)) return null;
  return new AnswerWriter(kind, model, path.endsWith("/chat/completions"), body, manners);
}

function jsonWriter(whole: unknown): Writer {
  return { whole: () => JSON.stringify(whole), chunks: () => [] };
}

/** Builds answers in the shapes of both engines. */
class AnswerWriter implements Writer {
  readonly #kind: string;
  readonly #isChat: boolean;
  readonly #body: Fields;
  readonly #manners: EngineManners;
  readonly #words: string[];
  readonly #head: Fields;

  constructor(kind: string, model: string, isChat: boolean, body: Fields, manners: EngineManners) {
    [this.#kind, this.#isChat, this.#body, this.#manners] = [kind, isChat, body, manners];
    this.#words = wordsFor(body);
    const id = `${isChat ? "chatcmpl" : "cmpl"}-${this.#words.length}`;
    const name = isChat ? "chat.completion" : "text_completion";
    const isChunk = isChat && body.stream === true;
    this.#head = { id, object: isChunk ? `${name}.chunk` : name, created: 1_790_000_000, model };
  }

  whole(): string {
    const content = this.#words.join("");
    const end = this.#end("stop");
    const message = { role: "assistant", content, tool_calls: [], ...this.#reasoning() };
    const choice = this.#isChat
      ? { index: 0, message, logprobs: null, ...end }
      : { index: 0, text: content, logprobs: null, ...end };
    const { kvTransferParams } = this.#manners;
    const transfer = kvTransferParams === null ? {} : { kv_transfer_params: kvTransferParams };
    return JSON.stringify({ ...this.#head, choices: [choice], usage: this.#usage(), ...transfer });
  }

  chunks(): string[] {
    const events: unknown[] = [];
    if (this.#isChat) events.push(this.#chunk({ delta: { role: "assistant", content: "" } }));
    const reasoning = this.#reasoning();
    if (this.#isChat && reasoning !== null) events.push(this.#chunk({ delta: reasoning }));
    for (const word of this.#words) {
      events.push(this.#chunk(this.#isChat ? { delta: { content: word } } : { text: word }));
    }
    events.push(
      this.#chunk({ ...(this.#isChat ? { delta: {} } : { text: "" }), ...this.#end("length") }),
    );
    const options = this.#body.stream_options as Fields | undefined;
    if (options?.include_usage === true) {
      events.push({ ...this.#head, choices: [], usage: this.#usage() });
    }
    return [...events.map((event) => `data: ${JSON.stringify(event)}\n\n`), "data: [DONE]\n\n"];
  }

  #chunk(fields: Fields): Fields {
    const choice = { index: 0, logprobs: null, finish_reason: null, ...fields };
    return { ...this.#head, choices: [choice] };
  }

  #end(reason: string): Fields {
    const stop = this.#kind === "vllm" ? { stop_reason: null } : { matched_stop: null };
    return { finish_reason: reason, ...stop };
  }

  #reasoning(): Fields | null {
    const { reasoning } = this.#manners;
    if (reasoning === null) return null;
    return this.#kind === "vllm" ? { reasoning } : { reasoning_content: reasoning };
  }

  #usage(): Fields {
    const completion = this.#words.length;
    const characters = JSON.stringify(this.#body.messages ?? this.#body.prompt).length;
    const prompt = this.#manners.promptTokens ?? characters;
    const total = prompt + completion;
    return { prompt_tokens: prompt, total_tokens: total, completion_tokens: completion };
  }
}
