import { HearthError } from "../../core/index.ts";
import type { TokenModel } from "./model.ts";

export type Fields = Readonly<Record<string, unknown>>;

export interface ChatBody extends Fields {
  readonly messages: readonly Fields[];
}

/** Members of a request that templates may ask for by their own name. */
const PASSED = ["documents", "reasoning_effort"] as const;

export function parseChat(text: string): ChatBody {
  const body = JSON.parse(text) as Fields;
  const { messages } = body;
  const isList = Array.isArray(messages) && messages.every((one) => isFields(one));
  if (!isList) throw new HearthError("UNSUPPORTED", "messages are no list of objects");
  return body as ChatBody;
}

/** The text that engines make of a conversation, as vLLM and SGLang call the template. */
export function renderChat(model: TokenModel, body: ChatBody): string {
  const messages = body.messages.map((message) => messageOf(message, model));
  const passed = PASSED.flatMap((name) =>
    body[name] == null ? [] : [[name, body[name]] as const],
  );
  const text = model.render({
    messages,
    tools: toolsOf(body),
    add_generation_prompt: body.add_generation_prompt ?? true,
    ...Object.fromEntries(passed),
    ...(isFields(body.chat_template_kwargs) ? body.chat_template_kwargs : {}),
  });
  return body.continue_final_message === true ? openEnded(text, messages.at(-1)) : text;
}

/** Null where there are none: templates ask whether there are tools. */
function toolsOf({ tools }: ChatBody): unknown {
  return Array.isArray(tools) && tools.length > 0 ? tools : null;
}

/** What the template puts behind the last message is left out: the model goes on with it. */
function openEnded(text: string, last: Fields | undefined): string {
  const content = typeof last?.content === "string" ? last.content.trim() : "";
  const at = content === "" ? -1 : text.lastIndexOf(content);
  return at < 0 ? text : text.slice(0, at + content.length);
}

function messageOf(message: Fields, model: TokenModel): Fields {
  const { content } = message;
  const calls = message.tool_calls;
  return {
    ...message,
    content: contentOf(content, model),
    ...(Array.isArray(calls) ? { tool_calls: calls.map((call) => callOf(call)) } : {}),
  };
}

/** Templates write arguments as JSON themselves, so they get the object. */
function callOf(call: unknown): unknown {
  if (!isFields(call) || !isFields(call.function)) return call;
  const given = call.function.arguments;
  if (typeof given !== "string") return call;
  try {
    return { ...call, function: { ...call.function, arguments: JSON.parse(given) as unknown } };
  } catch {
    return call;
  }
}

function contentOf(content: unknown, { wantsParts, partSeparator }: TokenModel): unknown {
  if (content === null || content === undefined) return "";
  if (typeof content === "string") {
    return wantsParts ? [{ type: "text", text: content }] : content;
  }
  if (!Array.isArray(content)) return content;
  const texts = content.map((part) => textOf(part));
  return wantsParts ? texts.map((text) => ({ type: "text", text })) : texts.join(partSeparator);
}

/**
 * Of a picture or a sound: a text that only the same one has. What comes before it in the prompt is
 * as engines have it; what comes behind is found where it was predicted, and only with the same.
 */
function textOf(part: unknown): string {
  if (typeof part === "string") return part;
  if (isFields(part) && typeof part.text === "string") return part.text;
  return `<media:${Bun.hash.xxHash3(JSON.stringify(part)).toString(16)}>`;
}

export function isFields(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
