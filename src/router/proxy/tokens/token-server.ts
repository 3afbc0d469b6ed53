import { type Clock, messageOf } from "../../../core/index.ts";
import type { PromptMark } from "../observer.ts";
import { boolean, type ChatBody, member, parseChat, refusal, renderChat } from "./chat-text.ts";
import type { EncodeOptions } from "./encoder.ts";
import { loadTokenModel, type TokenModel } from "./model.ts";
import type { PromptTokens, TokenAnswer, TokenOrder } from "./protocol.ts";
import type { Dict, Value } from "./python/index.ts";

/** Executes tokenising orders one at a time, in a worker thread or on the main thread. */
export class TokenServer {
  readonly #models = new Map<string, TokenModel>();
  readonly #clock: Pick<Clock, "wallMs">;

  /** `clock`: wall clock for templates that read the time. */
  constructor(clock: Pick<Clock, "wallMs">) {
    this.#clock = clock;
  }

  answer(order: TokenOrder): TokenAnswer {
    const { id } = order;
    try {
      if (order.kind === "load") {
        const model = loadTokenModel(order.files, order.cacheTokens, this.#clock);
        this.#models.set(order.files.name, model);
        return { kind: "loaded", id, reasoning: model.reasoning };
      }
      const model = this.#models.get(order.model);
      if (model === undefined) return { kind: "failed", id, why: "the model is not loaded" };
      if (order.encode !== null) {
        const tokens = model.encode(order.text, order.encode);
        return { kind: "tokens", id, tokens, marks: [], hasMedia: false };
      }
      return { kind: "tokens", id, ...markedTokens(model, order.text) };
    } catch (thrown) {
      return { kind: "failed", id, why: messageOf(thrown) };
    }
  }
}

/** Maximum marks per request, as in Anthropic's API. */
const MARKS_MAX = 4;

/**
 * Position of a `cache_control` mark, given as the last message and the last part that the mark
 * covers.
 */
interface MarkPlace {
  readonly message: number;
  /** Index of the last covered part of that message. Null: the mark covers the whole message. */
  readonly part: number | null;
  readonly control: Dict;
}

/**
 * Tokenises a conversation. Returns its tokens, and how many of them each `cache_control` mark
 * covers.
 */
function markedTokens(model: TokenModel, text: string): PromptTokens {
  const body = parseChat(text);
  const { text: rendered, hasMedia } = renderChat(model, body);
  const tokens = model.encode(rendered, encodingOf(body.fields, false));
  if (tokens.length === 0) throw refusal("the template renders no text");
  if (!text.includes("cache_control")) return { tokens, marks: [], hasMedia };
  const places = placesOf(body).slice(-MARKS_MAX);
  const marks = places.map((place) => markOf(model, body, place, tokens));
  return { tokens, marks: marks.filter((mark) => mark.tokens > 0), hasMedia };
}

function placesOf(body: ChatBody): MarkPlace[] {
  const places: MarkPlace[] = [];
  const tools = listOf(body.fields.get("tools"));
  const onTools = tools.map((tool) => controlOf(tool)).findLast((control) => control !== null);
  // Templates put tools before the messages or into the first message.
  if (onTools !== undefined && onTools !== null) {
    places.push({ message: 0, part: null, control: onTools });
  }
  for (const [message, fields] of body.messages.entries()) {
    for (const [part, value] of listOf(fields.get("content")).entries()) {
      const control = controlOf(value);
      if (control !== null) places.push({ message, part, control });
    }
    const control = controlOf(fields);
    if (control !== null) places.push({ message, part: null, control });
  }
  return places;
}

function listOf(value: Value | undefined): Value[] {
  return Array.isArray(value) ? value : [];
}

function controlOf(value: Value): Dict | null {
  const control = value instanceof Map ? value.get("cache_control") : null;
  return control instanceof Map ? control : null;
}

/**
 * Returns how many tokens a mark covers: the leading tokens that the conversation up to the mark
 * and the whole conversation have in common.
 */
function markOf(
  model: TokenModel,
  body: ChatBody,
  { message, part, control }: MarkPlace,
  whole: Uint32Array,
): PromptMark {
  const type = control.get("type");
  return {
    tokens: commonPrefix(tokensUpTo(model, body, message, part), whole),
    type: typeof type === "string" ? type : "ephemeral",
    ttlSeconds: secondsOf(control.get("ttl")),
  };
}

function tokensUpTo(
  model: TokenModel,
  body: ChatBody,
  message: number,
  part: number | null,
): Uint32Array {
  const messages = body.messages.slice(0, message + 1).map((fields, i) => {
    const content = fields.get("content");
    const isCut = i === message && part !== null && Array.isArray(content);
    return isCut ? new Map(fields).set("content", content.slice(0, part + 1)) : fields;
  });
  const fields = new Map(body.fields)
    .set("add_generation_prompt", false)
    .set("continue_final_message", false);
  try {
    const { addSpecial } = encodingOf(fields, false);
    const { text } = renderChat(model, { fields, messages });
    return model.encode(text, { addSpecial, truncation: null });
  } catch {
    // Some templates reject a conversation without a user message. The mark then covers no tokens.
    return new Uint32Array(0);
  }
}

function commonPrefix(a: Uint32Array, b: Uint32Array): number {
  const end = Math.min(a.length, b.length);
  let at = 0;
  while (at < end && a[at] === b[at]) at++;
  return at;
}

const UNITS: Readonly<Record<string, number>> = { s: 1, m: 60, h: 3_600, d: 86_400 };

function secondsOf(ttl: Value | undefined): number | null {
  if (typeof ttl === "number" || typeof ttl === "bigint") {
    const seconds = Number(ttl);
    return Number.isFinite(seconds) && seconds > 0 ? seconds : null;
  }
  const match = typeof ttl === "string" ? /^([0-9]{1,9})([smhd])$/.exec(ttl) : null;
  return match === null ? null : Number(match[1]) * UNITS[match[2]];
}

/**
 * Returns the encoding options of a request: `add_special_tokens`, `truncate_prompt_tokens` and
 * `truncation_side`. A limit of -1 means the model's maximum length; it is ignored, because it
 * removes nothing from a prompt that fits.
 */
function encodingOf(fields: Dict, addSpecial: boolean): EncodeOptions {
  const side = member(fields, "truncation_side");
  if (side !== null && side !== "left" && side !== "right") {
    throw refusal("truncation_side is not left or right");
  }
  const kept = member(fields, "truncate_prompt_tokens");
  if (kept !== null && (typeof kept !== "bigint" || kept < -1n || kept === 0n)) {
    throw refusal("truncate_prompt_tokens is not a number of tokens");
  }
  const tokens = kept === null || kept < 0n ? null : Number(kept);
  return {
    addSpecial: boolean(fields, "add_special_tokens", addSpecial),
    truncation: tokens === null ? null : { tokens, side },
  };
}
