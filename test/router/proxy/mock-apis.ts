type Fields = Record<string, unknown>;

/** Answer of an engine on paths other than chat and completions, in the shapes of vLLM 0.32. */
export interface ApiAnswer {
  /** Answer as one JSON document. */
  readonly whole: Fields;
  /** Answer as server-sent events. Null: the path has no streams. */
  readonly events: readonly { readonly name: string; readonly data: Fields }[] | null;
}

export const ENGINE_VERSION = "0.32.0";

/** Null: a chat or completion path, or an unknown path. */
export function apiAnswer(
  path: string,
  model: string,
  body: Fields,
  words: readonly string[],
  promptTokens: number | null = null,
): ApiAnswer | null {
  switch (path) {
    case "/v1/messages":
      return message(model, words, promptTokens ?? 7);
    case "/v1/messages/count_tokens":
      return plain({ input_tokens: JSON.stringify(body.messages).length });
    case "/v1/responses":
      return response(model, words, promptTokens ?? 7);
    case "/v1/chat/completions/batch": {
      const conversations = (body.messages as unknown[]) ?? [];
      const choices = conversations.map((_, index) => {
        const content = `${index}:${words.join("")}`;
        return { index, message: { role: "assistant", content }, finish_reason: "stop" };
      });
      const usage = { prompt_tokens: promptTokens ?? 7, completion_tokens: 1 };
      return plain({ id: "chatcmpl-batch", object: "chat.completion", model, choices, usage });
    }
    case "/v1/embeddings": {
      const inputs = Array.isArray(body.input) ? body.input : [body.input];
      const data = inputs.map((_, index) => ({ object: "embedding", index, embedding: [0.5, -1] }));
      const usage = { prompt_tokens: 3, total_tokens: 3 };
      return plain({ object: "list", data, model, usage });
    }
    case "/score":
    case "/v1/score":
      return plain({ object: "list", model, data: [{ index: 0, object: "score", score: 0.25 }] });
    case "/rerank":
    case "/v1/rerank":
    case "/v2/rerank":
      return plain({ id: "rerank-1", model, results: [{ index: 0, relevance_score: 0.75 }] });
    case "/tokenize":
      return plain({ count: 2, max_model_len: 32_768, tokens: [1, 2], token_strs: null });
    case "/detokenize":
      return plain({ prompt: "two words" });
    default:
      return null;
  }
}

function plain(whole: Fields): ApiAnswer {
  return { whole, events: null };
}

function message(model: string, words: readonly string[], tokens: number): ApiAnswer {
  const head = { id: "chatcmpl-1", type: "message", role: "assistant", model };
  // As vLLM with --enable-prompt-tokens-details: cached tokens are reported separately, at the end.
  const cached = { cache_read_input_tokens: 2, cache_creation_input_tokens: 1 };
  const usage = { output_tokens: words.length, ...cached, input_tokens: tokens - 3 };
  const content = [{ type: "text", text: words.join("") }];
  const start = { ...head, content: [], usage: { input_tokens: tokens, output_tokens: 0 } };
  const event = (data: Fields) => ({ name: String(data.type), data });
  const delta = (text: string) => {
    const inner = { type: "text_delta", text };
    return event({ type: "content_block_delta", index: 0, delta: inner });
  };
  const block = { type: "text", text: "" };
  return {
    whole: { ...head, content, stop_reason: "end_turn", stop_sequence: null, usage },
    events: [
      event({ type: "message_start", message: start }),
      event({ type: "content_block_start", index: 0, content_block: block }),
      ...words.map(delta),
      event({ type: "content_block_stop", index: 0 }),
      event({ type: "message_delta", delta: { stop_reason: "end_turn" }, usage }),
      event({ type: "message_stop" }),
    ],
  };
}

let responses = 0;

function response(model: string, words: readonly string[], tokens: number): ApiAnswer {
  const id = `resp_${(++responses).toString(16).padStart(8, "0")}${process.pid}`;
  const text = words.join("");
  const part = { type: "output_text", text, annotations: [] };
  const item = { id: "msg_1", type: "message", role: "assistant", status: "completed" };
  const output = [{ ...item, content: [part] }];
  const input = { input_tokens: tokens, input_tokens_details: { cached_tokens: 2 } };
  const usage = { ...input, output_tokens: words.length, total_tokens: tokens + words.length };
  const head = { id, object: "response", created_at: 1_790_000_000, model };
  const whole = { ...head, status: "completed", output, usage };
  let sequence_number = 0;
  const event = (type: string, more: Fields) => {
    return { name: type, data: { ...more, type, sequence_number: sequence_number++ } };
  };
  const place = { item_id: "msg_1", output_index: 0, content_index: 0 };
  const created = { ...head, status: "in_progress", output: [], usage: null };
  return {
    whole,
    events: [
      event("response.created", { response: created }),
      event("response.output_item.added", { output_index: 0, item: { ...item, content: [] } }),
      event("response.content_part.added", { ...place, part: { ...part, text: "" } }),
      ...words.map((delta) => event("response.output_text.delta", { ...place, delta })),
      event("response.output_text.done", { ...place, text }),
      event("response.content_part.done", { ...place, part }),
      event("response.output_item.done", { output_index: 0, item: output[0] }),
      event("response.completed", { response: whole }),
    ],
  };
}
