import { Encoder } from "@msgpack/msgpack";

/** Bytes of hex with blanks, and with text in single quotes where it stands for itself. */
export function hex(text: string): Uint8Array {
  const digits = text.replace(/'([^']*)'/g, (_, word: string) => Buffer.from(word).toString("hex"));
  return Uint8Array.fromHex(digits.replace(/\s+/g, ""));
}

const encoder = new Encoder({ useBigInt64: true });

/** MessagePack by somebody else's encoder; a bigint is always eight bytes. */
export function pack(value: unknown): Uint8Array {
  return encoder.encode(value);
}
