import { HearthError } from "../core/index.ts";
import { ByteWriter } from "./byte-writer.ts";
import { type HashInput, isSharedText, wholeNumber } from "./hash-input.ts";

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
  BINGET: 0x68,
  LONG_BINGET: 0x6a,
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
  for (const token of tokens) {
    if (token < 0x8000_0000) writeSmall(into, token);
    else writeNumber(into, token);
  }
}

function openTuple(into: ByteWriter, length: number): void {
  if (length > 3) into.u8(Op.MARK);
}

function writeText(into: ByteWriter, value: string): void {
  const text = encoder.encode(value);
  if (text.length < 0x100) into.u8(Op.SHORT_BINUNICODE).u8(text.length);
  else into.u8(Op.BINUNICODE).u32(text.length, true);
  into.bytes(text);
}

function writeBytes(into: ByteWriter, value: Uint8Array): void {
  if (value.length < 0x100) into.u8(Op.SHORT_BINBYTES).u8(value.length);
  else into.u8(Op.BINBYTES).u32(value.length, true);
  into.bytes(value);
}

/** Writes one value. Counts memoised objects, because a reference names an object by its count. */
class Pickler {
  readonly body = new ByteWriter();
  readonly #shared = new Map<string, number>();
  #memoised = 0;

  write(value: HashInput): void {
    const into = this.body;
    if (value === null) {
      into.u8(Op.NONE);
    } else if (typeof value === "number" || typeof value === "bigint") {
      writeNumber(into, value);
    } else if (typeof value === "string") {
      writeText(into, value);
      this.#memoise();
    } else if (value instanceof Uint8Array) {
      writeBytes(into, value);
      this.#memoise();
    } else if (value instanceof Uint32Array) {
      openTuple(into, value.length);
      writeTokens(into, value);
      this.#closeTuple(value.length);
    } else if (isSharedText(value)) {
      this.#writeShared(value.shared);
    } else {
      openTuple(into, value.length);
      for (const item of value) this.write(item);
      this.#closeTuple(value.length);
    }
  }

  #writeShared(text: string): void {
    const at = this.#shared.get(text);
    if (at === undefined) {
      this.#shared.set(text, this.#memoised);
      this.write(text);
    } else if (at < 0x100) {
      this.body.u8(Op.BINGET).u8(at);
    } else {
      this.body.u8(Op.LONG_BINGET).u32(at, true);
    }
  }

  #closeTuple(length: number): void {
    if (length === 0) {
      this.body.u8(Op.EMPTY_TUPLE);
      return;
    }
    this.body.u8([Op.TUPLE1, Op.TUPLE2, Op.TUPLE3][length - 1] ?? Op.TUPLE);
    this.#memoise();
  }

  #memoise(): void {
    this.body.u8(Op.MEMOIZE);
    this.#memoised++;
  }
}

/**
 * The bytes of CPython's `pickle.dumps(value, protocol=5)`. CPython writes the second occurrence of
 * the *same* object as a reference. Only a `SharedText` is taken as the same object: for strings of
 * a request this is not visible from outside. Throws UNSUPPORTED from 64 KiB on, because CPython
 * splits longer pickles into frames.
 */
export function encodePickle(value: HashInput): Uint8Array {
  const pickler = new Pickler();
  pickler.write(value);
  const rest = pickler.body.u8(Op.STOP).done();
  if (rest.length >= FRAME_BYTES_MAX) {
    const message = `only pickles below ${FRAME_BYTES_MAX} bytes are made, not of ${rest.length}`;
    throw new HearthError("UNSUPPORTED", message);
  }
  const whole = new ByteWriter().u8(Op.PROTO).u8(PROTOCOL);
  if (rest.length >= FRAME_BYTES_MIN) whole.u8(Op.FRAME).u64(BigInt(rest.length), true);
  return whole.bytes(rest).done();
}
