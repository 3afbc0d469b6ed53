import { isUtf8 } from "node:buffer";
import type { Refusal } from "./refusals.ts";

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
export function checkMsgpack(bytes: Uint8Array, limits: BodyLimits): Refusal | null {
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

export function malformed(words: string): Refusal {
  return { word: "malformed", words };
}

export function tooMany(max: number): Refusal {
  return { word: "too_large", words: `a list of more than ${max} items` };
}

export function tooManyValues(max: number): Refusal {
  return { word: "too_large", words: `more than ${max} values in one body` };
}

export function tooDeep(max: number): Refusal {
  return { word: "too_deep", words: `more than ${max} lists or objects in each other` };
}
