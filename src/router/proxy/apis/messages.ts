import { type Json, stringifyJson } from "../../../core/index.ts";
import { type ChatRequest, type Fields, isFields, textOf, toolOf } from "./chat-request.ts";

export interface MessagesOptions {
  /**
   * Whether system messages between others are put in front: vLLM does so where the model's
   * template refuses a system message that is not the first one.
   */
  readonly mergesSystem: boolean;
  /** What `thinking.type` "disabled" means to the template. */
  readonly disabledEffort: "none" | "low";
}

/** Claude Code's first line with a hash of each request, which vLLM takes out. */
const BILLING = "x-anthropic-billing-header";

/** Null: not a request whose prompt is known here. */
type Converted = ChatRequest | null;

/**
 * The chat request that vLLM 0.32 makes of a request to Anthropic's Messages API
 * (`AnthropicServingMessages.to_chat_completion_request`).
 */
export function chatOfMessages(body: Fields, options: MessagesOptions): Converted {
  const { messages, tools = null, tool_choice: choice = null } = body;
  if (!Array.isArray(messages) || !messages.every((one) => isFields(one))) return null;
  try {
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
      ...(isFields(body.chat_template_kwargs)
        ? { chat_template_kwargs: body.chat_template_kwargs }
        : {}),
    };
  } catch (thrown) {
    if (thrown instanceof Unknown) return null;
    throw thrown;
  }
}

/** Whether a request has system messages between others. */
export function hasInlineSystem({ messages }: Fields): boolean {
  return Array.isArray(messages) && messages.some((one) => isFields(one) && one.role === "system");
}

/** What vLLM renders in a way of its own, or refuses. */
class Unknown extends Error {}

function blocksOf(content: Json | undefined): Fields[] {
  if (!Array.isArray(content) || !content.every((block) => isFields(block))) throw new Unknown();
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
  // The top-level text is taken as it is, its blocks without the billing line.
  const first = system === null ? "" : typeof system === "string" ? system : systemText(system);
  const inline = mergesSystem ? messages.filter(({ role }) => role === "system") : [];
  const text = [first, ...inline.map(({ content }) => systemText(content))].join("");
  return text === "" ? [] : [{ role: "system", content: text }];
}

/** One message becomes several where it has results of tools. */
function messagesOf(message: Fields, { mergesSystem }: MessagesOptions): Json[] {
  const { role, content } = message;
  if (role === "system") {
    const text = mergesSystem ? "" : systemText(content);
    return text === "" ? [] : [{ role, content: text }];
  }
  if (role !== "user" && role !== "assistant") throw new Unknown();
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
        if (role === "assistant") throw new Unknown();
        results.push(...resultsOf(block));
        break;
      case "redacted_thinking":
      case "tool_reference":
        break;
      default:
        throw new Unknown();
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

/** The text of a tool's result; its images and references follow as messages of their own. */
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
  // A conversation that adds and removes tools.
  if (isChanged) throw new Unknown();
  if (tools === null) return null;
  return blocksOf(tools).map(({ name = null, description = null, input_schema, ...more }) => {
    if (!isFields(input_schema)) throw new Unknown();
    const schema = "type" in input_schema ? input_schema : { ...input_schema, type: "object" };
    const { strict = null, defer_loading = null } = more;
    return toolOf(name, description, schema, { strict, defer_loading });
  });
}
