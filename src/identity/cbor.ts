import { ByteWriter } from "./byte-writer.ts";
import { type HashInput, isSharedText, wholeNumber } from "./hash-input.ts";

const Major = { unsigned: 0x00, negative: 0x20, bytes: 0x40, text: 0x60, array: 0x80 } as const;
const NULL = 0xf6;

const encoder = new TextEncoder();

/** The shortest head: major type in the high three bits, then the argument. */
function writeHead(into: ByteWriter, major: number, argument: number): void {
  if (argument < 24) into.u8(major | argument);
  else if (argument < 0x100) into.u8(major | 24).u8(argument);
  else if (argument < 0x1_0000) into.u8(major | 25).u16(argument, false);
  else into.u8(major | 26).u32(argument, false);
}

function writeNumber(into: ByteWriter, value: number | bigint): void {
  const whole = wholeNumber(value);
  const [major, argument] = whole < 0n ? [Major.negative, -1n - whole] : [Major.unsigned, whole];
  if (argument < 0x1_0000_0000n) writeHead(into, major, Number(argument));
  else into.u8(major | 27).u64(argument, false);
}

function write(into: ByteWriter, value: HashInput): void {
  if (value === null) {
    into.u8(NULL);
  } else if (typeof value === "number" || typeof value === "bigint") {
    writeNumber(into, value);
  } else if (typeof value === "string") {
    const text = encoder.encode(value);
    writeHead(into, Major.text, text.length);
    into.bytes(text);
  } else if (value instanceof Uint8Array) {
    writeHead(into, Major.bytes, value.length);
    into.bytes(value);
  } else if (value instanceof Uint32Array) {
    writeHead(into, Major.array, value.length);
    for (const token of value) writeHead(into, Major.unsigned, token);
  } else if (isSharedText(value)) {
    write(into, value.shared);
  } else {
    writeHead(into, Major.array, value.length);
    for (const item of value) write(into, item);
  }
}

/** Canonical CBOR (RFC 8949, 4.2.1): every head as short as it can be. */
export function encodeCbor(value: HashInput): Uint8Array {
  const into = new ByteWriter();
  write(into, value);
  return into.done();
}
