import { type Json, stringifyJson } from "../core/index.ts";
import type { RouteRequest } from "../router/index.ts";
import type { PromptMark, ReasoningTokens } from "./observer.ts";
import type { RequestBody } from "./request-body.ts";
import type { ProxyModel } from "./settings.ts";
import { roughCount, roughTokens, type Tokens } from "./tokens/index.ts";

/** A prompt as the router takes it. */
export interface SeenPrompt {
  readonly prompt: RouteRequest["prompt"];
  /** As the engine has them; null where they are not known. */
  readonly tokens: Uint32Array | null;
  readonly marks: readonly PromptMark[];
  /** Tokens that open and close reasoning of the model; null if they are not known. */
  readonly reasoning: ReasoningTokens | null;
}

type PromptTokens = Omit<SeenPrompt, "reasoning">;

const TOKEN_MAX = 2 ** 32 - 1;

/** Of several prompts in one request the first one counts. */
export async function promptOf(
  kind: "chat" | "completions",
  body: RequestBody,
  model: ProxyModel,
  tokens: Tokens,
): Promise<SeenPrompt> {
  const prompt = await promptTokens(kind, body, model, tokens);
  return { ...prompt, reasoning: tokens.reasoning(model.name) };
}

async function promptTokens(
  kind: "chat" | "completions",
  body: RequestBody,
  model: ProxyModel,
  tokens: Tokens,
): Promise<PromptTokens> {
  if (kind === "chat") {
    const seen = await tokens.chat(model.name, body.text);
    if (seen !== null) return exact(seen.tokens, seen.marks);
    return rough(conversationText(body.fields), body, model);
  }
  const prompt = firstPrompt(body.fields.prompt ?? null);
  if (prompt instanceof Uint32Array) return exact(prompt, []);
  const seen = await tokens.text(model.name, prompt);
  return seen === null ? rough(prompt, body, model) : exact(seen.tokens, seen.marks);
}

function exact(tokens: Uint32Array, marks: readonly PromptMark[]): PromptTokens {
  return { prompt: { kind: "tokens", tokens }, tokens, marks };
}

function rough(text: string, body: RequestBody, { fallback }: ProxyModel): PromptTokens {
  if (fallback === "bytes") {
    return { prompt: { kind: "tokens", tokens: roughTokens(text) }, tokens: null, marks: [] };
  }
  const tokens = roughCount(body.bytes.length);
  const prompt = { kind: "hashes", hashes: new BigUint64Array(0), tokens } as const;
  return { prompt, tokens: null, marks: [] };
}

function firstPrompt(prompt: Json): string | Uint32Array {
  if (typeof prompt === "string") return prompt;
  if (!Array.isArray(prompt)) return "";
  if (prompt.every((token) => isToken(token))) return Uint32Array.from(prompt as number[]);
  return firstPrompt(prompt[0] ?? null);
}

function isToken(value: Json): boolean {
  return typeof value === "number" && Number.isInteger(value) && value >= 0 && value <= TOKEN_MAX;
}

/** Longer by what is new only, when the conversation goes on. */
function conversationText({ tools = null, messages = null }: Readonly<Record<string, Json>>) {
  return `${stringifyJson(tools)}${stringifyJson(messages).replace(/\]$/, ",")}`;
}
