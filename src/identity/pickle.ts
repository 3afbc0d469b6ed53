import { HearthError } from "../core/index.ts";
import { ByteWriter } from "./byte-writer.ts";
import { type HashInput, wholeNumber } from "./hash-input.ts";

/** Opcodes of pickle protocol 5, as CPython's `pickletools` names them. */
const Op = {
  PROTO: 0x80,
  FRAME: 0x95,
  MEMOIZE: 0x94,
  STOP: 0x2e,
  NONE: 0x4e,
  BININT1: 0x4b,
  BININT2: 0x4d,
  BININT: 0x4a,
  LONG1: 0x8a,
  SHORT_BINBYTES: 0x43,
  BINBYTES: 0x42,
  SHORT_BINUNICODE: 0x8c,
  BINUNICODE: 0x58,
  MARK: 0x28,
  TUPLE: 0x74,
  TUPLE1: 0x85,
  TUPLE2: 0x86,
  TUPLE3: 0x87,
  EMPTY_TUPLE: 0x29,
} as const;

const PROTOCOL = 5;
/** CPython begins a new frame behind the object that reaches this size. */
const FRAME_BYTES_MAX = 65_536;
const FRAME_BYTES_MIN = 4;

const encoder = new TextEncoder();

function writeSmall(into: ByteWriter, value: number): void {
  if (value >= 0 && value < 0x100) into.u8(Op.BININT1).u8(value);
  else if (value >= 0 && value < 0x1_0000) into.u8(Op.BININT2).u16(value, true);
  else into.u8(Op.BININT).u32(value >>> 0, true);
}

function writeNumber(into: ByteWriter, value: number | bigint): void {
  const whole = wholeNumber(value);
  if (whole >= -(2n ** 31n) && whole < 2n ** 31n) {
    writeSmall(into, Number(whole));
    return;
  }
  let size = 1;
  while (BigInt.asIntN(8 * size, whole) !== whole) size++;
  into.u8(Op.LONG1).u8(size);
  for (let i = 0; i < size; i++) into.u8(Number((whole >> BigInt(8 * i)) & 0xffn));
}

function writeTokens(into: ByteWriter, tokens: Uint32Array): void {
  openTuple(into, tokens.length);
  for (const token of tokens) {
    if (token < 0x8000_0000) writeSmall(into, token);
    else writeNumber(into, token);
  }
  closeTuple(into, tokens.length);
}

function openTuple(into: ByteWriter, length: number): void {
  if (length > 3) into.u8(Op.MARK);
}

function closeTuple(into: ByteWriter, length: number): void {
  if (length === 0) into.u8(Op.EMPTY_TUPLE);
  else into.u8([Op.TUPLE1, Op.TUPLE2, Op.TUPLE3][length - 1] ?? Op.TUPLE).u8(Op.MEMOIZE);
}

function write(into: ByteWriter, value: HashInput): void {
  if (value === null) {
    into.u8(Op.NONE);
  } else if (typeof value === "number" || typeof value === "bigint") {
    writeNumber(into, value);
  } else if (typeof value === "string") {
    const text = encoder.encode(value);
    if (text.length < 0x100) into.u8(Op.SHORT_BINUNICODE).u8(text.length);
    else into.u8(Op.BINUNICODE).u32(text.length, true);
    into.bytes(text).u8(Op.MEMOIZE);
  } else if (value instanceof Uint8Array) {
    if (value.length < 0x100) into.u8(Op.SHORT_BINBYTES).u8(value.length);
    else into.u8(Op.BINBYTES).u32(value.length, true);
    into.bytes(value).u8(Op.MEMOIZE);
  } else if (value instanceof Uint32Array) {
    writeTokens(into, value);
  } else {
    openTuple(into, value.length);
    for (const item of value) write(into, item);
    closeTuple(into, value.length);
  }
}

/**
 * The bytes of CPython's `pickle.dumps(value, protocol=5)`, for values in which no object occurs
 * twice: CPython writes the second occurrence of the *same* object as a reference, and which
 * strings of a request are one object cannot be seen from outside. Throws UNSUPPORTED from 64 KiB
 * on, where CPython splits frames.
 */
export function encodePickle(value: HashInput): Uint8Array {
  const body = new ByteWriter();
  write(body, value);
  const rest = body.u8(Op.STOP).done();
  if (rest.length >= FRAME_BYTES_MAX) {
    const message = `only pickles below ${FRAME_BYTES_MAX} bytes are made, not of ${rest.length}`;
    throw new HearthError("UNSUPPORTED", message);
  }
  const whole = new ByteWriter().u8(Op.PROTO).u8(PROTOCOL);
  if (rest.length >= FRAME_BYTES_MIN) whole.u8(Op.FRAME).u64(BigInt(rest.length), true);
  return whole.bytes(rest).done();
}
