import { HearthError } from "../../../core/index.ts";
import type { TokenModel } from "./model.ts";
import { type Dict, readJson, strip, textOf, type Value } from "./python/index.ts";

/** Parameters of transformers' `apply_chat_template` itself. Templates do not receive them. */
const CONSUMED: ReadonlySet<string> = new Set([
  ...["padding", "truncation", "max_length", "return_tensors", "return_dict"],
  ...["return_assistant_tokens_mask", "tokenizer_kwargs", "continue_final_message", "tokenize"],
]);
const REFUSED = ["chat_template", "messages", "conversation"];
const EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

export interface ChatText {
  readonly text: string;
  /** True if the conversation has images or audio. The text contains a placeholder for each. */
  readonly hasMedia: boolean;
}

/**
 * Renders a conversation to the same text as vLLM. Throws if vLLM rejects the request, or if the
 * template raises an error.
 */
export function renderChat(model: TokenModel, body: ChatBody): ChatText {
  if (member(body.fields, "chat_template") !== null) {
    throw refusal("the request brings its own chat template");
  }
  const variables = variablesOf(model, body.fields);
  const tools = variables.get("tools") ?? null;
  const template = model.templateFor(tools !== null);
  if (template === null) throw refusal("the model has no chat template");
  let hasMedia = false;
  const form: MessageForm = {
    wantsParts: template.wantsParts,
    partSeparator: model.partSeparator,
    onMedia: () => {
      hasMedia = true;
    },
  };
  let messages = body.messages.map((message) => messageOf(message, form));
  const hasDeveloper = messages.some((message) => message.get("role") === "developer");
  if (hasDeveloper && !/'developer'|"developer"/.test(template.source)) {
    messages = withoutDeveloper(messages);
  }
  const isContinued = variables.get("continue_final_message") === true;
  const isOpened = variables.get("add_generation_prompt") === true;
  if (isContinued && isOpened) {
    throw refusal("continue_final_message and add_generation_prompt exclude each other");
  }
  const passed = [...variables].filter(([name]) => !CONSUMED.has(name));
  const render = (list: Value[]) => template.render([...passed, ["messages", list]]);
  if (!isContinued) return { text: render(messages), hasMedia };
  if (!template.source.includes("content"))
    throw refusal("the template ignores the message content");
  return { text: openEnded(messages, render), hasMedia };
}

/**
 * Returns the variables for the template: the operator's, the request's, and request fields that
 * templates read by name.
 */
function variablesOf(model: TokenModel, fields: Dict): Map<string, Value> {
  const given = member(fields, "chat_template_kwargs");
  if (given !== null && !(given instanceof Map)) {
    throw refusal("chat_template_kwargs is not an object");
  }
  const named = new Map([...(given ?? [])].map(([name, value]) => [textOf(name), value]));
  for (const name of REFUSED) {
    if (named.has(name)) throw refusal(`chat_template_kwargs must not have ${name}`);
  }
  const effort = member(fields, "reasoning_effort");
  if (effort !== null && !(typeof effort === "string" && EFFORTS.includes(effort))) {
    throw refusal("unknown reasoning_effort");
  }
  const extra: [string, Value][] = [
    ["add_generation_prompt", boolean(fields, "add_generation_prompt", true)],
    ["continue_final_message", boolean(fields, "continue_final_message", false)],
    ["documents", member(fields, "documents")],
    ["reasoning_effort", effort],
  ];
  if (effort !== null && !named.has("enable_thinking")) {
    extra.push(["enable_thinking", effort !== "none"]);
  }
  const requested = merged(named, extra);
  const defaults = merged(model.templateKwargs, [["tools", toolsOf(fields)]]);
  // Every template can read both variables. They are None unless the request sets them.
  const absent = new Map<string, Value>([
    ["tools", null],
    ["documents", null],
  ]);
  return new Map([...absent, ...merged(defaults, requested)]);
}

/** Merges variables. Absent or null overrides keep the default. */
function merged(
  defaults: ReadonlyMap<string, Value>,
  overrides: Iterable<readonly [string, Value]>,
): Map<string, Value> {
  const all = new Map(defaults);
  for (const [name, value] of overrides) {
    if (value !== null && value !== "auto") all.set(name, value);
  }
  return all;
}

const TAG = "CONTINUE_FINAL_MESSAGE_TAG ";

/**
 * Renders a conversation whose last message the model continues. Renders it with a marker at the
 * end of that message's text, and cuts the result at the marker.
 */
function openEnded(messages: readonly Dict[], render: (messages: Value[]) => string): string {
  const last = messages.at(-1)!;
  const content = member(last, "content");
  const blocks = Array.isArray(content) ? (content as Dict[]) : null;
  const at = blocks === null ? -1 : blocks.findLastIndex((block) => block.has("text"));
  if (blocks !== null && at < 0) throw refusal("the last message has no text to continue");
  const final = textOf(blocks === null ? content : member(blocks[at], "text"));
  const marked = blocks?.with(at, new Map(blocks[at]).set("text", final + TAG)) ?? final + TAG;
  const text = render([...messages.slice(0, -1), new Map(last).set("content", marked)]);
  const place = text.lastIndexOf(TAG.trimEnd());
  if (place < 0 || !text.includes(strip(final, null, "both"))) {
    throw refusal("the template omits the message to continue");
  }
  const head = text.slice(0, place);
  return text.startsWith(TAG, place) ? head : strip(head, null, "right");
}

interface MessageForm {
  /** True if the template expects a message's content as a list of parts, false if as one text. */
  readonly wantsParts: boolean;
  /** Separator between the texts of one message. vLLM uses a line break. */
  readonly partSeparator: string;
  /** Called for each part that has no text, such as an image or audio. */
  readonly onMedia: () => void;
}

/**
 * Builds a message as the template receives it. The order of its keys affects the output of
 * `tojson`.
 */
function messageOf(message: Dict, form: MessageForm): Dict {
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
  // Omit an empty list, so that templates take the branch without tool calls.
  if (Array.isArray(calls) && calls.length > 0) made.set("tool_calls", calls.map(callOf));
  const reasoning = member(message, "reasoning") ?? member(message, "reasoning_content");
  if (typeof reasoning !== "string") return;
  made.set("reasoning", reasoning);
  made.set("reasoning_content", reasoning);
}

/** Returns a tool call with its keys in the order of vLLM's schema. Unknown keys come last. */
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

/** Appends the entries of `from` whose keys `made` lacks. */
function withRest(made: Dict, from: Dict): Dict {
  for (const [key, value] of from) if (!made.has(key)) made.set(key, value);
  return made;
}

/**
 * Parses a tool call's arguments, because templates serialise them again. Returns an empty object
 * if the value is not an object.
 */
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
  // Most templates accept a tool's result only as one text, so join parts that are all texts.
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

/**
 * Removes a line of Claude Code that differs in every request, as vLLM does. Returns no part if
 * nothing is left.
 */
function withoutBilling(part: Dict): Dict[] {
  const text = part.get("text");
  if (typeof text !== "string" || !text.startsWith(BILLING)) return [part];
  const end = text.indexOf("\n");
  const rest = end < 0 ? "" : text.slice(end + 1);
  return rest === "" ? [] : [new Map(part).set("text", rest)];
}

/** Key that contains the text of a part, for each type of part. */
const TEXTS: Readonly<Record<string, string>> = {
  text: "text",
  input_text: "text",
  output_text: "text",
  refusal: "refusal",
  thinking: "thinking",
};
/** Keys of parts that vLLM consumes. Templates receive all other keys. */
const KNOWN: ReadonlySet<Value> = new Set([
  ...["type", "text", "refusal", "thinking", "closed", "name", "data", "uuid", "file"],
  ...["image_url", "audio_url", "video_url", "input_audio", "image_pil", "image_embeds"],
  ...["audio_embeds", "video_embeds", "prompt_cache_breakpoint"],
]);

/** Returns a part as templates receive it. Null if the part has no text and vLLM skips it. */
function partOf(part: Value, onMedia: () => void): Dict | null {
  if (typeof part === "string") return dict(["type", "text"], ["text", part]);
  if (!(part instanceof Map)) throw refusal("a part of a message is not an object");
  const type = member(part, "type");
  if (type === "tool_reference") return dict(["type", type], ["name", member(part, "name")]);
  const key = typeof type === "string" && Object.hasOwn(TEXTS, type) ? TEXTS[type] : null;
  if (key === null) {
    onMedia();
    return dict(["type", "text"], ["text", mediaText(part)]);
  }
  const text = member(part, key);
  if (text === null && (type === "text" || type === "refusal")) return null;
  if (typeof text !== "string") throw refusal(`a part of type ${type} has no ${key}`);
  const rest = [...part].filter(([name]) => !KNOWN.has(name));
  return new Map<Value, Value>([["type", "text"], ["text", text], ...rest]);
}

/**
 * Returns a placeholder text for an image or audio, unique to its content. Tokens before it equal
 * the engine's. Tokens after it match earlier prompts with the same media.
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

/**
 * Converts developer messages for templates without that role. They become system messages. If
 * system messages are not only at the front, all are merged into one at the front.
 */
function withoutDeveloper(conversation: readonly Dict[]): Dict[] {
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

/**
 * Returns the tools as vLLM's request schema serialises them: in its order of keys, with null for
 * absent descriptions and parameters, without unknown keys. Returns null if the request has no
 * tools.
 */
function toolsOf(fields: Dict): Value {
  const tools = member(fields, "tools");
  if (tools === null) return null;
  if (!Array.isArray(tools) || tools.length === 0) throw refusal("tools is not a list of tools");
  return tools.map(toolOf);
}

function toolOf(tool: Value): Dict {
  const given = tool instanceof Map ? member(tool, "function") : null;
  if (!(tool instanceof Map && given instanceof Map)) throw refusal("a tool has no function");
  const deferred = member(tool, "defer_loading");
  const description = member(given, "description");
  const parameters = member(given, "parameters");
  if (parameters !== null && !(parameters instanceof Map)) {
    throw refusal("a tool's parameters are not an object");
  }
  const made = dict(
    ["name", member(given, "name")],
    ["description", description],
    ["parameters", parameters],
  );
  addGiven(made, "strict", member(given, "strict"));
  addGiven(made, "defer_loading", member(given, "defer_loading") ?? deferred);
  const outer = dict(["type", tool.get("type") ?? "function"], ["function", made]);
  addGiven(outer, "defer_loading", deferred);
  return outer;
}

function addGiven(to: Dict, key: string, value: Value): void {
  if (value !== null) to.set(key, value);
}

/** Fields of a chat request, and its messages as the client sent them. */
export interface ChatBody {
  readonly fields: Dict;
  readonly messages: readonly Dict[];
}

/** Parses a chat request. Throws UNSUPPORTED if engines reject the request too. */
export function parseChat(text: string): ChatBody {
  let fields: Value;
  try {
    fields = readJson(text);
  } catch (cause) {
    throw refusal("the body is not JSON", { cause });
  }
  const messages = fields instanceof Map ? fields.get("messages") : null;
  if (!(fields instanceof Map && Array.isArray(messages)) || messages.length === 0) {
    throw refusal("messages is not a list with at least one message");
  }
  return { fields, messages: messages.map(dictOf) };
}

function dictOf(value: Value): Dict {
  if (value instanceof Map) return value;
  throw refusal("a message is not an object");
}

export function refusal(why: string, options: ErrorOptions = {}): HearthError {
  return new HearthError("UNSUPPORTED", why, options);
}

function dict(...members: readonly (readonly [string, Value])[]): Dict {
  return new Map<Value, Value>(members);
}

/** Returns a field's value. Null if it is absent or null. */
export function member(of: Dict, key: string): Value {
  return of.get(key) ?? null;
}

const TRUE: ReadonlySet<unknown> = new Set([1, "1", "true", "t", "yes", "y", "on"]);
const FALSE: ReadonlySet<unknown> = new Set([0, "0", "false", "f", "no", "n", "off"]);

/**
 * Returns a boolean field, which may have any notation that vLLM accepts. Returns `otherwise` if it
 * is absent. Throws if it is not a boolean.
 */
export function boolean(of: Dict, key: string, otherwise: boolean): boolean {
  const value = of.get(key);
  if (value === undefined) return otherwise;
  if (typeof value === "boolean") return value;
  const plain = typeof value === "string" ? value.toLowerCase() : Number(value ?? Number.NaN);
  if (TRUE.has(plain)) return true;
  if (FALSE.has(plain)) return false;
  throw refusal(`${key} is not a boolean`);
}
