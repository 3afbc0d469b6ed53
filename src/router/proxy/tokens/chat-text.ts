import { boolean, type ChatBody, member, refusal } from "./chat-body.ts";
import { type MessageForm, messageOf, withoutDeveloper } from "./chat-messages.ts";
import { toolsOf } from "./chat-tools.ts";
import type { TokenModel } from "./model.ts";
import { type Dict, strip, textOf, type Value } from "./python/index.ts";

/** Parameters of transformers' `apply_chat_template` that never reach a template. */
const CONSUMED: ReadonlySet<string> = new Set([
  ...["padding", "truncation", "max_length", "return_tensors", "return_dict"],
  ...["return_assistant_tokens_mask", "tokenizer_kwargs", "continue_final_message", "tokenize"],
]);
const REFUSED = ["chat_template", "messages", "conversation"];
const EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

export interface ChatText {
  readonly text: string;
  /** Pictures and sounds stand in it as texts of ours. */
  readonly hasMedia: boolean;
}

/**
 * The text that vLLM makes of a conversation. Throws where vLLM refuses the request, and where the
 * template does.
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
  if (!template.source.includes("content")) throw refusal("the template uses no content");
  return { text: openEnded(messages, render), hasMedia };
}

/** Names beside `messages`: the operator's, the request's, and members with a name of their own. */
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
    throw refusal("an unknown reasoning_effort");
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
  // Both exist in every template, as None where nothing was given.
  const absent = new Map<string, Value>([
    ["tools", null],
    ["documents", null],
  ]);
  return new Map([...absent, ...merged(defaults, requested)]);
}

/** What says nothing overrides nothing. */
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

/** A mark behind the last message's text shows where the model is to go on. */
function openEnded(messages: readonly Dict[], render: (messages: Value[]) => string): string {
  const last = messages.at(-1)!;
  const content = member(last, "content");
  const blocks = Array.isArray(content) ? (content as Dict[]) : null;
  const at = blocks === null ? -1 : blocks.findLastIndex((block) => block.has("text"));
  if (blocks !== null && at < 0) throw refusal("there is no text to continue");
  const final = textOf(blocks === null ? content : member(blocks[at]!, "text"));
  const marked = blocks?.with(at, new Map(blocks[at]).set("text", final + TAG)) ?? final + TAG;
  const text = render([...messages.slice(0, -1), new Map(last).set("content", marked)]);
  const place = text.lastIndexOf(TAG.trimEnd());
  if (place < 0 || !text.includes(strip(final, null, "both"))) {
    throw refusal("the template leaves out the message that is to be continued");
  }
  const head = text.slice(0, place);
  return text.startsWith(TAG, place) ? head : strip(head, null, "right");
}
