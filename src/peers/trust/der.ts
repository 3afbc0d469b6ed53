import { assert } from "../../core/index.ts";

/** The universal tags that certificates use. */
export const TAG = {
  boolean: 0x01,
  integer: 0x02,
  bitString: 0x03,
  octetString: 0x04,
  oid: 0x06,
  utf8String: 0x0c,
  sequence: 0x30,
  set: 0x31,
  utcTime: 0x17,
  generalizedTime: 0x18,
} as const;

/** Context tag `[number]` around an element, as in `[3] EXPLICIT`. */
export function constructedTag(number: number): number {
  return 0xa0 | number;
}

/** Context tag `[number]` in place of a primitive tag, as in `[6] IMPLICIT`. */
export function primitiveTag(number: number): number {
  return 0x80 | number;
}

const LENGTH_BYTES_MAX = 3;
const MULTIPLE_BYTES = 0x1f;

interface Element {
  readonly tag: number;
  readonly body: Uint8Array;
  /** Includes tag and length. */
  readonly whole: Uint8Array;
}

/**
 * Reads DER sequentially. Strict: minimal lengths, no indefinite lengths, single-byte tags. Throws
 * NotDer.
 */
export class DerReader {
  readonly #bytes: Uint8Array;
  #at = 0;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
  }

  get isAtEnd(): boolean {
    return this.#at === this.#bytes.length;
  }

  /** Whether the next element has this tag. */
  isNext(tag: number): boolean {
    return this.#bytes[this.#at] === tag;
  }

  /** Reads the next element of any tag. */
  any(what: string): Element {
    const start = this.#at;
    const tag = this.#byte(what);
    if ((tag & MULTIPLE_BYTES) === MULTIPLE_BYTES) throw new NotDer(`${what} has a multi-byte tag`);
    const length = this.#length(what);
    const from = this.#at;
    if (length > this.#bytes.length - from) throw new NotDer(`${what} is cut short`);
    this.#at = from + length;
    return {
      tag,
      body: this.#bytes.subarray(from, this.#at),
      whole: this.#bytes.subarray(start, this.#at),
    };
  }

  /** Reads the body of the next element, which must have this tag. */
  take(tag: number, what: string): Uint8Array {
    if (!this.isNext(tag)) throw new NotDer(`${what} is not where it should be`);
    return this.any(what).body;
  }

  /** Null: the next element has another tag, or there is none. */
  takeIf(tag: number, what: string): Uint8Array | null {
    return this.isNext(tag) ? this.any(what).body : null;
  }

  /** A reader for the contents of the next element, which must have this tag. */
  inside(tag: number, what: string): DerReader {
    return new DerReader(this.take(tag, what));
  }

  /** Checks that nothing is left. */
  end(what: string): void {
    if (!this.isAtEnd) throw new NotDer(`${what} has trailing bytes`);
  }

  #byte(what: string): number {
    const byte = this.#bytes[this.#at];
    if (byte === undefined) throw new NotDer(`${what} is cut short`);
    this.#at += 1;
    return byte;
  }

  #length(what: string): number {
    const first = this.#byte(what);
    if (first < 0x80) return first;
    const count = first & 0x7f;
    if (count === 0 || count > LENGTH_BYTES_MAX)
      throw new NotDer(`${what} has an unsupported length`);
    let length = 0;
    for (let i = 0; i < count; i++) length = length * 256 + this.#byte(what);
    if (length < 0x80 || length < 256 ** (count - 1)) {
      throw new NotDer(`${what} has a length that is not minimal`);
    }
    return length;
  }
}

/** DER allows 0x00 and 0xff only. */
export function readBoolean(body: Uint8Array, what: string): boolean {
  if (body.length === 1 && body[0] === 0xff) return true;
  if (body.length === 1 && body[0] === 0x00) return false;
  throw new NotDer(`${what} is not a boolean`);
}

/** Bytes of a minimally encoded integer. */
export function readIntegerBytes(body: Uint8Array, what: string): Uint8Array {
  const [first, second] = body;
  const isPadded =
    second !== undefined &&
    ((first === 0x00 && second < 0x80) || (first === 0xff && second >= 0x80));
  if (first === undefined || isPadded) throw new NotDer(`${what} is not an integer`);
  return body;
}

/** Reads an integer from 0 to 2^31 - 1. */
export function readSmallInteger(body: Uint8Array, what: string): number {
  const bytes = readIntegerBytes(body, what);
  if (bytes.length > 4 || bytes[0]! >= 0x80) throw new NotDer(`${what} is out of range`);
  return bytes.reduce((value, byte) => value * 256 + byte, 0);
}

const ARC_MAX = 2 ** 48;

/** `1.3.6.1.5`. */
export function readOid(body: Uint8Array, what: string): string {
  const arcs: number[] = [];
  let arc = 0;
  let isStart = true;
  for (const byte of body) {
    if ((isStart && byte === 0x80) || arc >= ARC_MAX / 128)
      throw new NotDer(`${what} is not an OID`);
    arc = arc * 128 + (byte & 0x7f);
    isStart = byte < 0x80;
    if (!isStart) continue;
    if (arcs.length > 0) arcs.push(arc);
    else arcs.push(Math.min(2, Math.floor(arc / 40)), arc - 40 * Math.min(2, Math.floor(arc / 40)));
    arc = 0;
  }
  if (arcs.length === 0 || !isStart) throw new NotDer(`${what} is not an OID`);
  return arcs.join(".");
}

const UTC_TIME = /^(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)Z$/;
const GENERALIZED_TIME = /^(\d{4})(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)Z$/;
/** RFC 5280, 4.1.2.5.1: two-digit years below this belong to the 21st century. */
const CENTURY_ENDS = 50;

/** Milliseconds since 1970 of a UTCTime or GeneralizedTime in the form that RFC 5280 allows. */
export function readTime({ tag, body }: Element, what: string): number {
  const isShort = tag === TAG.utcTime;
  if (!isShort && tag !== TAG.generalizedTime) throw new NotDer(`${what} is not a valid time`);
  const match = (isShort ? UTC_TIME : GENERALIZED_TIME).exec(latin(body));
  if (match === null) throw new NotDer(`${what} is not a valid time`);
  const [year, month, day, hour, minute, second] = match.slice(1).map(Number) as number[];
  const fullYear = isShort ? year! + (year! < CENTURY_ENDS ? 2000 : 1900) : year!;
  const date = new Date(0);
  date.setUTCFullYear(fullYear, month! - 1, day!);
  date.setUTCHours(hour!, minute!, second!);
  const isSame = date.getUTCMonth() === month! - 1 && date.getUTCDate() === day!;
  if (!isSame || hour! > 23 || minute! > 59 || second! > 59)
    throw new NotDer(`${what} is not a valid time`);
  return date.getTime();
}

/** Bytes as characters U+0000 to U+00FF, without loss. */
export function latin(bytes: Uint8Array): string {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length).toString("latin1");
}

/** An element whose body is the concatenation of the parts. */
export function element(tag: number, ...parts: readonly Uint8Array[]): Uint8Array {
  const body = Buffer.concat(parts);
  return new Uint8Array(Buffer.concat([Uint8Array.of(tag, ...lengthOf(body.length)), body]));
}

function lengthOf(length: number): number[] {
  if (length < 0x80) return [length];
  const bytes: number[] = [];
  for (let rest = length; rest > 0; rest = Math.floor(rest / 256)) bytes.unshift(rest % 256);
  return [0x80 | bytes.length, ...bytes];
}

export const sequence = (...parts: readonly Uint8Array[]) => element(TAG.sequence, ...parts);
export const setOf = (part: Uint8Array) => element(TAG.set, part);
export const octetString = (bytes: Uint8Array) => element(TAG.octetString, bytes);
export const utf8String = (text: string) => element(TAG.utf8String, Buffer.from(text));
export const explicit = (number: number, part: Uint8Array) => element(constructedTag(number), part);
export const TRUE = element(TAG.boolean, Uint8Array.of(0xff));

export function bitString(bytes: Uint8Array, unusedBits = 0): Uint8Array {
  return element(TAG.bitString, Uint8Array.of(unusedBits), bytes);
}

/** A non-negative integer, big-endian. */
export function integer(bytes: Uint8Array): Uint8Array {
  const first = bytes.findIndex((byte) => byte !== 0);
  const short = first < 0 ? Uint8Array.of(0) : bytes.subarray(first);
  const sign = short[0]! >= 0x80 ? Uint8Array.of(0) : new Uint8Array();
  return element(TAG.integer, sign, short);
}

/** From `1.3.6.1.5`. */
export function oid(text: string): Uint8Array {
  const [first, second, ...rest] = text.split(".").map(Number);
  assert(first !== undefined && second !== undefined, "an OID has two arcs");
  const bytes = [first * 40 + second, ...rest].flatMap((arc) => {
    const digits = [arc % 128];
    for (let left = Math.floor(arc / 128); left > 0; left = Math.floor(left / 128)) {
      digits.unshift(0x80 | (left % 128));
    }
    return digits;
  });
  return element(TAG.oid, Uint8Array.from(bytes));
}

const GENERALIZED_FROM_YEAR = 2050;

/** Precision of seconds, in the form that RFC 5280 requires for the year. */
export function time(ms: number): Uint8Array {
  const date = new Date(ms);
  const digits = `${date.toISOString().slice(0, 19).replace(/\D/g, "")}Z`;
  if (date.getUTCFullYear() >= GENERALIZED_FROM_YEAR) {
    return element(TAG.generalizedTime, Buffer.from(digits));
  }
  return element(TAG.utcTime, Buffer.from(digits.slice(2)));
}

/** Invalid or unexpected DER. Never leaves this folder. */
export class NotDer extends Error {}
