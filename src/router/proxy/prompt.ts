import { type Json, stringifyJson } from "../../core/index.ts";
import type { RouteRequest } from "../index.ts";
import {
  type ChatRequest,
  chatOfMessages,
  chatOfResponses,
  exactFields,
  hasInlineSystem,
} from "./chat-request.ts";
import type { EndpointSpec } from "./endpoint.ts";
import type { PromptMark, ReasoningTokens } from "./observer.ts";
import type { RequestBody } from "./request-body.ts";
import type { ProxyModel } from "./settings.ts";
import { type EncodeOptions, roughCount, roughTokens, type Tokens } from "./tokens/index.ts";

/** A request's prompt in the form that the router accepts. */
export interface SeenPrompt {
  readonly prompt: RouteRequest["prompt"];
  /** Tokens of the prompt as the engine sees them. Null: unknown. */
  readonly tokens: Uint32Array | null;
  readonly marks: readonly PromptMark[];
  /**
   * True if the engine must count the same number of tokens. False with images and with several
   * prompts.
   */
  readonly isCountKnown: boolean;
  /** Token ids that open and close the model's reasoning. Null: unknown. */
  readonly reasoning: ReasoningTokens | null;
}

type PromptTokens = Omit<SeenPrompt, "reasoning">;

const TOKEN_MAX = 2 ** 32 - 1;
/** Types of tools that the client runs, not the server. */
const CLIENT_TOOLS: ReadonlySet<unknown> = new Set(["function", "custom", "namespace"]);
const NO_HASHES = new BigUint64Array(0);

/** Extracts the prompts of requests. If a request has several prompts, uses the first one. */
export class Prompts {
  readonly #tokens: Tokens;
  readonly #habits: TemplateTraits;

  constructor(tokens: Tokens) {
    this.#tokens = tokens;
    this.#habits = new TemplateTraits(tokens);
  }

  async of(spec: EndpointSpec, body: RequestBody, model: ProxyModel): Promise<SeenPrompt> {
    const prompt = spec.isWork ? await this.#of(spec, body, model) : unseen(0);
    return { ...prompt, reasoning: this.#tokens.reasoning(model.name) };
  }

  async #of({ prompt }: EndpointSpec, body: RequestBody, model: ProxyModel): Promise<PromptTokens> {
    const { fields } = body;
    switch (prompt) {
      case "chat":
        return this.#chat(body.text, fields, body, model);
      case "chat_batch":
        return this.#first(body, model);
      case "messages": {
        const chat = await this.#messages(body, model);
        return counted(await this.#conversation(chat, body, model), model.engine === "vllm");
      }
      case "responses": {
        const chat = chatOfResponses(exactFields(body.text, fields));
        const isOneTurn = model.engine === "vllm" && !hasServerTools(fields);
        return counted(await this.#conversation(chat, body, model), isOneTurn);
      }
      case "completions":
        return this.#text(fields.prompt ?? null, body, model);
      case "embeddings":
        if (fields.messages !== undefined) return this.#first(body, model);
        return this.#text(fields.input ?? null, body, model);
      case "none":
        return unseen(roughCount(body.bytes.length));
      default:
        return prompt satisfies never;
    }
  }

  /**
   * Returns the prompt of the first of several conversations. The engine's token count covers all
   * of them.
   */
  async #first(body: RequestBody, model: ProxyModel): Promise<PromptTokens> {
    const { messages } = body.fields;
    const [first, ...others] = Array.isArray(messages) ? messages : [];
    const isOnly = !Array.isArray(first) || others.length === 0;
    return counted(await this.#conversation(firstOf(body.fields), body, model), isOnly);
  }

  /**
   * Tokenises a conversation translated from another API. Returns null if it could not be
   * translated.
   */
  async #conversation(
    chat: ChatRequest | null,
    body: RequestBody,
    model: ProxyModel,
  ): Promise<PromptTokens> {
    if (chat === null) return unseen(roughCount(body.bytes.length));
    return this.#chat(stringifyJson(chat), chat, body, model);
  }

  async #chat(
    text: string,
    fields: Readonly<Record<string, Json>>,
    body: RequestBody,
    model: ProxyModel,
  ): Promise<PromptTokens> {
    const seen = await this.#tokens.chat(model.name, text);
    if (seen !== null) return exact(seen.tokens, seen.marks, !seen.hasMedia);
    return rough(conversationText(fields), body, model);
  }

  async #text(value: Json, body: RequestBody, model: ProxyModel): Promise<PromptTokens> {
    const prompt = firstPrompt(value);
    if (prompt instanceof Uint32Array) return exact(prompt, [], false);
    const seen = await this.#tokens.text(model.name, prompt, encodingOf(body.fields));
    return seen === null ? rough(prompt, body, model) : exact(seen.tokens, [], isOnePrompt(value));
  }

  async #messages(body: RequestBody, model: ProxyModel): Promise<ChatRequest | null> {
    const fields = exactFields(body.text, body.fields);
    const { thinking } = fields;
    const isDisabled = (thinking as { type?: Json } | null | undefined)?.type === "disabled";
    return chatOfMessages(fields, {
      mergesSystem: hasInlineSystem(fields) && (await this.#habits.mergesSystem(model.name)),
      disabledEffort: isDisabled ? await this.#habits.disabledEffort(model.name) : "none",
    });
  }
}

/** Returns a prompt of which only the length is known. */
function unseen(tokens: number): PromptTokens {
  const prompt = { kind: "hashes", hashes: NO_HASHES, tokens } as const;
  return { prompt, tokens: null, marks: [], isCountKnown: false };
}

function exact(
  tokens: Uint32Array,
  marks: readonly PromptMark[],
  isCountKnown: boolean,
): PromptTokens {
  return { prompt: { kind: "tokens", tokens }, tokens, marks, isCountKnown };
}

function counted(prompt: PromptTokens, isCountKnown: boolean): PromptTokens {
  return { ...prompt, isCountKnown: prompt.isCountKnown && isCountKnown };
}

/**
 * Returns true if the request has tools that vLLM runs itself. vLLM then counts the prompt of each
 * turn.
 */
function hasServerTools({ tools = null }: Readonly<Record<string, Json>>): boolean {
  if (!Array.isArray(tools)) return false;
  return tools.some((tool) => !CLIENT_TOOLS.has((tool as { type?: unknown } | null)?.type));
}

/**
 * Returns the encoding options of a completion. Default: the tokenizer's special tokens are added.
 */
function encodingOf(fields: Readonly<Record<string, Json>>): EncodeOptions {
  const {
    truncate_prompt_tokens: kept,
    truncation_side: side,
    add_special_tokens: special,
  } = fields;
  const isCut = typeof kept === "number" && Number.isInteger(kept) && kept >= 0;
  return {
    addSpecial: special !== false,
    truncation: isCut
      ? { tokens: kept, side: side === "left" || side === "right" ? side : null }
      : null,
  };
}

function isOnePrompt(prompt: Json): boolean {
  return typeof prompt === "string" || (Array.isArray(prompt) && prompt.length === 1);
}

function rough(text: string, body: RequestBody, { fallback }: ProxyModel): PromptTokens {
  if (fallback === "bytes") {
    const prompt = { kind: "tokens", tokens: roughTokens(text) } as const;
    return { prompt, tokens: null, marks: [], isCountKnown: false };
  }
  return unseen(roughCount(body.bytes.length));
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

/** Returns the request of the first of several conversations, or of the only one. */
function firstOf(fields: Readonly<Record<string, Json>>): ChatRequest | null {
  const { messages } = fields;
  if (!Array.isArray(messages)) return null;
  const [first] = messages;
  return { ...fields, messages: Array.isArray(first) ? first : messages };
}

/** Returns a text of the conversation. It grows only at its end when the conversation continues. */
function conversationText({ tools = null, messages = null }: Readonly<Record<string, Json>>) {
  return `${stringifyJson(tools)}${stringifyJson(messages).replace(/\]$/, ",")}`;
}

/**
 * Conversation with which vLLM tests a template: one system message in front, another between
 * messages.
 */
const INLINE_SYSTEM = JSON.stringify({
  messages: ["system", "user", "system", "user"].map((role) => ({ role, content: "t" })),
  add_generation_prompt: false,
});

/** Accepted values of Anthropic's `output_config.effort`. */
const EFFORTS = ["low", "medium", "high", "xhigh", "max"] as const;

/**
 * Finds out how a model's template treats requests of Anthropic's Messages API. Renders small
 * conversations, as vLLM does, each once per model.
 */
class TemplateTraits {
  readonly #tokens: Tokens;
  readonly #merges = new Map<string, Promise<boolean>>();
  readonly #efforts = new Map<string, Promise<"none" | "low">>();

  constructor(tokens: Tokens) {
    this.#tokens = tokens;
  }

  /** Returns true if the template refuses a system message that is not the first message. */
  mergesSystem(model: string): Promise<boolean> {
    return remembered(this.#merges, model, async () => {
      return (await this.#tokens.chat(model, INLINE_SYSTEM)) === null;
    });
  }

  /** Returns the `reasoning_effort` that vLLM passes to the template if thinking is disabled. */
  disabledEffort(model: string): Promise<"none" | "low"> {
    return remembered(this.#efforts, model, async () => {
      const none = await this.#effort(model, "none");
      if (none === null) return "low";
      for (const effort of EFFORTS) {
        const other = await this.#effort(model, effort);
        if (other !== null && Buffer.from(other.buffer).equals(Buffer.from(none.buffer))) {
          return "low";
        }
      }
      return "none";
    });
  }

  async #effort(model: string, effort: string): Promise<Uint32Array<ArrayBuffer> | null> {
    const messages = [{ role: "user", content: "Hi" }];
    const text = JSON.stringify({ messages, reasoning_effort: effort });
    const seen = await this.#tokens.chat(model, text);
    return seen === null ? null : Uint32Array.from(seen.tokens);
  }
}

function remembered<T>(known: Map<string, Promise<T>>, model: string, find: () => Promise<T>) {
  const found = known.get(model) ?? find();
  known.set(model, found);
  return found;
}
