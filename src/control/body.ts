import { Decoder, Encoder } from "@msgpack/msgpack";
import {
  JsonTooDeep,
  messageOf,
  type MsgpackLimits,
  MsgpackReader,
  parseJson,
  stringifyJson,
  Unreadable,
} from "../core/index.ts";
import type { Refusal, RefusalCode } from "./command.ts";

/** Media types of commands and receipts. */
export const JSON_TYPE = "application/json";
export const MSGPACK_TYPE = "application/msgpack";
export type MediaType = typeof JSON_TYPE | typeof MSGPACK_TYPE;

const MSGPACK = /^\s*application\/(?:x-|vnd\.)?msgpack\s*(?:;|,|$)/i;
const JSON_ANYWHERE = /(?:^|,)\s*application\/json\s*(?:;|,|$)/i;
const MSGPACK_ANYWHERE = /(?:^|,)\s*application\/(?:x-|vnd\.)?msgpack\s*(?:;|,|$)/i;

/** Media type of a body: JSON unless `Content-Type` names MessagePack. */
export function mediaTypeOf(contentType: string | null): MediaType {
  return contentType !== null && MSGPACK.test(contentType) ? MSGPACK_TYPE : JSON_TYPE;
}

/** Media type of an answer: the type in `Accept`, JSON first; otherwise the type of the request. */
export function answerTypeOf(accept: string | null, contentType: string | null): MediaType {
  if (accept !== null && JSON_ANYWHERE.test(accept)) return JSON_TYPE;
  if (accept !== null && MSGPACK_ANYWHERE.test(accept)) return MSGPACK_TYPE;
  return mediaTypeOf(contentType);
}

export type DecodedBody =
  | { readonly ok: true; readonly value: unknown }
  | { readonly ok: false; readonly refusal: Refusal };

const COMMA = 0x2c;
const utf8 = new TextDecoder("utf-8", { fatal: true });
const utf8Encoder = new TextEncoder();
const msgpackDecoder = new Decoder({ useBigInt64: true });
const msgpackEncoder = new Encoder({ useBigInt64: true, ignoreUndefined: true });

/**
 * Decodes an untrusted body. Integers that a double cannot represent are returned as `bigint`; in
 * MessagePack other integers may be, too. Binary values are views of `bytes`. Every member of an
 * object is an own property, whatever its name. Never throws. Bodies beyond the limits are refused
 * before anything is allocated for them.
 */
export function decodeBody(bytes: Uint8Array, type: MediaType, limits: MsgpackLimits): DecodedBody {
  if (bytes.length > limits.bytesMax) {
    const message = `${bytes.length} bytes, the maximum is ${limits.bytesMax}`;
    return { ok: false, refusal: { code: "too_large", message } };
  }
  switch (type) {
    case JSON_TYPE:
      return decodeJson(bytes, limits);
    case MSGPACK_TYPE:
      return decodeMsgpack(bytes, limits);
    default:
      return type satisfies never;
  }
}

/** Encodes a value that `decodeBody` reads. A `bigint` becomes a 64-bit integer. */
export function encodeBody(value: unknown, type: MediaType): Uint8Array {
  return type === MSGPACK_TYPE
    ? msgpackEncoder.encode(value)
    : utf8Encoder.encode(stringifyJson(value));
}

/**
 * Bounds the number of values before parsing: a comma follows every value except the last of a list
 * or object.
 */
function hasMoreCommas(bytes: Uint8Array, max: number): boolean {
  if (bytes.length <= max) return false;
  let commas = 0;
  for (let at = 0; at < bytes.length; at++) if (bytes[at] === COMMA) commas++;
  return commas > max;
}

function decodeJson(bytes: Uint8Array, { valuesMax, depthMax }: MsgpackLimits): DecodedBody {
  const refuse = (code: RefusalCode, message: string): DecodedBody => {
    return { ok: false, refusal: { code, message } };
  };
  if (hasMoreCommas(bytes, valuesMax)) return refuse("too_large", `more than ${valuesMax} values`);
  try {
    return { ok: true, value: parseJson(utf8.decode(bytes), depthMax) };
  } catch (thrown) {
    if (thrown instanceof JsonTooDeep) {
      return refuse("too_deep", `more than ${depthMax} nested lists or objects`);
    }
    const isSyntax = thrown instanceof SyntaxError;
    const message = isSyntax ? `invalid JSON: ${messageOf(thrown)}` : "invalid UTF-8";
    return refuse("malformed", printable(message));
  }
}

function decodeMsgpack(bytes: Uint8Array, limits: MsgpackLimits): DecodedBody {
  try {
    // The decoder allocates according to the lengths it reads, so they are checked before.
    const reader = new MsgpackReader(bytes, limits);
    reader.skip();
    if (!reader.isAtEnd) throw new Unreadable("trailing bytes");
    return { ok: true, value: msgpackDecoder.decode(bytes) };
  } catch (thrown) {
    if (thrown instanceof Unreadable && thrown.code !== "malformed") {
      return { ok: false, refusal: { code: thrown.code, message: thrown.message } };
    }
    // The decoder accepts everything that passed the check except some keys: `__proto__`, and keys
    // that are not text.
    const message = printable(`invalid MessagePack: ${messageOf(thrown)}`);
    return { ok: false, refusal: { code: "malformed", message } };
  }
}

const MESSAGE_MAX = 200;

/** Shortens a parser's message to one printable line, because it quotes the input. */
function printable(message: string): string {
  return message.replace(/[^\x20-\x7e]+/g, "?").slice(0, MESSAGE_MAX);
}

/** Thrown by the member readers; `decodeCommand` catches it. */
export class Refused extends Error {
  readonly refusal: Refusal;

  constructor(code: RefusalCode, message: string) {
    super(message);
    this.refusal = { code, message };
  }
}

export type Members = Readonly<Record<string, unknown>>;

export function isMembers(value: unknown): value is Members {
  const isObject = typeof value === "object" && value !== null;
  return isObject && !Array.isArray(value) && !(value instanceof Uint8Array);
}

const U64_MAX = 0xffff_ffff_ffff_ffffn;
/** Printable ASCII. Other text is checked against `PRINTABLE`. */
const PLAIN = /^[ -~]+$/;
/** No control, format or unassigned characters, and no line or paragraph separators. */
const PRINTABLE = /^[^\p{C}\p{Zl}\p{Zp}]+$/u;

/** Returns the member, or null if it is absent or null. */
export function memberOf(members: Members, name: string): unknown {
  return Object.hasOwn(members, name) ? (members[name] ?? null) : null;
}

export function isName(value: unknown, bytesMax: number): value is string {
  if (typeof value !== "string" || value.length === 0 || value.length > bytesMax) return false;
  return PLAIN.test(value) || (PRINTABLE.test(value) && Buffer.byteLength(value) <= bytesMax);
}

/** Returns null if the member is absent. */
export function nameMember(members: Members, name: string, bytesMax: number): string | null {
  const value = memberOf(members, name);
  if (value === null) return null;
  if (isName(value, bytesMax)) return value;
  throw new Refused("malformed", `${name} must be 1 to ${bytesMax} bytes of printable text`);
}

export function neededName(members: Members, name: string, bytesMax: number): string {
  const value = nameMember(members, name, bytesMax);
  if (value !== null) return value;
  throw new Refused("malformed", `${name} is missing`);
}

export function u64Member(members: Members, name: string): bigint | null {
  const value = memberOf(members, name);
  if (value === null) return null;
  if (typeof value === "bigint" || (typeof value === "number" && Number.isSafeInteger(value))) {
    const whole = BigInt(value);
    if (whole >= 0n && whole <= U64_MAX) return whole;
  }
  throw new Refused("malformed", `${name} must be an unsigned 64-bit integer`);
}

export function neededBoolean(members: Members, name: string): boolean {
  const value = memberOf(members, name);
  if (typeof value === "boolean") return value;
  throw new Refused("malformed", `${name} must be true or false`);
}

/** Accepts a finite number, or a bigint converted to one. */
export function numberMember(members: Members, name: string): number | null {
  const value = memberOf(members, name);
  if (value === null) return null;
  const number = typeof value === "bigint" ? Number(value) : value;
  if (typeof number === "number" && Number.isFinite(number)) return number;
  throw new Refused("malformed", `${name} must be a number`);
}

/** Converts seconds above 0 to milliseconds. Returns null if the member is absent. */
export function durationMember(members: Members, name: string): number | null {
  const seconds = numberMember(members, name);
  if (seconds === null) return null;
  if (seconds <= 0) throw new Refused("malformed", `${name} must be more than 0 seconds`);
  return Math.min(Math.ceil(seconds * 1_000), Number.MAX_SAFE_INTEGER);
}
