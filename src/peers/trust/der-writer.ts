import { assert } from "../../core/index.ts";
import { constructedTag, TAG } from "./der-reader.ts";

/** An element of the parts, one behind the other. */
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

/** Of a number that is not negative, the most significant byte first. */
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

/** To the second, in the form that RFC 5280 wants for the year. */
export function time(ms: number): Uint8Array {
  const date = new Date(ms);
  const digits = `${date.toISOString().slice(0, 19).replace(/\D/g, "")}Z`;
  if (date.getUTCFullYear() >= GENERALIZED_FROM_YEAR) {
    return element(TAG.generalizedTime, Buffer.from(digits));
  }
  return element(TAG.utcTime, Buffer.from(digits.slice(2)));
}
