import { assert, HearthError } from "../core/index.ts";

/** A byte buffer that grows as values are appended. */
export class ByteWriter {
  #bytes = new Uint8Array(1024);
  #view = new DataView(this.#bytes.buffer);
  #length = 0;

  u8(value: number): this {
    this.#room(1);
    this.#bytes[this.#length++] = value;
    return this;
  }

  u16(value: number, littleEndian: boolean): this {
    this.#room(2);
    this.#view.setUint16(this.#length, value, littleEndian);
    this.#length += 2;
    return this;
  }

  u32(value: number, littleEndian: boolean): this {
    this.#room(4);
    this.#view.setUint32(this.#length, value, littleEndian);
    this.#length += 4;
    return this;
  }

  u64(value: bigint, littleEndian: boolean): this {
    this.#room(8);
    this.#view.setBigUint64(this.#length, value, littleEndian);
    this.#length += 8;
    return this;
  }

  bytes(value: Uint8Array): this {
    this.#room(value.length);
    this.#bytes.set(value, this.#length);
    this.#length += value.length;
    return this;
  }

  /** Returns a copy of the bytes written so far. */
  done(): Uint8Array {
    return this.#bytes.slice(0, this.#length);
  }

  #room(more: number): void {
    const needed = this.#length + more;
    if (needed <= this.#bytes.length) return;
    const grown = new Uint8Array(Math.max(needed, 2 * this.#bytes.length));
    grown.set(this.#bytes.subarray(0, this.#length));
    this.#bytes = grown;
    this.#view = new DataView(grown.buffer);
  }
}

/**
 * Text that is one shared Python object at every occurrence, such as a constant. Pickle writes it
 * once and encodes later occurrences as references.
 */
interface SharedText {
  readonly shared: string;
}

/**
 * Python values that vLLM puts into a block hash: None, int, str, bytes, and tuples of these. A
 * `Uint32Array` is a tuple of token ids.
 */
export type HashInput =
  | null
  | number
  | bigint
  | string
  | SharedText
  | Uint8Array
  | Uint32Array
  | readonly HashInput[];

/**
 * Converts an integer to bigint. Throws unless it fits in 64 bits, signed or unsigned; both
 * encodings have this range.
 */
export function wholeNumber(value: number | bigint): bigint {
  assert(typeof value === "bigint" || Number.isSafeInteger(value), "a whole number");
  const whole = BigInt(value);
  assert(whole >= -(2n ** 63n) && whole < 2n ** 64n, "a number of at most 64 bits");
  return whole;
}

function isSharedText(value: HashInput): value is SharedText {
  return typeof value === "object" && value !== null && "shared" in value;
}

/** Opcodes of pickle protocol 5, with the names used by CPython's `pickletools`. */
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
/** CPython starts a new pickle frame when the current one has reached this size in bytes. */
const FRAME_BYTES_MAX = 65_536;
const FRAME_BYTES_MIN = 4;

const encoder = new TextEncoder();

function writeSmall(into: ByteWriter, value: number): void {
  if (value >= 0 && value < 0x100) into.u8(Op.BININT1).u8(value);
  else if (value >= 0 && value < 0x1_0000) into.u8(Op.BININT2).u16(value, true);
  else into.u8(Op.BININT).u32(value >>> 0, true);
}

function writePickleNumber(into: ByteWriter, value: number | bigint): void {
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
    else writePickleNumber(into, token);
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

/**
 * Writes one Python value as a pickle. Counts the objects stored in pickle's memo table, because a
 * reference contains an object's index in this table.
 */
class Pickler {
  readonly body = new ByteWriter();
  readonly #shared = new Map<string, number>();
  #memoised = 0;

  write(value: HashInput): void {
    const into = this.body;
    if (value === null) {
      into.u8(Op.NONE);
    } else if (typeof value === "number" || typeof value === "bigint") {
      writePickleNumber(into, value);
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
 * Encodes a value as CPython's `pickle.dumps(value, protocol=5)` does. CPython encodes a repeated
 * object as a reference, even if equal text in another object is written out. This encoder knows
 * only one kind of repeated object, `SharedText`. Throws UNSUPPORTED for pickles of 64 KiB or more,
 * because CPython splits them into frames.
 */
export function encodePickle(value: HashInput): Uint8Array {
  const pickler = new Pickler();
  pickler.write(value);
  const rest = pickler.body.u8(Op.STOP).done();
  if (rest.length >= FRAME_BYTES_MAX) {
    const message = `a pickle of ${rest.length} bytes, the limit is ${FRAME_BYTES_MAX - 1}`;
    throw new HearthError("UNSUPPORTED", message);
  }
  const whole = new ByteWriter().u8(Op.PROTO).u8(PROTOCOL);
  if (rest.length >= FRAME_BYTES_MIN) whole.u8(Op.FRAME).u64(BigInt(rest.length), true);
  return whole.bytes(rest).done();
}

const Major = { unsigned: 0x00, negative: 0x20, bytes: 0x40, text: 0x60, array: 0x80 } as const;
const NULL = 0xf6;

/**
 * Writes a CBOR head in its shortest form: the major type in the high three bits, then the
 * argument.
 */
function writeHead(into: ByteWriter, major: number, argument: number): void {
  if (argument < 24) into.u8(major | argument);
  else if (argument < 0x100) into.u8(major | 24).u8(argument);
  else if (argument < 0x1_0000) into.u8(major | 25).u16(argument, false);
  else into.u8(major | 26).u32(argument, false);
}

function writeCborNumber(into: ByteWriter, value: number | bigint): void {
  const whole = wholeNumber(value);
  const [major, argument] = whole < 0n ? [Major.negative, -1n - whole] : [Major.unsigned, whole];
  if (argument < 0x1_0000_0000n) writeHead(into, major, Number(argument));
  else into.u8(major | 27).u64(argument, false);
}

function write(into: ByteWriter, value: HashInput): void {
  if (value === null) {
    into.u8(NULL);
  } else if (typeof value === "number" || typeof value === "bigint") {
    writeCborNumber(into, value);
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

/** Encodes a value as canonical CBOR (RFC 8949, 4.2.1), where every head has its shortest form. */
export function encodeCbor(value: HashInput): Uint8Array {
  const into = new ByteWriter();
  write(into, value);
  return into.done();
}
