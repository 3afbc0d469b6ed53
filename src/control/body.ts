import { isUtf8 } from "node:buffer";
import { Decoder, Encoder } from "@msgpack/msgpack";
import { JsonTooDeep, messageOf, parseJson, stringifyJson } from "../core/index.ts";
import type { Refusal, RefusalWord } from "./command.ts";

export type DecodedBody =
  | { readonly ok: true; readonly value: unknown }
  | { readonly ok: false; readonly refusal: Refusal };

const COMMA = 0x2c;
const utf8 = new TextDecoder("utf-8", { fatal: true });
const utf8Encoder = new TextEncoder();
const msgpackDecoder = new Decoder({ useBigInt64: true });
const msgpackEncoder = new Encoder({ useBigInt64: true, ignoreUndefined: true });

/**
 * Reads a body from anybody. Integers that a double cannot hold come as `bigint`, in MessagePack
 * others too. Binary values are views of `bytes`. Objects have their members as own
 * ones, whatever they are called. Never throws, and refuses what is too large before it makes
 * anything of it.
 */
export function decodeBody(bytes: Uint8Array, type: MediaType, limits: BodyLimits): DecodedBody {
  if (bytes.length > limits.bytesMax) {
    const words = `${bytes.length} bytes, ${limits.bytesMax} at most`;
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

/** Writes what `decodeBody` reads; `bigint` as an integer of 64 bits. */
export function encodeBody(value: unknown, type: MediaType): Uint8Array {
  return type === MSGPACK_TYPE
    ? msgpackEncoder.encode(value)
    : utf8Encoder.encode(stringifyJson(value));
}

/** Each value but the last of a list or an object has a comma behind it. */
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
    const words = thrown instanceof SyntaxError ? `no JSON: ${messageOf(thrown)}` : "no UTF-8";
    return { ok: false, refusal: malformed(printable(words)) };
  }
}

function decodeMsgpack(bytes: Uint8Array, limits: BodyLimits): DecodedBody {
  const refusal = checkMsgpack(bytes, limits);
  if (refusal !== null) return { ok: false, refusal };
  try {
    return { ok: true, value: msgpackDecoder.decode(bytes) };
  } catch (thrown) {
    // It takes all that was checked but some keys: `__proto__`, and those that are no text.
    return { ok: false, refusal: malformed(printable(`no MessagePack: ${messageOf(thrown)}`)) };
  }
}

const WORDS_MAX = 200;

/** A parser's words quote the input: kept short and to one line. */
function printable(words: string): string {
  return words.replace(/[^\x20-\x7e]+/g, "?").slice(0, WORDS_MAX);
}

/** The media types a command and its receipt may have. */
export const JSON_TYPE = "application/json";
export const MSGPACK_TYPE = "application/msgpack";
export type MediaType = typeof JSON_TYPE | typeof MSGPACK_TYPE;

const MSGPACK = /^\s*application\/(?:x-|vnd\.)?msgpack\s*(?:;|,|$)/i;
const JSON_ANYWHERE = /(?:^|,)\s*application\/json\s*(?:;|,|$)/i;
const MSGPACK_ANYWHERE = /(?:^|,)\s*application\/(?:x-|vnd\.)?msgpack\s*(?:;|,|$)/i;

/** Of a body: JSON unless its `Content-Type` says MessagePack. */
export function mediaTypeOf(contentType: string | null): MediaType {
  return contentType !== null && MSGPACK.test(contentType) ? MSGPACK_TYPE : JSON_TYPE;
}

/** Of an answer: what `Accept` names, JSON first; else that of the request. */
export function answerTypeOf(accept: string | null, contentType: string | null): MediaType {
  if (accept !== null && JSON_ANYWHERE.test(accept)) return JSON_TYPE;
  if (accept !== null && MSGPACK_ANYWHERE.test(accept)) return MSGPACK_TYPE;
  return mediaTypeOf(contentType);
}

export interface BodyLimits {
  readonly bytesMax: number;
  readonly depthMax: number;
  /** Of one list or object. */
  readonly itemsMax: number;
  /** Of all lists and objects together: parsing takes time for each. */
  readonly valuesMax: number;
}

/** What follows a head byte of MessagePack. */
const Follows = { nothing: 0, text: 1, bytes: 2, list: 3, map: 4, refused: 5 } as const;
type Follows = (typeof Follows)[keyof typeof Follows];

interface Head {
  readonly follows: Follows;
  /** Bytes behind the head byte that hold the length; 0 where `fixed` is it. */
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
 * Walks over a MessagePack body without making anything of it: a decoder believes the lengths it
 * reads and takes memory for them. Null where the body is one value, complete, with nothing behind
 * it, with no more items than it has bytes, no list deeper or longer than the limits, text that is
 * UTF-8 and no extension types.
 */
function checkMsgpack(bytes: Uint8Array, limits: BodyLimits): Refusal | null {
  /** Items outstanding at each depth. */
  const left = [1];
  let at = 0;
  let values = 0;
  for (;;) {
    while (left[left.length - 1] === 0) left.pop();
    if (left.length === 0) break;
    left[left.length - 1]!--;
    if (++values > limits.valuesMax) return tooManyValues(limits.valuesMax);
    if (at >= bytes.length) return malformed("MessagePack ends too early");
    const { follows, lengthBytes, fixed } = HEADS[bytes[at++]!]!;
    if (follows === Follows.nothing) continue;
    if (follows === Follows.refused) return malformed("MessagePack with an extension type");
    if (at + lengthBytes > bytes.length) return malformed("MessagePack ends too early");
    const length = lengthBytes === 0 ? fixed : readLength(bytes, at, lengthBytes);
    at += lengthBytes;
    const items = follows === Follows.map ? length * 2 : length;
    if (items > bytes.length - at) return malformed("MessagePack ends too early");
    if (follows === Follows.list || follows === Follows.map) {
      if (length > limits.itemsMax) return tooMany(limits.itemsMax);
      // The first entry stands for the body itself.
      if (left.length > limits.depthMax) return tooDeep(limits.depthMax);
      left.push(items);
      continue;
    }
    const isText = follows === Follows.text;
    if (isText && !isUtf8(bytes.subarray(at, at + length))) return malformed("text is no UTF-8");
    at += length;
  }
  return at === bytes.length ? null : malformed("MessagePack with more behind it");
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
  return { word: "too_deep", words: `more than ${max} lists or objects in each other` };
}

/** Thrown by the readers of members, caught where a command is decoded. */
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
/** Printable ASCII; what is beyond is looked at more closely. */
const PLAIN = /^[ -~]+$/;
/** Without control, format and unassigned characters, and without those that break a line. */
const PRINTABLE = /^[^\p{C}\p{Zl}\p{Zp}]+$/u;

/** A member that was left out may also be null. */
export function memberOf(members: Members, name: string): unknown {
  return Object.hasOwn(members, name) ? (members[name] ?? null) : null;
}

export function isName(value: unknown, bytesMax: number): value is string {
  if (typeof value !== "string" || value.length === 0 || value.length > bytesMax) return false;
  return PLAIN.test(value) || (PRINTABLE.test(value) && Buffer.byteLength(value) <= bytesMax);
}

/** Null where there is none. */
export function nameMember(members: Members, name: string, bytesMax: number): string | null {
  const value = memberOf(members, name);
  if (value === null) return null;
  if (isName(value, bytesMax)) return value;
  throw new Refused("malformed", `${name} is text of 1 to ${bytesMax} printable bytes`);
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
  throw new Refused("malformed", `${name} is an integer of 64 bits, 0 or more`);
}

export function neededBoolean(members: Members, name: string): boolean {
  const value = memberOf(members, name);
  if (typeof value === "boolean") return value;
  throw new Refused("malformed", `${name} is true or false`);
}

/** A finite number, also where it came as a bigint. */
export function numberMember(members: Members, name: string): number | null {
  const value = memberOf(members, name);
  if (value === null) return null;
  const number = typeof value === "bigint" ? Number(value) : value;
  if (typeof number === "number" && Number.isFinite(number)) return number;
  throw new Refused("malformed", `${name} is a number`);
}

/** Seconds above 0 as milliseconds; null where there are none. */
export function durationMember(members: Members, name: string): number | null {
  const seconds = numberMember(members, name);
  if (seconds === null) return null;
  if (seconds <= 0) throw new Refused("malformed", `${name} is more than 0 seconds`);
  return Math.min(Math.ceil(seconds * 1_000), Number.MAX_SAFE_INTEGER);
}
