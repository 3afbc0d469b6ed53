/** Length and kind. */
const PREFIX_BYTES = 5;
const WHY_BYTES_MAX = 255;

/** Numbers and bytes, one after the other. */
export type Field = readonly [width: 1 | 2 | 4, value: number] | Uint8Array;

/**
 * A message as it goes over the wire: `length u32, kind u8, fields`; the length counts what follows
 * it, all numbers are little-endian.
 */
export function frame(code: number, ...fields: readonly Field[]): Uint8Array {
  let length = PREFIX_BYTES;
  for (const field of fields) length += field instanceof Uint8Array ? field.length : field[0];
  const bytes = new Uint8Array(length);
  const view = new DataView(bytes.buffer);
  view.setUint32(0, length - 4, true);
  bytes[4] = code;
  let at = PREFIX_BYTES;
  for (const field of fields) {
    if (field instanceof Uint8Array) {
      bytes.set(field, at);
      at += field.length;
      continue;
    }
    const [width, value] = field;
    if (width === 1) bytes[at] = value;
    else if (width === 2) view.setUint16(at, value, true);
    else view.setUint32(at, value, true);
    at += width;
  }
  return bytes;
}

/** Words for the other side, cut to what the message holds. */
export function words(text: string): Uint8Array {
  const bytes = new Uint8Array(WHY_BYTES_MAX);
  return bytes.subarray(0, new TextEncoder().encodeInto(text, bytes).written);
}

/** Null: it is none. */
export function textOf(bytes: Uint8Array): string | null {
  if (bytes.length > WHY_BYTES_MAX) return null;
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return null;
  }
}
