import {
  type BodyLimits,
  type BodyRefusal,
  type BodyShare,
  readBody,
} from "../../core/http/index.ts";
import { type Json, parseJson, stringifyJson } from "../../core/index.ts";
import { busy, invalid, late, type ProxyError } from "./answers.ts";

export type Fields = Readonly<Record<string, Json>>;

export function isFields(value: unknown): value is { [key: string]: Json } {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/**
 * Parses a JSON text and returns its members. Null if it is not an object. `parseJson` keeps large
 * integers exact.
 */
export function fieldsIn(text: string, parse: (text: string) => Json = JSON.parse): Fields | null {
  try {
    const value = parse(text);
    return isFields(value) ? value : null;
  } catch {
    return null;
  }
}

/** A request's body, as received and parsed. */
export interface RequestBody {
  readonly bytes: Uint8Array<ArrayBuffer>;
  readonly text: string;
  readonly fields: Fields;
  /** Model named in the body. Null: the body names none. */
  readonly model: string | null;
  readonly isStream: boolean;
}

/** Returns a hash of a body, so that a repeated request can be recognised. */
export function hashOf({ bytes }: Pick<RequestBody, "bytes">): bigint {
  return Bun.hash.xxHash3(bytes);
}

/** Maximum nesting depth. Real prompts have little nesting. */
const DEPTH_MAX = 200;
const CLOSING_BRACE = 0x7d;
const BLANK: ReadonlySet<number> = new Set([0x20, 0x09, 0x0a, 0x0d]);

/**
 * Limits of request bodies, and the HTTP status and retry time if the memory budget is exhausted.
 */
export interface RequestBodyLimits extends BodyLimits {
  readonly busyStatus: number;
  readonly retryAfterSeconds: number;
}

/**
 * Reads the body of a generation request, or returns the error. The bytes count against the memory
 * budget until the caller disposes `share`.
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
    const why = thrown instanceof SyntaxError ? thrown.message : "invalid UTF-8";
    return invalid(`The body is not valid JSON: ${why.slice(0, 200)}.`);
  }
  if (!isFields(value)) {
    return invalid("The body is not a JSON object.");
  }
  const { model = null } = value;
  if (model !== null && typeof model !== "string") {
    return invalid("`model` must be a string.", "model");
  }
  return { bytes, text, fields: value, model, isStream: value.stream === true };
}

/**
 * Returns the error for a body that could not be read. The connection must close, because the rest
 * of the body may still arrive on it.
 */
function refusalOf(why: BodyRefusal, limits: RequestBodyLimits): ProxyError {
  const { bytesMax, timeoutMs, busyStatus, retryAfterSeconds } = limits;
  const error = {
    too_long: () => invalid(`The body is longer than ${bytesMax} bytes.`, undefined, 413),
    crowded: () => {
      const text =
        "Request bodies use the whole memory budget (128 KiB for each of proxy.streams_max).";
      return busy(text, busyStatus, retryAfterSeconds);
    },
    late: () => late(`The body did not arrive within ${timeoutMs} ms.`),
    broken: () => invalid("The connection ended before the whole body arrived."),
  }[why]();
  return { ...error, headers: { ...error.headers, connection: "close" } };
}

export interface BodyChanges {
  readonly set?: Fields;
  readonly remove?: readonly string[];
  /** Fields to remove from every object in the body, at any depth. */
  readonly strip?: readonly string[];
}

/**
 * Applies changes to a body. If fields are only added, appends them and leaves all other bytes as
 * received. Serialises the body anew only if a field is removed or replaced.
 */
export function changeBody(body: RequestBody, changes: BodyChanges): Uint8Array<ArrayBuffer> {
  const { set = {}, remove = [], strip = [] } = changes;
  const names = Object.keys(set);
  const isTaken = [...names, ...remove].some((name) => Object.hasOwn(body.fields, name));
  // Compare parsed names: the text may contain them with escapes.
  const isStripped = strip.length > 0 && hasAny(body.fields, strip);
  if (!isTaken && !isStripped) return names.length === 0 ? body.bytes : append(body, set);
  const kept: Record<string, Json> = {};
  for (const [name, value] of Object.entries(body.fields)) {
    if (!remove.includes(name) && !strip.includes(name)) kept[name] = without(value, strip);
  }
  return new TextEncoder().encode(stringifyJson({ ...kept, ...set }));
}

function append(body: RequestBody, set: Fields): Uint8Array<ArrayBuffer> {
  const { bytes } = body;
  let end = bytes.length - 1;
  while (BLANK.has(bytes[end]) && end > 0) end--;
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
  return Object.keys(value).some((key) => names.includes(key) || hasAny(value[key], names));
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
