import { chunksOf, type Endpoint, stepsOf } from "./client.ts";

const TIMEOUT_MS = 300_000;

export interface Message {
  readonly role: "system" | "user" | "assistant";
  readonly content: string;
}

export interface ChatAnswer {
  readonly tokens: readonly number[];
  readonly text: string;
  readonly promptTokens: number;
  readonly cachedTokens: number;
  readonly firstTokenMs: number;
}

/** The assistant's next message through the chat API, as a stream of `tokens` tokens. */
export async function chat(
  { url, model }: Endpoint,
  messages: readonly Message[],
  tokens: number,
): Promise<ChatAnswer> {
  const began = performance.now();
  const answer = await fetch(`${url}/v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({
      ...{ model, messages, max_tokens: tokens, temperature: 0, ignore_eos: true },
      ...{ return_token_ids: true, stream: true, stream_options: { include_usage: true } },
    }),
    keepalive: false,
    signal: AbortSignal.timeout(TIMEOUT_MS),
  });
  if (!answer.ok) throw new Error(`status ${answer.status}: ${await answer.text()}`);
  const found: number[] = [];
  let [text, promptTokens, cachedTokens, firstTokenMs] = ["", 0, 0, Number.NaN];
  for await (const chunk of chunksOf(answer)) {
    const steps = stepsOf(chunk);
    if (found.length === 0 && steps.length > 0) firstTokenMs = performance.now() - began;
    found.push(...steps.map(({ token }) => token));
    text += chunk.choices[0]?.delta?.content ?? "";
    promptTokens = chunk.usage?.prompt_tokens ?? promptTokens;
    cachedTokens = chunk.usage?.prompt_tokens_details?.cached_tokens ?? cachedTokens;
  }
  return { tokens: found, text, promptTokens, cachedTokens, firstTokenMs };
}
