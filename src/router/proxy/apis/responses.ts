import { type Json, stringifyJson } from "../../../core/index.ts";
import { type ChatRequest, type Fields, isFields, textOf, toolOf } from "./chat-request.ts";

/** What a free-form tool's text is called in the shim that the model sees (vLLM). */
const CUSTOM_INPUT = "input";

/** What vLLM renders in a way of its own, keeps at the server, or refuses. */
class Unknown extends Error {}

/**
 * The chat request that vLLM 0.32 makes of a request to OpenAI's Responses API
 * (`construct_input_messages`, `construct_tool_dicts`). Null: the prompt is not known here, such as
 * that of a request that goes on from a stored response.
 */
export function chatOfResponses(body: Fields): ChatRequest | null {
  const { input = null, instructions = null, tools = null, reasoning = null } = body;
  const stored = [body.previous_response_id, body.previous_input_messages, body.prompt];
  if (stored.some((value) => (value ?? null) !== null)) return null;
  try {
    const messages: Message[] = [];
    if (typeof instructions === "string" && instructions !== "") {
      messages.push({ role: "system", content: instructions });
    }
    const isOpen = Array.isArray(input) && isUnfinished(input.at(-1));
    messages.push(...messagesOf(input));
    const effort = isFields(reasoning) ? (reasoning.effort ?? null) : null;
    return {
      messages: messages as Json[],
      add_generation_prompt: !isOpen,
      ...(isOpen ? { continue_final_message: true } : {}),
      ...(effort === null ? {} : { reasoning_effort: effort }),
      ...(Array.isArray(tools) && tools.length > 0 ? { tools: tools.flatMap(toolsOf) } : {}),
      ...(isFields(body.chat_template_kwargs)
        ? { chat_template_kwargs: body.chat_template_kwargs }
        : {}),
    };
  } catch (thrown) {
    if (thrown instanceof Unknown) return null;
    throw thrown;
  }
}

type Message = Record<string, Json>;

/** A message or reasoning that broke off: the model goes on with it. */
function isUnfinished(item: Json | undefined): boolean {
  if (!isFields(item)) return false;
  const { type = "message", status } = item;
  const isOpen = status === "in_progress" || status === "incomplete";
  return isOpen && (type === "message" || type === "reasoning");
}

function messagesOf(input: Json): Message[] {
  if (typeof input === "string") return [{ role: "user", content: input }];
  if (!Array.isArray(input)) throw new Unknown();
  const messages: Message[] = [];
  for (const item of input) {
    if (!isFields(item)) throw new Unknown();
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

/** Null: it went to the message before. */
function callInto(before: Message | null, item: Fields): Message | null {
  const { type, call_id: id = null, name = null, namespace = null } = item;
  if (typeof id !== "string" || typeof name !== "string") throw new Unknown();
  const isCustom = type === "custom_tool_call";
  const args = isCustom
    ? stringifyJson({ [CUSTOM_INPUT]: item.input || "" })
    : textOf(item.arguments);
  if (args === null) throw new Unknown();
  const full = !isCustom && typeof namespace === "string" ? `${namespace}__${name}` : name;
  const call: Json = { id, type: "function", function: { name: full, arguments: args } };
  if (before === null) return { role: "assistant", tool_calls: [call] };
  if (Array.isArray(before.tool_calls)) before.tool_calls.push(call);
  else before.tool_calls = [call];
  return null;
}

/** Null: it went to the message before. */
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
      throw new Unknown();
  }
  if (typeof item.role !== "string") throw new Unknown();
  if (item.role !== "assistant") return { ...item };
  const { content = null } = item;
  const first = Array.isArray(content) ? content[0] : undefined;
  const text = typeof content === "string" ? content : textOf(isFields(first) ? first.text : null!);
  if (text === null) throw new Unknown();
  return addTo(before, "content", text);
}

/** The assistant's message before takes what it has none of. */
function addTo(before: Message | null, member: "content" | "reasoning", text: string) {
  if (before === null || (before[member] ?? null) !== null)
    return { role: "assistant", [member]: text };
  before[member] = text;
  return null;
}

function reasoningOf({ encrypted_content: encrypted, content, summary }: Fields): string {
  if (encrypted) throw new Unknown();
  for (const list of [content, summary]) {
    const first = Array.isArray(list) ? list[0] : undefined;
    if (isFields(first)) return textOf(first.text) ?? "";
  }
  return "";
}

function toolsOf(tool: Json): Json[] {
  if (!isFields(tool)) throw new Unknown();
  const { name = null, description = null, parameters = null, strict = null } = tool;
  switch (tool.type) {
    case "function":
      return [toolOf(name, description, parameters, { strict })];
    case "custom":
      return [toolOf(name, description, CUSTOM_PARAMETERS, {})];
    case "namespace": {
      const inner = Array.isArray(tool.tools) ? tool.tools.filter((one) => isFields(one)) : [];
      const functions = inner.filter(({ type }) => type === "function");
      return functions.flatMap((one) => toolsOf({ ...one, name: `${name}__${one.name}` }));
    }
    default:
      // Tools of the server are never shown to the model.
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
