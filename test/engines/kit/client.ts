/** A hang detector for one request. */
const TIMEOUT_MS = 300_000;

export interface Endpoint {
  readonly url: string;
  readonly model: string;
}

export interface Question {
  readonly prompt: readonly number[];
  /** Tokens to generate, greedily; an end token does not end the answer. */
  readonly tokens: number;
  /** Further members of the request body. */
  readonly extra?: Readonly<Record<string, unknown>>;
  readonly timeoutMs?: number;
  readonly signal?: AbortSignal;
}

/** One generated token. */
export interface Step {
  readonly token: number;
  readonly logprob: number;
  /** The two best log probabilities, best first. */
  readonly best: readonly number[];
}

export interface Answer {
  readonly steps: readonly Step[];
  readonly promptTokens: number;
  /** Prompt tokens that were not computed: the engine's own cache and the connector's blocks. */
  readonly cachedTokens: number;
  /** Milliseconds from sending the request to the first token, and to the end. */
  readonly firstTokenMs: number;
  readonly totalMs: number;
  readonly transferParams: Readonly<Record<string, unknown>> | null;
}

interface Chunk {
  readonly error?: { readonly message: string };
  readonly choices: readonly {
    readonly token_ids?: readonly number[] | null;
    /** Of the chat API only. */
    readonly delta?: { readonly content?: string | null };
    readonly logprobs?: {
      readonly token_logprobs: readonly number[];
      readonly top_logprobs: readonly Readonly<Record<string, number>>[];
    } | null;
  }[];
  readonly usage?: {
    readonly prompt_tokens: number;
    readonly prompt_tokens_details?: { readonly cached_tokens?: number | null } | null;
  } | null;
  readonly kv_transfer_params?: Readonly<Record<string, unknown>> | null;
}

function bodyOf({ model }: Endpoint, { prompt, tokens, extra }: Question) {
  return {
    ...{ model, prompt, max_tokens: tokens, temperature: 0, ignore_eos: true },
    ...{ logprobs: 2, return_token_ids: true, return_tokens_as_token_ids: true },
    ...{ stream: true, stream_options: { include_usage: true } },
    ...extra,
  };
}

/** The objects of a stream of server-sent events. */
export async function* chunksOf(answer: Response): AsyncGenerator<Chunk> {
  let rest = "";
  for await (const text of answer.body!.pipeThrough(new TextDecoderStream())) {
    const events = (rest + text).split("\n\n");
    rest = events.pop()!;
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

export function stepsOf({ choices }: Chunk): Step[] {
  const [choice] = choices;
  const tokens = choice?.token_ids ?? [];
  return tokens.map((token, index) => {
    const logprob = choice?.logprobs?.token_logprobs[index] ?? Number.NaN;
    const best = Object.values(choice?.logprobs?.top_logprobs[index] ?? {});
    return { token, logprob, best: best.sort((a, b) => b - a).slice(0, 2) };
  });
}

async function post(endpoint: Endpoint, question: Question, body: object): Promise<Response> {
  const timeout = AbortSignal.timeout(question.timeoutMs ?? TIMEOUT_MS);
  const { signal } = question;
  const answer = await fetch(`${endpoint.url}/v1/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    keepalive: false,
    signal: signal === undefined ? timeout : AbortSignal.any([signal, timeout]),
  });
  if (!answer.ok) throw new Error(`status ${answer.status}: ${await answer.text()}`);
  return answer;
}

/** A completion as a stream. Throws if the engine refuses, fails or ends before the last token. */
export async function complete(endpoint: Endpoint, question: Question): Promise<Answer> {
  const began = performance.now();
  const answer = await post(endpoint, question, bodyOf(endpoint, question));
  const steps: Step[] = [];
  let firstTokenMs = Number.NaN;
  let usage: Chunk["usage"] = null;
  let transferParams: Answer["transferParams"] = null;
  for await (const chunk of chunksOf(answer)) {
    if (chunk.error !== undefined) throw new Error(chunk.error.message);
    const found = stepsOf(chunk);
    if (steps.length === 0 && found.length > 0) firstTokenMs = performance.now() - began;
    steps.push(...found);
    usage = chunk.usage ?? usage;
    transferParams = chunk.kv_transfer_params ?? transferParams;
  }
  if (steps.length !== question.tokens || !usage) {
    throw new Error(`the stream ended after ${steps.length} of ${question.tokens} tokens`);
  }
  return {
    ...{ steps, firstTokenMs, transferParams, totalMs: performance.now() - began },
    promptTokens: usage.prompt_tokens,
    cachedTokens: usage.prompt_tokens_details?.cached_tokens ?? 0,
  };
}

/** The `kv_transfer_params` of an answer, which vLLM gives without a stream only. */
export async function prefill(endpoint: Endpoint, question: Question): Promise<Answer> {
  const began = performance.now();
  const { stream: _, stream_options: __, ...body } = bodyOf(endpoint, question);
  const answer = await post(endpoint, question, body);
  const chunk = (await answer.json()) as Chunk;
  const totalMs = performance.now() - began;
  return {
    ...{ steps: stepsOf(chunk), firstTokenMs: totalMs, totalMs },
    transferParams: chunk.kv_transfer_params ?? null,
    promptTokens: chunk.usage?.prompt_tokens ?? 0,
    cachedTokens: chunk.usage?.prompt_tokens_details?.cached_tokens ?? 0,
  };
}
