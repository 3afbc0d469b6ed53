import { isUtf8 } from "node:buffer";
import { Decoder, Encoder } from "@msgpack/msgpack";
import { JsonTooDeep, messageOf, parseJson, stringifyJson } from "../core/index.ts";
import type { Refusal, RefusalWord } from "./command.ts";

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

export interface BodyLimits {
  readonly bytesMax: number;
  readonly depthMax: number;
  /** Maximum items of one list or object. */
  readonly itemsMax: number;
  /** Maximum values in the whole body; each costs parsing time. */
  readonly valuesMax: number;
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
export function decodeBody(bytes: Uint8Array, type: MediaType, limits: BodyLimits): DecodedBody {
  if (bytes.length > limits.bytesMax) {
    const words = `${bytes.length} bytes, the maximum is ${limits.bytesMax}`;
    return { ok: false, refusal: { word: "too_large", words } };
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

function decodeJson(bytes: Uint8Array, limits: BodyLimits): DecodedBody {
  if (hasMoreCommas(bytes, limits.valuesMax)) {
    return { ok: false, refusal: tooManyValues(limits.valuesMax) };
  }
  try {
    return { ok: true, value: parseJson(utf8.decode(bytes), limits.depthMax) };
  } catch (thrown) {
    if (thrown instanceof JsonTooDeep) return { ok: false, refusal: tooDeep(limits.depthMax) };
    const words =
      thrown instanceof SyntaxError ? `invalid JSON: ${messageOf(thrown)}` : "invalid UTF-8";
    return { ok: false, refusal: malformed(printable(words)) };
  }
}

function decodeMsgpack(bytes: Uint8Array, limits: BodyLimits): DecodedBody {
  const refusal = checkMsgpack(bytes, limits);
  if (refusal !== null) return { ok: false, refusal };
  try {
    return { ok: true, value: msgpackDecoder.decode(bytes) };
  } catch (thrown) {
    // The decoder accepts everything that passed the check except some keys: `__proto__`, and keys
    // that are not text.
    return {
      ok: false,
      refusal: malformed(printable(`invalid MessagePack: ${messageOf(thrown)}`)),
    };
  }
}

const WORDS_MAX = 200;

/** Shortens a parser's message to one printable line, because it quotes the input. */
function printable(words: string): string {
  return words.replace(/[^\x20-\x7e]+/g, "?").slice(0, WORDS_MAX);
}

/** Kind of data after a MessagePack head byte. */
const Follows = { nothing: 0, text: 1, bytes: 2, list: 3, map: 4, refused: 5 } as const;
type Follows = (typeof Follows)[keyof typeof Follows];

interface Head {
  readonly follows: Follows;
  /** Number of length bytes after the head byte. If 0, `fixed` is the length. */
  readonly lengthBytes: number;
  readonly fixed: number;
}

const HEADS: readonly Head[] = Array.from({ length: 256 }, (_, byte) => headOf(byte));

function headOf(byte: number): Head {
  const head = (follows: Follows, lengthBytes: number, fixed = 0) => ({
    follows,
    lengthBytes,
    fixed,
  });
  if (byte < 0x80 || byte >= 0xe0) return head(Follows.nothing, 0);
  if (byte < 0x90) return head(Follows.map, 0, byte - 0x80);
  if (byte < 0xa0) return head(Follows.list, 0, byte - 0x90);
  if (byte < 0xc0) return head(Follows.text, 0, byte - 0xa0);
  if (byte === 0xc0 || byte === 0xc2 || byte === 0xc3) return head(Follows.nothing, 0);
  if (byte >= 0xc4 && byte <= 0xc6) return head(Follows.bytes, 1 << (byte - 0xc4));
  if (byte === 0xca || byte === 0xcb) return head(Follows.bytes, 0, byte === 0xca ? 4 : 8);
  if (byte >= 0xcc && byte <= 0xcf) return head(Follows.bytes, 0, 1 << (byte - 0xcc));
  if (byte >= 0xd0 && byte <= 0xd3) return head(Follows.bytes, 0, 1 << (byte - 0xd0));
  if (byte >= 0xd9 && byte <= 0xdb) return head(Follows.text, 1 << (byte - 0xd9));
  if (byte === 0xdc || byte === 0xdd) return head(Follows.list, byte === 0xdc ? 2 : 4);
  if (byte === 0xde || byte === 0xdf) return head(Follows.map, byte === 0xde ? 2 : 4);
  return head(Follows.refused, 0);
}

/**
 * Validates a MessagePack body without allocating anything for its values, because a decoder
 * allocates according to the lengths it reads. Returns null if the body is one complete value with
 * nothing after it, no more items than bytes, lists within the limits, valid UTF-8 text and no
 * extension types.
 */
function checkMsgpack(bytes: Uint8Array, limits: BodyLimits): Refusal | null {
  /** Items left at each depth. */
  const left = [1];
  let at = 0;
  let values = 0;
  for (;;) {
    while (left[left.length - 1] === 0) left.pop();
    if (left.length === 0) break;
    left[left.length - 1]!--;
    if (++values > limits.valuesMax) return tooManyValues(limits.valuesMax);
    if (at >= bytes.length) return malformed("MessagePack body is truncated");
    const { follows, lengthBytes, fixed } = HEADS[bytes[at++]!]!;
    if (follows === Follows.nothing) continue;
    if (follows === Follows.refused)
      return malformed("MessagePack extension types are not accepted");
    if (at + lengthBytes > bytes.length) return malformed("MessagePack body is truncated");
    const length = lengthBytes === 0 ? fixed : readLength(bytes, at, lengthBytes);
    at += lengthBytes;
    const items = follows === Follows.map ? length * 2 : length;
    if (items > bytes.length - at) return malformed("MessagePack body is truncated");
    if (follows === Follows.list || follows === Follows.map) {
      if (length > limits.itemsMax) return tooMany(limits.itemsMax);
      // The first entry counts the body itself.
      if (left.length > limits.depthMax) return tooDeep(limits.depthMax);
      left.push(items);
      continue;
    }
    const isText = follows === Follows.text;
    if (isText && !isUtf8(bytes.subarray(at, at + length)))
      return malformed("MessagePack text is not valid UTF-8");
    at += length;
  }
  return at === bytes.length ? null : malformed("MessagePack body has trailing bytes");
}

function readLength(bytes: Uint8Array, at: number, count: number): number {
  let length = 0;
  for (let i = 0; i < count; i++) length = length * 256 + bytes[at + i]!;
  return length;
}

function malformed(words: string): Refusal {
  return { word: "malformed", words };
}

function tooMany(max: number): Refusal {
  return { word: "too_large", words: `a list of more than ${max} items` };
}

function tooManyValues(max: number): Refusal {
  return { word: "too_large", words: `more than ${max} values in one body` };
}

function tooDeep(max: number): Refusal {
  return { word: "too_deep", words: `more than ${max} nested lists or objects` };
}

/** Thrown by the member readers; `decodeCommand` catches it. */
export class Refused extends Error {
  readonly refusal: Refusal;

  constructor(word: RefusalWord, words: string) {
    super(words);
    this.refusal = { word, words };
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
