import { dict, member, refusal } from "./chat-body.ts";
import { type Dict, readJson, type Value } from "./python/index.ts";

export interface MessageForm {
  /** Whether the template wants a message's content in parts; else as one text. */
  readonly wantsParts: boolean;
  /** What stands between the texts of one message: vLLM puts a line break there. */
  readonly partSeparator: string;
  /** Called for each part that is a picture, a sound or something else without a text. */
  readonly onMedia: () => void;
}

/** A message as the template sees it; the order of its keys matters to `tojson`. */
export function messageOf(message: Dict, form: MessageForm): Dict {
  const role = member(message, "role");
  if (typeof role !== "string") throw refusal("a message has no role");
  const content = contentOf(message, role, form);
  const made = dict(["role", role], ["content", content]);
  if (role === "assistant") addCalls(made, message);
  if (role === "tool" && message.has("tool_call_id")) {
    made.set("tool_call_id", member(message, "tool_call_id"));
  }
  for (const key of ["name", "task"]) {
    const value = member(message, key);
    if (typeof value === "string") made.set(key, value);
  }
  if (role === "developer") made.set("tools", member(message, "tools"));
  return made;
}

function addCalls(made: Dict, message: Dict): void {
  const calls = member(message, "tool_calls");
  // An empty list is left out, so that templates take their plain path.
  if (Array.isArray(calls) && calls.length > 0) made.set("tool_calls", calls.map(callOf));
  const reasoning = member(message, "reasoning") ?? member(message, "reasoning_content");
  if (typeof reasoning !== "string") return;
  made.set("reasoning", reasoning);
  made.set("reasoning_content", reasoning);
}

/** In the order of the schema that vLLM validates calls with; what it does not know comes last. */
function callOf(call: Value): Value {
  const given = call instanceof Map ? member(call, "function") : null;
  if (!(call instanceof Map && given instanceof Map)) throw refusal("a tool call has no function");
  const [id, name] = [member(call, "id"), member(given, "name")];
  const isWhole = typeof id === "string" && typeof name === "string";
  if (!isWhole || call.get("type") !== "function") {
    throw refusal("a tool call lacks its id, type or name");
  }
  const parsed = argumentsOf(member(given, "arguments"));
  const inner = withRest(dict(["arguments", parsed], ["name", name]), given);
  return withRest(dict(["id", id], ["function", inner], ["type", "function"]), call);
}

/** The members of `from` that `made` has not, behind its own. */
function withRest(made: Dict, from: Dict): Dict {
  for (const [key, value] of from) if (!made.has(key)) made.set(key, value);
  return made;
}

/** Templates write arguments as JSON themselves. What is not an object counts as an empty one. */
function argumentsOf(given: Value): Dict {
  if (typeof given !== "string") throw refusal("the arguments of a tool call are not a text");
  try {
    const parsed = readJson(given);
    return parsed instanceof Map ? parsed : new Map();
  } catch {
    return new Map();
  }
}

function contentOf(message: Dict, role: string, form: MessageForm): Value {
  const parts = partsOf(message, role, form.onMedia);
  const texts = parts.map((part) => textOfPart(part));
  if (!form.wantsParts) return texts.filter((text) => text !== "").join(form.partSeparator);
  // Most templates take the result of a tool as one text only.
  const isText = parts.every((part) => part.get("type") === "text");
  return role === "tool" && isText ? texts.join("\n") : parts;
}

function textOfPart(part: Dict): string {
  return String(part.get("text") ?? part.get("name"));
}

function partsOf(message: Dict, role: string, onMedia: () => void): Dict[] {
  const content = message.get("content");
  if (content === null && role !== "assistant") throw refusal("a message has no content");
  const given = typeof content === "string" ? [content] : (content ?? []);
  if (!Array.isArray(given)) throw refusal("a message's content is neither a text nor a list");
  return given.flatMap((one) => {
    const part = partOf(one, onMedia);
    if (part === null) return [];
    return role === "system" ? withoutBilling(part) : [part];
  });
}

const BILLING = "x-anthropic-billing-header";

/** vLLM drops this line of Claude Code, which differs in every request. */
function withoutBilling(part: Dict): Dict[] {
  const text = part.get("text");
  if (typeof text !== "string" || !text.startsWith(BILLING)) return [part];
  const end = text.indexOf("\n");
  const rest = end < 0 ? "" : text.slice(end + 1);
  return rest === "" ? [] : [new Map(part).set("text", rest)];
}

/** The member of a part that is its text, by the part's type. */
const TEXTS: Readonly<Record<string, string>> = {
  ...{ text: "text", input_text: "text", output_text: "text" },
  ...{ refusal: "refusal", thinking: "thinking" },
};
/** Members of parts that vLLM knows; templates see the others. */
const KNOWN: ReadonlySet<Value> = new Set([
  ...["type", "text", "refusal", "thinking", "closed", "name", "data", "uuid", "file"],
  ...["image_url", "audio_url", "video_url", "input_audio", "image_pil", "image_embeds"],
  ...["audio_embeds", "video_embeds", "prompt_cache_breakpoint"],
]);

/** A part as templates see it; null: one without a text, which vLLM skips. */
function partOf(part: Value, onMedia: () => void): Dict | null {
  if (typeof part === "string") return dict(["type", "text"], ["text", part]);
  if (!(part instanceof Map)) throw refusal("a part of a message is not an object");
  const type = member(part, "type");
  if (type === "tool_reference") return dict(["type", type], ["name", member(part, "name")]);
  const key = typeof type === "string" && Object.hasOwn(TEXTS, type) ? TEXTS[type]! : null;
  if (key === null) {
    onMedia();
    return dict(["type", "text"], ["text", mediaText(part)]);
  }
  const text = member(part, key);
  if (text === null && (type === "text" || type === "refusal")) return null;
  if (typeof text !== "string") throw refusal(`a part of the type ${type} has no ${key}`);
  const rest = [...part].filter(([name]) => !KNOWN.has(name));
  return new Map<Value, Value>([["type", "text"], ["text", text], ...rest]);
}

/**
 * Stands for an image or a sound: a text that only the same one has. Tokens before it in the prompt
 * are those of the engine; tokens behind it match earlier prompts with the same one.
 */
function mediaText(part: Dict): string {
  const text = JSON.stringify(plain(part));
  return `<media:${Bun.hash.xxHash3(text).toString(16)}>`;
}

function plain(value: Value): unknown {
  if (typeof value === "bigint") return value.toString();
  if (Array.isArray(value)) return value.map(plain);
  return value instanceof Map ? [...value].map(([key, one]) => [key, plain(one)]) : value;
}

/** For templates that know no developer: a system message, merged with the others in front. */
export function withoutDeveloper(conversation: readonly Dict[]): Dict[] {
  const renamed = conversation.map((message) => {
    if (message.get("role") !== "developer") return message;
    const made = new Map(message).set("role", "system");
    made.delete("tools");
    return made;
  });
  const isSystem = (message: Dict) => message.get("role") === "system";
  const isSorted = renamed.every((message, i) => i === 0 || !isSystem(message));
  if (isSorted) return renamed;
  const texts = renamed.filter(isSystem).map((message) => systemText(member(message, "content")));
  const content = texts.filter((text) => text !== "").join("\n\n");
  const merged = dict(["role", "system"], ["content", content]);
  return [merged, ...renamed.filter((message) => !isSystem(message))];
}

function systemText(content: Value): string {
  if (typeof content === "string") return content;
  const parts = Array.isArray(content) ? content : [];
  return parts.map((part) => String((part as Dict).get("text"))).join("\n");
}
