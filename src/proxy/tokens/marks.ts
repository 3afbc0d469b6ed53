import type { PromptMark } from "../observer.ts";
import { type ChatBody, type Fields, isFields, parseChat, renderChat } from "./chat-text.ts";
import type { TokenModel } from "./model.ts";

/** Anthropic's API takes four in a request. */
const MARKS_MAX = 4;

interface Marked {
  readonly tokens: Uint32Array<ArrayBuffer>;
  readonly marks: readonly PromptMark[];
}

/** A `cache_control` and where it stands: the last message and the last part that it covers. */
interface MarkPlace {
  readonly message: number;
  /** Null: the whole message. */
  readonly part: number | null;
  readonly control: Fields;
}

/** The tokens of a conversation and how far each of its `cache_control` marks reaches into them. */
export function markedTokens(model: TokenModel, text: string): Marked {
  const body = parseChat(text);
  const tokens = model.encode(renderChat(model, body), false);
  if (!text.includes("cache_control")) return { tokens, marks: [] };
  const places = placesOf(body).slice(-MARKS_MAX);
  const marks = places.map((place) => markOf(model, body, place, tokens));
  return { tokens, marks: marks.filter((mark) => mark.tokens > 0) };
}

function placesOf(body: ChatBody): MarkPlace[] {
  const places: MarkPlace[] = [];
  const tools = Array.isArray(body.tools) ? body.tools : [];
  const onTools = tools.map((tool) => controlOf(tool)).findLast((control) => control !== null);
  // Tools stand in front of the messages, or within the first one.
  if (onTools !== undefined && onTools !== null) {
    places.push({ message: 0, part: null, control: onTools });
  }
  for (const [message, fields] of body.messages.entries()) {
    const parts = Array.isArray(fields.content) ? fields.content : [];
    for (const [part, value] of parts.entries()) {
      const control = controlOf(value);
      if (control !== null) places.push({ message, part, control });
    }
    const control = controlOf(fields);
    if (control !== null) places.push({ message, part: null, control });
  }
  return places;
}

function controlOf(value: unknown): Fields | null {
  if (!isFields(value)) return null;
  return isFields(value.cache_control) ? value.cache_control : null;
}

/** The conversation up to the mark begins like the whole one: so far the mark reaches. */
function markOf(
  model: TokenModel,
  body: ChatBody,
  { message, part, control }: MarkPlace,
  whole: Uint32Array,
): PromptMark {
  const type = typeof control.type === "string" ? control.type : "ephemeral";
  return {
    tokens: commonPrefix(tokensUpTo(model, body, message, part), whole),
    type,
    ttlSeconds: secondsOf(control.ttl),
  };
}

function tokensUpTo(
  model: TokenModel,
  body: ChatBody,
  message: number,
  part: number | null,
): Uint32Array {
  const messages = body.messages.slice(0, message + 1).map((fields, i) => {
    const { content } = fields;
    const isCut = i === message && part !== null && Array.isArray(content);
    return isCut ? { ...fields, content: content.slice(0, part + 1) } : fields;
  });
  const cut = { ...body, messages, add_generation_prompt: false, continue_final_message: false };
  try {
    return model.encode(renderChat(model, cut), false);
  } catch {
    // Some templates refuse a conversation without a user.
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

function secondsOf(ttl: unknown): number | null {
  if (typeof ttl === "number") return Number.isFinite(ttl) && ttl > 0 ? ttl : null;
  const match = typeof ttl === "string" ? /^([0-9]{1,9})([smhd])$/.exec(ttl) : null;
  return match === null ? null : Number(match[1]) * UNITS[match[2]!]!;
}
