import { Decoder, Encoder } from "@msgpack/msgpack";
import { JsonTooDeep, messageOf, parseJson, stringifyJson } from "../core/index.ts";
import {
  type BodyLimits,
  checkMsgpack,
  malformed,
  tooDeep,
  tooManyValues,
} from "./check-msgpack.ts";
import { JSON_TYPE, type MediaType, MSGPACK_TYPE } from "./media-type.ts";
import type { Refusal } from "./refusals.ts";

export type { BodyLimits } from "./check-msgpack.ts";

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
