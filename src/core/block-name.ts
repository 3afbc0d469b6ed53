import { LAYER_ALL } from "./address.ts";

/**
 * How a command names a block: by a 64-bit engine hash, or by 32 bytes that are a SHA-256 page key
 * or our own digest. A hash may lead to several blocks (namespaces, layers): all of them are meant.
 */
export type BlockName =
  | {
      readonly kind: "hash";
      /** As it was given; answers repeat it. */
      readonly given: number | bigint | string;
      /** The low and high 32 bits of the hash as an unsigned number. */
      readonly lo: number;
      readonly hi: number;
    }
  | {
      readonly kind: "key";
      readonly given: string;
      /** 32 bytes. Looked up as a page key first, then as a digest. */
      readonly bytes: Uint8Array;
      /** Of the digest; `LAYER_ALL` unless given. */
      readonly layer: number;
    };

const KEY = /^([0-9a-fA-F]{64})(?:\/(0|[1-9][0-9]{0,9}))?$/;
const INTEGER = /^(?:0|-?[1-9][0-9]{0,19})$/;
const I64_MIN = -(2n ** 63n);
const U64_MAX = 2n ** 64n - 1n;
const WORD = 2 ** 32;
const words = new DataView(new ArrayBuffer(8));

/**
 * A block's name from what `parseJson` or MessagePack gave, or from a word of a query or command
 * line: an integer of 64 bits, signed or not (in digits where it is text); 64 hex digits; those
 * with `/layer` behind them. Null where it is none of these.
 */
export function readBlockName(raw: unknown): BlockName | null {
  if (typeof raw === "string") return readText(raw);
  if (typeof raw === "bigint") return readInteger(raw, raw);
  if (typeof raw !== "number" || !Number.isSafeInteger(raw)) return null;
  if (raw < 0) return readInteger(raw, BigInt(raw));
  return { kind: "hash", given: raw, lo: raw >>> 0, hi: (raw / WORD) >>> 0 };
}

function readText(given: string): BlockName | null {
  // Bounded before a pattern or a bigint sees it.
  if (given.length > 80) return null;
  if (INTEGER.test(given)) return readInteger(given, BigInt(given));
  const match = KEY.exec(given);
  if (match === null) return null;
  const layer = match[2] === undefined ? LAYER_ALL : Number(match[2]);
  return layer > LAYER_ALL
    ? null
    : { kind: "key", given, bytes: Uint8Array.fromHex(match[1]!), layer };
}

function readInteger(given: number | bigint | string, value: bigint): BlockName | null {
  if (value < I64_MIN || value > U64_MAX) return null;
  words.setBigUint64(0, value);
  return { kind: "hash", given, lo: words.getUint32(4), hi: words.getUint32(0) };
}
