import {
  type BodyLimits,
  type BodyRefusal,
  type BodyShare,
  readBody,
} from "../../core/http/index.ts";
import { type Json, parseJson, stringifyJson } from "../../core/index.ts";
import { busy, invalid, late, type ProxyError } from "./answers.ts";

type Body = Readonly<Record<string, Json>>;

/** What a client sent, as bytes and as what they say. */
export interface RequestBody {
  readonly bytes: Uint8Array<ArrayBuffer>;
  readonly text: string;
  readonly fields: Body;
  /** Null: the client names none. */
  readonly model: string | null;
  readonly isStream: boolean;
}

/** The same for a request that its client sends again. */
export function hashOf({ bytes }: Pick<RequestBody, "bytes">): bigint {
  return Bun.hash.xxHash3(bytes);
}

/** Prompts lie flat in a body; deeper ones are somebody's joke. */
const DEPTH_MAX = 200;
const CLOSING_BRACE = 0x7d;
const BLANK: ReadonlySet<number> = new Set([0x20, 0x09, 0x0a, 0x0d]);

/** What the bodies of a proxy are held to, and what a client hears that finds no room. */
export interface RequestBodyLimits extends BodyLimits {
  readonly busyStatus: number;
  readonly retryAfterSeconds: number;
}

/**
 * The body of a request for tokens, or what is wrong with it. Its bytes count against the budget
 * until the caller disposes `share`.
 */
export async function readRequestBody(
  request: Request,
  limits: RequestBodyLimits,
  share: BodyShare,
): Promise<RequestBody | ProxyError> {
  const bytes = await readBody(request, limits, share);
  if (typeof bytes === "string") return refusalOf(bytes, limits);
  let [text, value]: [string, Json] = ["", null];
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    value = parseJson(text, DEPTH_MAX);
  } catch (thrown) {
    const why = thrown instanceof SyntaxError ? thrown.message : "it is not UTF-8";
    return invalid(`The body is no JSON: ${why.slice(0, 200)}.`);
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    return invalid("The body is no JSON object.");
  }
  const { model = null } = value;
  if (model !== null && typeof model !== "string") {
    return invalid("`model` must be a string.", "model");
  }
  return { bytes, text, fields: value, model, isStream: value.stream === true };
}

/** The connection ends behind each of these: the rest of the body may still arrive on it. */
function refusalOf(why: BodyRefusal, limits: RequestBodyLimits): ProxyError {
  const { bytesMax, timeoutMs, busyStatus, retryAfterSeconds } = limits;
  const error = {
    too_long: () => invalid(`The body is longer than ${bytesMax} bytes.`, undefined, 413),
    crowded: () => {
      const text = "Request bodies take all the memory that they may (proxy.body_budget).";
      return busy(text, busyStatus, retryAfterSeconds);
    },
    late: () => late(`The body did not arrive within ${timeoutMs} ms (proxy.body_timeout).`),
    broken: () => invalid("The connection ended before the whole body was there."),
  }[why]();
  return { ...error, headers: { ...error.headers, connection: "close" } };
}

export interface BodyChanges {
  readonly set?: Readonly<Record<string, Json>>;
  readonly remove?: readonly string[];
  /** Removed from every object in the body. */
  readonly strip?: readonly string[];
}

/**
 * The bytes to send. They are those that came, unless something has to be taken out or be another;
 * what is only added stands at the end, so that the rest is still byte for byte what came.
 */
export function changeBody(body: RequestBody, changes: BodyChanges): Uint8Array<ArrayBuffer> {
  const { set = {}, remove = [], strip = [] } = changes;
  const names = Object.keys(set);
  const isTaken = [...names, ...remove].some((name) => Object.hasOwn(body.fields, name));
  // Names as they were parsed: the text may write them with escapes.
  const isStripped = strip.length > 0 && hasAny(body.fields, strip);
  if (!isTaken && !isStripped) return names.length === 0 ? body.bytes : append(body, set);
  const kept: Record<string, Json> = {};
  for (const [name, value] of Object.entries(body.fields)) {
    if (!remove.includes(name) && !strip.includes(name)) kept[name] = without(value, strip);
  }
  return new TextEncoder().encode(stringifyJson({ ...kept, ...set }));
}

function append(body: RequestBody, set: Readonly<Record<string, Json>>): Uint8Array<ArrayBuffer> {
  const { bytes } = body;
  let end = bytes.length - 1;
  while (BLANK.has(bytes[end]!) && end > 0) end--;
  if (bytes[end] !== CLOSING_BRACE) {
    return new TextEncoder().encode(stringifyJson({ ...body.fields, ...set }));
  }
  const inner = stringifyJson(set).slice(1);
  const comma = Object.keys(body.fields).length === 0 ? "" : ",";
  const added = new TextEncoder().encode(`${comma}${inner}`);
  const changed = new Uint8Array(end + added.length);
  changed.set(bytes.subarray(0, end));
  changed.set(added, end);
  return changed;
}

function hasAny(value: Json, names: readonly string[]): boolean {
  if (typeof value !== "object" || value === null) return false;
  if (Array.isArray(value)) return value.some((item) => hasAny(item, names));
  return Object.keys(value).some((key) => names.includes(key) || hasAny(value[key]!, names));
}

function without(value: Json, strip: readonly string[]): Json {
  if (strip.length === 0 || typeof value !== "object" || value === null) return value;
  if (Array.isArray(value)) return value.map((item) => without(item, strip));
  const kept: Record<string, Json> = {};
  for (const [name, item] of Object.entries(value)) {
    if (!strip.includes(name)) kept[name] = without(item, strip);
  }
  return kept;
}
