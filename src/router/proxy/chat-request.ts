import { type Json, stringifyJson } from "../../core/index.ts";
import { type Fields, isFields } from "./request-body.ts";

/** Fields of a chat completion request that determine its prompt. */
export type ChatRequest = { readonly messages: Json[] } & Record<string, Json>;

/**
 * Matches numbers that a double may not reproduce as written: with a fraction, an exponent, or 16
 * or more digits.
 */
const ODD_NUMBER = /[0-9](?:\.[0-9]|[eE][-+]?[0-9]|[0-9]{15})/;

declare global {
  interface JSON {
    /** `JSON.parse` with source text access (ECMAScript proposal). The bundled types lack it. */
    parse(
      text: string,
      reviver: (key: string, value: unknown, context: { readonly source?: string }) => unknown,
    ): unknown;
  }
}

/**
 * Returns the fields of a body with each number written as the client wrote it. In a tool's schema
 * or arguments, `1.0` gives a different prompt than `1`.
 */
export function exactFields(text: string, fields: Fields): Fields {
  if (!ODD_NUMBER.test(text)) return fields;
  const parsed = JSON.parse(text, (_key, value, { source }) => {
    const isOther = typeof value === "number" && source !== undefined && source !== `${value}`;
    return isOther ? JSON.rawJSON(source) : value;
  });
  return parsed as Fields;
}

export function textOf(value: Json | undefined): string | null {
  return typeof value === "string" ? value : null;
}

/** Builds a tool of the chat API. Omits null fields, as vLLM does. */
export function toolOf(name: Json, description: Json, parameters: Json, more: Fields): Json {
  const given = Object.entries(more).filter(([, value]) => value !== null);
  const kept = { name, description, parameters, ...Object.fromEntries(given) };
  return { type: "function", function: kept };
}

/**
 * Thrown if the prompt is unknown, because the engine rejects the request or renders it by rules
 * that the proxy does not implement.
 */
class UnknownPrompt extends Error {}

function unlessUnknown(convert: () => ChatRequest): ChatRequest | null {
  try {
    return convert();
  } catch (thrown) {
    if (thrown instanceof UnknownPrompt) return null;
    throw thrown;
  }
}

function templateKwargsOf({ chat_template_kwargs: kwargs }: Fields): Record<string, Json> {
  return isFields(kwargs) ? { chat_template_kwargs: kwargs } : {};
}

interface MessagesOptions {
  /**
   * If true, system messages between other messages move to the front. vLLM does so if the model's
   * template refuses a system message that is not the first message.
   */
  readonly mergesSystem: boolean;
  /** Value of the template's `reasoning_effort` for `thinking.type` "disabled". */
  readonly disabledEffort: "none" | "low";
}

/** Start of a line that Claude Code sends with a hash of each request. vLLM removes the line. */
const BILLING = "x-anthropic-billing-header";

/**
 * Builds the chat request that vLLM 0.32 derives from a request to Anthropic's Messages API
 * (`AnthropicServingMessages.to_chat_completion_request`). Returns null if the prompt is unknown.
 */
export function chatOfMessages(body: Fields, options: MessagesOptions): ChatRequest | null {
  const { messages, tools = null, tool_choice: choice = null } = body;
  if (!Array.isArray(messages) || !messages.every((one) => isFields(one))) return null;
  return unlessUnknown(() => {
    const chat = [
      ...systemOf(body, messages as Fields[], options),
      ...(messages as Fields[]).flatMap((message) => messagesOf(message, options)),
    ];
    const converted = toolsOf(tools, messages as Fields[]);
    return {
      messages: chat,
      ...effortOf(body, options),
      ...(converted === null ? {} : { tools: converted }),
      ...choiceOf(choice, converted !== null),
      ...templateKwargsOf(body),
    };
  });
}

/** Returns true if a request has system messages among its other messages. */
export function hasInlineSystem({ messages }: Fields): boolean {
  return Array.isArray(messages) && messages.some((one) => isFields(one) && one.role === "system");
}

function blocksOf(content: Json | undefined): Fields[] {
  if (!Array.isArray(content) || !content.every((block) => isFields(block)))
    throw new UnknownPrompt();
  return content;
}

function systemText(content: Json | undefined): string {
  if (typeof content === "string") return content.startsWith(BILLING) ? "" : content;
  const texts = blocksOf(content).map(({ type, text }) => (type === "text" ? textOf(text) : null));
  return texts.filter((text) => text !== null && !text.startsWith(BILLING)).join("");
}

function systemOf(
  { system = null }: Fields,
  messages: readonly Fields[],
  { mergesSystem }: MessagesOptions,
): Json[] {
  // A system prompt given as one text stays unchanged. In a list of blocks, the billing line is
  // removed.
  const first = system === null ? "" : typeof system === "string" ? system : systemText(system);
  const inline = mergesSystem ? messages.filter(({ role }) => role === "system") : [];
  const text = [first, ...inline.map(({ content }) => systemText(content))].join("");
  return text === "" ? [] : [{ role: "system", content: text }];
}

/**
 * Converts one message of the Messages API. A message with tool results becomes several messages.
 */
function messagesOf(message: Fields, { mergesSystem }: MessagesOptions): Json[] {
  const { role, content } = message;
  if (role === "system") {
    const text = mergesSystem ? "" : systemText(content);
    return text === "" ? [] : [{ role, content: text }];
  }
  if (role !== "user" && role !== "assistant") throw new UnknownPrompt();
  if (typeof content === "string") return [{ role, content }];
  const parts: Fields[] = [];
  const calls: Json[] = [];
  const reasoning: string[] = [];
  const results: Json[] = [];
  for (const block of blocksOf(content)) {
    switch (block.type) {
      case "text":
        if (block.text) parts.push({ type: "text", text: block.text });
        break;
      case "image":
        if (isFields(block.source)) parts.push(imageOf(block.source));
        break;
      case "thinking":
        if (typeof block.thinking === "string") reasoning.push(block.thinking);
        break;
      case "tool_use":
        calls.push(callOf(block));
        break;
      case "tool_result":
        if (role === "assistant") throw new UnknownPrompt();
        results.push(...resultsOf(block));
        break;
      case "redacted_thinking":
      case "tool_reference":
        break;
      default:
        throw new UnknownPrompt();
    }
  }
  const made: Record<string, Json> = { role };
  if (reasoning.length > 0) made.reasoning = reasoning.join("");
  if (calls.length > 0) made.tool_calls = calls;
  const [only] = parts;
  if (parts.length === 1 && only!.type === "text") made.content = only!.text!;
  else if (parts.length > 0) made.content = parts as Json[];
  return role === "user" && made.content === undefined ? results : [...results, made];
}

function callOf({ id = "", name = "", input = null }: Fields): Json {
  const args = stringifyJson(isFields(input ?? undefined) ? input : {});
  return { id, type: "function", function: { name, arguments: args } };
}

function imageOf({ type, url, media_type = "image/jpeg", data = "" }: Fields): Fields {
  const address = type === "url" ? (textOf(url) ?? "") : `data:${media_type};base64,${data}`;
  return { type: "image_url", image_url: { url: address } };
}

/** Converts a tool result: its text, then messages with its images and references. */
function resultsOf({ tool_use_id: id = "", content = "" }: Fields): Json[] {
  const items = Array.isArray(content) ? content.filter((item) => isFields(item)) : [];
  const texts = items.flatMap(({ type, text = "" }) => (type === "text" ? [`${text}`] : []));
  const text = typeof content === "string" ? content : texts.join("\n");
  const images = items.flatMap(({ type, source }) =>
    type === "image" && isFields(source) ? [imageOf(source)] : [],
  );
  const references = items.flatMap(({ type, tool_name, name }) => {
    const named = tool_name || name;
    return type === "tool_reference" && named ? [{ type: "tool_reference", name: named }] : [];
  });
  return [
    { role: "tool", tool_call_id: id, content: text },
    ...(images.length === 0 ? [] : [{ role: "user", content: images as Json[] }]),
    ...(references.length === 0 ? [] : [{ role: "tool", tool_call_id: id, content: references }]),
  ];
}

function effortOf(
  { thinking, output_config: output }: Fields,
  { disabledEffort }: MessagesOptions,
): Record<string, Json> {
  if (isFields(thinking) && thinking.type === "disabled") {
    return { reasoning_effort: disabledEffort };
  }
  const effort = isFields(output) ? (output.effort ?? null) : null;
  return effort === null ? {} : { reasoning_effort: effort };
}

function choiceOf(choice: Json, hasTools: boolean): Record<string, Json> {
  if (!isFields(choice ?? undefined)) return hasTools ? { tool_choice: "auto" } : {};
  const { type = "auto", name = "" } = choice as Fields;
  if (type === "any") return { tool_choice: "required" };
  if (type === "tool") return { tool_choice: { type: "function", function: { name } } };
  return { tool_choice: type };
}

function toolsOf(tools: Json, messages: readonly Fields[]): Json[] | null {
  const isChanged = messages.some(
    ({ content }) =>
      Array.isArray(content) &&
      content.some(
        (block) => isFields(block) && /^tool_(?:addition|removal)$/.test(`${block.type}`),
      ),
  );
  // A later message adds or removes tools, so the prompt is unknown.
  if (isChanged) throw new UnknownPrompt();
  if (tools === null) return null;
  return blocksOf(tools).map(({ name = null, description = null, input_schema, ...more }) => {
    if (!isFields(input_schema)) throw new UnknownPrompt();
    const schema = "type" in input_schema ? input_schema : { ...input_schema, type: "object" };
    const { strict = null, defer_loading = null } = more;
    return toolOf(name, description, schema, { strict, defer_loading });
  });
}

/** Parameter name under which vLLM shows the text of a free-form tool to the model. */
const CUSTOM_INPUT = "input";

/**
 * Builds the chat request that vLLM 0.32 derives from a request to OpenAI's Responses API
 * (`construct_input_messages`, `construct_tool_dicts`). Returns null if the prompt is unknown, for
 * example if the request continues a stored response.
 */
export function chatOfResponses(body: Fields): ChatRequest | null {
  const { input = null, instructions = null, tools = null, reasoning = null } = body;
  const stored = [body.previous_response_id, body.previous_input_messages, body.prompt];
  if (stored.some((value) => (value ?? null) !== null)) return null;
  return unlessUnknown(() => {
    const messages: Message[] = [];
    if (typeof instructions === "string" && instructions !== "") {
      messages.push({ role: "system", content: instructions });
    }
    const isOpen = Array.isArray(input) && isUnfinished(input.at(-1));
    messages.push(...inputMessages(input));
    const effort = isFields(reasoning) ? (reasoning.effort ?? null) : null;
    return {
      messages: messages as Json[],
      add_generation_prompt: !isOpen,
      ...(isOpen ? { continue_final_message: true } : {}),
      ...(effort === null ? {} : { reasoning_effort: effort }),
      ...(Array.isArray(tools) && tools.length > 0 ? { tools: tools.flatMap(responsesTools) } : {}),
      ...templateKwargsOf(body),
    };
  });
}

type Message = Record<string, Json>;

/** Returns true if the last message or reasoning is incomplete, so that the model continues it. */
function isUnfinished(item: Json | undefined): boolean {
  if (!isFields(item)) return false;
  const { type = "message", status } = item;
  const isOpen = status === "in_progress" || status === "incomplete";
  return isOpen && (type === "message" || type === "reasoning");
}

function inputMessages(input: Json): Message[] {
  if (typeof input === "string") return [{ role: "user", content: input }];
  if (!Array.isArray(input)) throw new UnknownPrompt();
  const messages: Message[] = [];
  for (const item of input) {
    if (!isFields(item)) throw new UnknownPrompt();
    const last = messages.at(-1);
    const before = last?.role === "assistant" ? last : null;
    const made = isCall(item) ? callInto(before, item) : messageOf(before, item);
    if (made !== null) messages.push(made);
  }
  return messages;
}

function isCall({ type }: Fields): boolean {
  return type === "function_call" || type === "custom_tool_call";
}

/** Adds a tool call to the previous message and returns null, or returns a new message for it. */
function callInto(before: Message | null, item: Fields): Message | null {
  const { type, call_id: id = null, name = null, namespace = null } = item;
  if (typeof id !== "string" || typeof name !== "string") throw new UnknownPrompt();
  const isCustom = type === "custom_tool_call";
  const args = isCustom
    ? stringifyJson({ [CUSTOM_INPUT]: item.input || "" })
    : textOf(item.arguments);
  if (args === null) throw new UnknownPrompt();
  const full = !isCustom && typeof namespace === "string" ? `${namespace}__${name}` : name;
  const call: Json = { id, type: "function", function: { name: full, arguments: args } };
  if (before === null) return { role: "assistant", tool_calls: [call] };
  if (Array.isArray(before.tool_calls)) before.tool_calls.push(call);
  else before.tool_calls = [call];
  return null;
}

/**
 * Adds a message item to the previous message and returns null, or returns a new message for it.
 */
function messageOf(before: Message | null, item: Fields): Message | null {
  switch (item.type) {
    case "reasoning":
      return addTo(before, "reasoning", reasoningOf(item));
    case "function_call_output":
    case "custom_tool_call_output": {
      const { call_id = null, output = null } = item;
      return { role: "tool", content: output, tool_call_id: call_id };
    }
    case undefined:
    case "message":
      break;
    default:
      throw new UnknownPrompt();
  }
  if (typeof item.role !== "string") throw new UnknownPrompt();
  if (item.role !== "assistant") return { ...item };
  const { content = null } = item;
  const first = Array.isArray(content) ? content[0] : undefined;
  const text = typeof content === "string" ? content : textOf(isFields(first) ? first.text : null!);
  if (text === null) throw new UnknownPrompt();
  return addTo(before, "content", text);
}

/**
 * Sets a field of the previous assistant message and returns null, or returns a new message if that
 * field is already set.
 */
function addTo(before: Message | null, member: "content" | "reasoning", text: string) {
  if (before === null || (before[member] ?? null) !== null)
    return { role: "assistant", [member]: text };
  before[member] = text;
  return null;
}

function reasoningOf({ encrypted_content: encrypted, content, summary }: Fields): string {
  if (encrypted) throw new UnknownPrompt();
  for (const list of [content, summary]) {
    const first = Array.isArray(list) ? list[0] : undefined;
    if (isFields(first)) return textOf(first.text) ?? "";
  }
  return "";
}

function responsesTools(tool: Json): Json[] {
  if (!isFields(tool)) throw new UnknownPrompt();
  const { name = null, description = null, parameters = null, strict = null } = tool;
  switch (tool.type) {
    case "function":
      return [toolOf(name, description, parameters, { strict })];
    case "custom":
      return [toolOf(name, description, CUSTOM_PARAMETERS, {})];
    case "namespace": {
      const inner = Array.isArray(tool.tools) ? tool.tools.filter((one) => isFields(one)) : [];
      const functions = inner.filter(({ type }) => type === "function");
      return functions.flatMap((one) => responsesTools({ ...one, name: `${name}__${one.name}` }));
    }
    default:
      // The server runs these tools, and the model never sees them.
      return [];
  }
}

const CUSTOM_PARAMETERS: Json = {
  type: "object",
  properties: {
    [CUSTOM_INPUT]: {
      type: "string",
      description: "The freeform text payload for this tool.",
    },
  },
  required: [CUSTOM_INPUT],
  additionalProperties: false,
};
