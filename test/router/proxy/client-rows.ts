import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

/** Result of one path or case with a client library or program. */
export interface Row {
  readonly row: string;
  readonly ok: boolean;
  /** Failure or figure found. */
  readonly found: string;
}

export interface ClientOptions {
  /** URL of the proxy without a path. */
  readonly url: string;
  readonly model: string;
  /** Paths that the engines do not have. The proxy passes the engines' refusal on. */
  readonly missing: readonly string[];
}

const TEXT = "What is a KV cache?";
const MESSAGES = [{ role: "user" as const, content: TEXT }];
const TOKENS = 8;
const TIMEOUT_MS = 120_000;

interface Clients {
  readonly openai: OpenAI;
  readonly anthropic: Anthropic;
  post(path: string, body: unknown): Promise<Response>;
}

function clientsOf(url: string): Clients {
  const shared = { maxRetries: 0, timeout: TIMEOUT_MS };
  return {
    openai: new OpenAI({ ...shared, baseURL: `${url}/v1`, apiKey: "none" }),
    anthropic: new Anthropic({ ...shared, baseURL: url, apiKey: "none" }),
    post: (path, body) => {
      const headers = { "content-type": "application/json" };
      return fetch(`${url}${path}`, { method: "POST", headers, body: JSON.stringify(body) });
    },
  };
}

/** Runs a case and returns its result. Throws on failure. */
type Case = (clients: Clients, model: string) => Promise<string>;

function must(isRight: boolean, what: string): void {
  if (!isRight) throw new Error(what);
}

const CASES: Readonly<Record<string, Case>> = {
  "GET /v1/models": async ({ openai }, model) => {
    const ids = (await openai.models.list()).data.map(({ id }) => id);
    must(ids.includes(model), `the models are ${ids}`);
    return ids.join();
  },
  "POST /v1/chat/completions": async ({ openai }, model) => {
    const body = { model, messages: MESSAGES, max_tokens: TOKENS };
    const { choices, usage } = await openai.chat.completions.create(body);
    must(usage?.completion_tokens !== undefined, "the answer lacks its usage");
    return `${choices[0]?.message.content?.length} characters`;
  },
  "POST /v1/chat/completions, a stream": async ({ openai }, model) => {
    const body = { model, messages: MESSAGES, max_tokens: TOKENS, stream: true } as const;
    let chunks = 0;
    for await (const _chunk of await openai.chat.completions.create(body)) chunks++;
    must(chunks > 1, `${chunks} chunks came`);
    return `${chunks} chunks`;
  },
  "POST /v1/completions": async ({ openai }, model) => {
    const body = { model, prompt: TEXT, max_tokens: TOKENS };
    const { choices } = await openai.completions.create(body);
    must(choices.length === 1, `${choices.length} choices came`);
    return `${choices[0]?.text.length} characters`;
  },
  "POST /v1/chat/completions/batch": async ({ post }, model) => {
    const body = { model, messages: [MESSAGES, MESSAGES], max_tokens: TOKENS };
    const answer = await post("/v1/chat/completions/batch", body);
    const { choices } = (await answer.json()) as { choices?: unknown[] };
    must(choices?.length === 2, `status ${answer.status}, ${choices?.length} choices`);
    return "2 choices";
  },
  "POST /v1/responses": async ({ openai }, model) => {
    const body = { model, input: TEXT, max_output_tokens: TOKENS };
    const { output, usage } = await openai.responses.create(body);
    must(output.length > 0, "the answer lacks output");
    return `${usage?.output_tokens} tokens`;
  },
  "POST /v1/responses, a stream": async ({ openai }, model) => {
    const body = { model, input: TEXT, max_output_tokens: TOKENS, stream: true } as const;
    const types: string[] = [];
    for await (const { type } of await openai.responses.create(body)) types.push(type);
    must(types[0] === "response.created", `it begins with ${types[0]}`);
    must(
      /^response\.(?:completed|incomplete)$/.test(types.at(-1) ?? ""),
      `ends with ${types.at(-1)}`,
    );
    return `${types.length} events`;
  },
  "POST /v1/messages": async ({ anthropic }, model) => {
    const body = { model, messages: MESSAGES, max_tokens: TOKENS, system: "Be terse." };
    const { content, usage } = await anthropic.messages.create(body);
    must(usage.output_tokens > 0, `${usage.output_tokens} tokens came`);
    return `${content.length} blocks`;
  },
  "POST /v1/messages, a stream": async ({ anthropic }, model) => {
    const body = { model, messages: MESSAGES, max_tokens: TOKENS, stream: true } as const;
    const types: string[] = [];
    for await (const { type } of await anthropic.messages.create(body)) types.push(type);
    must(types[0] === "message_start", `it begins with ${types[0]}`);
    must(types.at(-1) === "message_stop", `it ends with ${types.at(-1)}`);
    return `${types.length} events`;
  },
  "POST /v1/messages/count_tokens": async ({ anthropic }, model) => {
    const { input_tokens } = await anthropic.messages.countTokens({ model, messages: MESSAGES });
    must(input_tokens > 0, `${input_tokens} tokens`);
    return `${input_tokens} tokens`;
  },
  "POST /v1/embeddings": async ({ openai }, model) => {
    const { data } = await openai.embeddings.create({ model, input: [TEXT] });
    must(data.length === 1, `${data.length} embeddings came`);
    return `${data[0]?.embedding.length} numbers`;
  },
  ...Object.fromEntries(
    ["/v1/score", "/score"].map((path) => [
      `POST ${path}`,
      posted(path, { text_1: "a", text_2: "b" }),
    ]),
  ),
  ...Object.fromEntries(
    ["/v1/rerank", "/v2/rerank", "/rerank"].map((path) => [
      `POST ${path}`,
      posted(path, { query: "a", documents: ["b"] }),
    ]),
  ),
  "POST /tokenize, /detokenize": async ({ post }, model) => {
    const first = await post("/tokenize", { model, prompt: TEXT });
    const { tokens } = (await first.json()) as { tokens?: number[] };
    must(Array.isArray(tokens) && tokens.length > 0, `status ${first.status}`);
    const second = await post("/detokenize", { model, tokens });
    const { prompt } = (await second.json()) as { prompt?: string };
    must(typeof prompt === "string", `status ${second.status}`);
    return `${tokens?.length} tokens`;
  },
  "a body without a model": async ({ post }) => {
    const answer = await post("/v1/completions", { prompt: TEXT, max_tokens: TOKENS });
    must(answer.status === 200, `status ${answer.status}: ${await answer.clone().text()}`);
    await answer.text();
    return "200";
  },
  "errors as exceptions of both clients": async ({ openai, anthropic }) => {
    const model = "no-such-model";
    const one = await openai.chat.completions.create({ model, messages: MESSAGES }).then(
      () => null,
      (thrown: unknown) => thrown,
    );
    must(one instanceof OpenAI.NotFoundError, `OpenAI's: ${one}`);
    const body = { model, messages: MESSAGES, max_tokens: TOKENS };
    const two = await anthropic.messages.create(body).then(
      () => null,
      (thrown: unknown) => thrown,
    );
    must(two instanceof Anthropic.NotFoundError, `Anthropic's: ${two}`);
    return "404 and 404";
  },
};

function posted(path: string, members: object): Case {
  return async ({ post }, model) => {
    const answer = await post(path, { model, ...members });
    const text = await answer.text();
    must(answer.status === 200, `status ${answer.status}: ${text.slice(0, 200)}`);
    return `${text.length} bytes`;
  };
}

const GETS = ["/health", "/ping", "/version", "/load"];

/** Requests every path once through common clients. */
export async function clientRows({ url, model, missing }: ClientOptions): Promise<Row[]> {
  const clients = clientsOf(url);
  const rows: Row[] = [];
  for (const [row, run] of Object.entries(CASES)) {
    if (missing.some((path) => row.startsWith(`POST ${path}`))) {
      rows.push(await refusedByEngine(row, clients, model));
      continue;
    }
    try {
      rows.push({ row, ok: true, found: await run(clients, model) });
    } catch (thrown) {
      rows.push({ row, ok: false, found: String(thrown) });
    }
  }
  for (const path of GETS) {
    const { status } = await fetch(`${url}${path}`);
    rows.push({ row: `GET ${path}`, ok: status === 200, found: `${status}` });
  }
  return rows;
}

/** Checks that an engine's refusal of a path passes unchanged. */
async function refusedByEngine(row: string, { post }: Clients, model: string): Promise<Row> {
  const path = row.replace("POST ", "");
  const answer = await post(path, { model, input: "a", text_1: "a", query: "a", documents: [] });
  const text = await answer.text();
  const isEngines = [400, 404, 422].includes(answer.status) && !text.includes("Unknown path");
  const found = `${answer.status} of the engine`;
  return { row: `${row}, not served by this model`, ok: isEngines, found };
}
