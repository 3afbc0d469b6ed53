import { assert } from "../../core/index.ts";
import {
  ALIGNMENT,
  FrameFlag,
  FrameStatus,
  HEADER_BYTES,
  mayGoUnanswered,
  opName,
} from "./layout.ts";

// Defined only when the fuzzer itself is tested: enables the planted bug below, which the fuzzer
// must find.
declare const HEARTH_CANARY: boolean;

const U32_RANGE = 2 ** 32;
/** Upper word of the largest integer that a double represents exactly. */
const SAFE_HIGH_MAX = 2 ** 21 - 1;

/**
 * A received frame. The reader reuses this object and its memory for the next frame: both are valid
 * only until the `FrameSink` returns.
 */
export interface Frame {
  /** Length of the whole frame in bytes, header included. */
  length: number;
  op: number;
  flags: number;
  status: number;
  requestId: number;
  /** Number of items in the frame. */
  count: number;
  bytes: Uint8Array;
  /** A view of the same memory as `bytes`, with the same offsets. */
  view: DataView;
  /** Offset of the body's first byte. */
  body: number;
  /** Offset of the first byte behind the body. */
  end: number;
}

/** The fields of a request that its reply repeats. */
export type FrameHead = Pick<Frame, "op" | "flags" | "requestId">;

export type FrameDirection = "requests" | "replies";

export function emptyFrame(): Frame {
  const bytes = new Uint8Array(HEADER_BYTES);
  const view = new DataView(bytes.buffer);
  const numbers = { length: 0, op: 0, flags: 0, status: 0, requestId: 0, count: 0 };
  return { ...numbers, bytes, view, body: HEADER_BYTES, end: HEADER_BYTES };
}

/** Reads the 16-byte header at offset `at` into the frame. Does not access the body. */
function readHeader(bytes: Uint8Array, view: DataView, at: number, into: Frame): void {
  into.length = view.getUint32(at, true);
  into.op = view.getUint8(at + 4);
  into.flags = view.getUint8(at + 5);
  into.status = view.getUint16(at + 6, true);
  into.requestId = view.getUint32(at + 8, true);
  into.count = view.getUint32(at + 12, true);
  into.bytes = bytes;
  into.view = view;
  into.body = at + HEADER_BYTES;
  into.end = at + into.length;
}

/** Checks a header before any byte of its body is buffered. */
function checkHeader(
  frame: Frame,
  direction: FrameDirection,
  frameBytesMax: number,
): Refusal | null {
  if (frame.length < HEADER_BYTES || frame.length % ALIGNMENT !== 0)
    return malformed(`invalid frame length ${frame.length}: send a multiple of 8, at least 16`);
  if (frame.length > frameBytesMax)
    return refusal(
      FrameStatus.frameTooLarge,
      `frame of ${frame.length} bytes: split it, the limit is ${frameBytesMax}`,
    );
  if ((frame.flags & ~(FrameFlag.reply | FrameFlag.noReply)) !== 0)
    return malformed(`frame flags ${frame.flags}: only bits 0 and 1 are defined`);
  return direction === "requests" ? checkRequestHeader(frame) : checkReplyHeader(frame);
}

function checkRequestHeader(frame: Frame): Refusal | null {
  if ((frame.flags & FrameFlag.reply) !== 0)
    return malformed("received a reply, expected a request: clear flag bit 0");
  if (frame.status !== 0) return malformed("the status of a request must be 0");
  if ((frame.flags & FrameFlag.noReply) !== 0 && !mayGoUnanswered(frame.op))
    return malformed(`${opName(frame.op)} requires a reply: clear flag bit 1 and read it`);
  return null;
}

function checkReplyHeader(frame: Frame): Refusal | null {
  if (frame.flags !== FrameFlag.reply) return malformed("a reply must have exactly flag bit 0 set");
  return null;
}

/** Returns true if the sender of this request expects a reply. */
export function wantsReply(frame: FrameHead): boolean {
  return (frame.flags & FrameFlag.noReply) === 0;
}

/** Why a frame is refused. The reply contains it; if it is fatal, the connection closes. */
export interface Refusal {
  readonly status: Exclude<FrameStatus, typeof FrameStatus.ok>;
  /** One sentence for the client, with the fix. */
  readonly text: string;
  readonly fatal: boolean;
}

/**
 * True for each status after which the connection closes. `limit` closes it only if the client
 * sends too much (a flood).
 */
const FATAL: Readonly<Record<Refusal["status"], boolean>> = {
  [FrameStatus.malformed]: true,
  [FrameStatus.unknownOp]: false,
  [FrameStatus.version]: true,
  [FrameStatus.frameTooLarge]: true,
  [FrameStatus.notGreeted]: true,
  [FrameStatus.limit]: false,
  [FrameStatus.internal]: true,
  [FrameStatus.manifestRefused]: true,
  [FrameStatus.overstayed]: true,
  [FrameStatus.draining]: false,
};

export function refusal(status: Refusal["status"], text: string, fatal = FATAL[status]): Refusal {
  return { status, text, fatal };
}

export function malformed(text: string): Refusal {
  return refusal(FrameStatus.malformed, text);
}

/** A value decoded from a frame, or why the frame is refused. */
export type Decoded<Value> =
  | { readonly ok: true; readonly value: Value }
  | { readonly ok: false; readonly refusal: Refusal };

export function decoded<Value>(value: Value): Decoded<Value> {
  return { ok: true, value };
}

export function refused<Value>(reason: Refusal): Decoded<Value> {
  return { ok: false, refusal: reason };
}

/** Checks the body's length against the item count, before any item is read or allocated. */
export function checkItems(
  frame: Frame,
  headBytes: number,
  itemBytes: number,
  countMax: number,
): Refusal | null {
  const wanted = headBytes + frame.count * itemBytes;
  const length = frame.end - frame.body;
  // With the planted bug enabled, a count with this bit set passes the check. The code is a single
  // expression, so that the executable, which is built with the constant false, contains none of
  // it.
  const believed =
    typeof HEARTH_CANARY !== "undefined" && HEARTH_CANARY && (frame.count & 0x40) !== 0;
  if (length !== wanted && !believed) {
    const what = `${opName(frame.op)} of ${frame.count} items`;
    return malformed(`${what}: the body has ${length} bytes, expected ${wanted}`);
  }
  return checkCount(frame, countMax);
}

function checkCount(frame: Frame, countMax: number): Refusal | null {
  if (frame.count > countMax)
    return refusal(
      FrameStatus.limit,
      `${frame.count} items in one frame: split it, the limit is ${countMax}`,
    );
  return null;
}

/**
 * Checks a body without items: the header's count must be `count` and the body's length `bytes`.
 */
export function checkFixed(frame: Frame, count: number, bytes: number): Refusal | null {
  if (frame.count !== count)
    return malformed(`${opName(frame.op)}: the count is ${frame.count}, expected ${count}`);
  if (frame.end - frame.body !== bytes)
    return malformed(
      `${opName(frame.op)}: the body has ${frame.end - frame.body} bytes, expected ${bytes}`,
    );
  return null;
}

export function reservedField(frame: Frame): Refusal {
  return malformed(`${opName(frame.op)}: reserved fields and padding must be zero`);
}

export function undefinedBits(frame: Frame, field: string): Refusal {
  return malformed(`${opName(frame.op)}: undefined bits are set in ${field}`);
}

/** Returns true if all of `bytes[from, to)` are zero. */
export function isZero(bytes: Uint8Array, from: number, to: number): boolean {
  for (let i = from; i < to; i++) if (bytes[i] !== 0) return false;
  return true;
}

/** Reads a u64 as a number. Null if a double cannot represent it. */
export function readSafeU64(view: DataView, at: number): number | null {
  const high = view.getUint32(at + 4, true);
  return high > SAFE_HIGH_MAX ? null : high * U32_RANGE + view.getUint32(at, true);
}

export function writeSafeU64(view: DataView, at: number, value: number): void {
  assert(Number.isSafeInteger(value) && value >= 0, "a u64 given as number is a safe integer");
  view.setUint32(at, value % U32_RANGE, true);
  view.setUint32(at + 4, Math.floor(value / U32_RANGE), true);
}

/** Copies the first `length` bytes of `from` to offset `at` of `into`. */
export function copyIn(from: Uint8Array, length: number, into: Uint8Array, at: number): void {
  into.set(from.length === length ? from : from.subarray(0, length), at);
}

const strictUtf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Decodes the text in `bytes[from, to)`. Null if it is not valid UTF-8. */
export function readUtf8(bytes: Uint8Array, from: number, to: number): string | null {
  try {
    return strictUtf8.decode(bytes.subarray(from, to));
  } catch (thrown) {
    if (thrown instanceof TypeError) return null;
    throw thrown;
  }
}

const CONTROL_CHARACTERS = /\p{Cc}/u;

/**
 * Reads a zero-padded text of at most `length` bytes. Null if it is not UTF-8 or has control
 * characters.
 */
export function readPaddedText(bytes: Uint8Array, at: number, length: number): string | null {
  let end = at;
  while (end < at + length && bytes[end] !== 0) end++;
  if (!isZero(bytes, end, at + length)) return null;
  const text = readUtf8(bytes, at, end);
  return text === null || CONTROL_CHARACTERS.test(text) ? null : text;
}

/**
 * Output buffer. New frames are appended at `end`; bytes that the socket accepted are removed from
 * `start`. The buffer itself is unbounded: the caller checks `pendingBytes` before it writes more
 * replies.
 */
export interface Output {
  bytes: Uint8Array<ArrayBuffer>;
  view: DataView;
  start: number;
  end: number;
}

const OUTPUT_BYTES_MIN = 4 * 1024;
/** An output buffer larger than this many bytes is freed as soon as it is empty. */
const OUTPUT_BYTES_KEPT = 256 * 1024;

export function createOutput(): Output {
  const bytes = new Uint8Array(OUTPUT_BYTES_MIN);
  return { bytes, view: new DataView(bytes.buffer), start: 0, end: 0 };
}

export function pendingBytes(output: Output): number {
  return output.end - output.start;
}

/** Returns the bytes to write next: a view that is valid until the next frame is appended. */
export function pendingOutput(output: Output): Uint8Array {
  return output.bytes.subarray(output.start, output.end);
}

/** Removes the first `bytes` bytes, which the socket has accepted. */
export function consumeOutput(output: Output, bytes: number): void {
  assert(bytes >= 0 && bytes <= pendingBytes(output), "at most the pending bytes are consumed");
  output.start += bytes;
  if (output.start < output.end) return;
  output.start = 0;
  output.end = 0;
  if (output.bytes.length > OUTPUT_BYTES_KEPT) replaceBuffer(output, OUTPUT_BYTES_MIN);
}

function replaceBuffer(output: Output, bytes: number): void {
  output.bytes = new Uint8Array(bytes);
  output.view = new DataView(output.bytes.buffer);
}

function makeOutputRoom(output: Output, bytes: number): void {
  const old = output.bytes;
  const needed = pendingBytes(output) + bytes;
  if (2 * needed > old.length) replaceBuffer(output, 2 * needed);
  output.bytes.set(old.subarray(output.start, output.end), 0);
  output.end -= output.start;
  output.start = 0;
}

/**
 * Appends a header and space for the body, and returns the body's offset. The space contains old
 * bytes, so the caller must write every byte of it, padding and reserved fields included.
 */
export function beginFrame(
  output: Output,
  op: number,
  flags: number,
  status: number,
  requestId: number,
  count: number,
  bodyBytes: number,
): number {
  const length = HEADER_BYTES + bodyBytes;
  assert(length % 8 === 0, "a frame is a multiple of eight bytes");
  if (output.end + length > output.bytes.length) makeOutputRoom(output, length);
  const { view, end } = output;
  view.setUint32(end, length, true);
  view.setUint8(end + 4, op);
  view.setUint8(end + 5, flags);
  view.setUint16(end + 6, status, true);
  view.setUint32(end + 8, requestId, true);
  view.setUint32(end + 12, count, true);
  output.end = end + length;
  return end + HEADER_BYTES;
}

export function beginRequest(
  output: Output,
  op: number,
  requestId: number,
  count: number,
  bodyBytes: number,
  noReply = false,
): number {
  const flags = noReply ? FrameFlag.noReply : 0;
  return beginFrame(output, op, flags, 0, requestId, count, bodyBytes);
}

export function beginReply(
  output: Output,
  op: number,
  requestId: number,
  count: number,
  bodyBytes: number,
): number {
  return beginFrame(output, op, FrameFlag.reply, 0, requestId, count, bodyBytes);
}

/** Handles one frame. Returning false makes the reader keep the following frames until `resume`. */
export type FrameSink = (frame: Frame) => boolean;

/**
 * Splits a byte stream into frames. Chunks may start and end anywhere. A frame that lies within one
 * chunk is passed to the sink without a copy; a frame that crosses the end of a chunk, or is held
 * back, is copied once (amortised). The reader keeps no reference to a chunk after `push` has
 * returned.
 */
export interface FrameReader {
  /**
   * Passes every complete frame to `sink`, in order. Returns null, or the fault that ends this
   * stream. After a fault, every later call returns the same fault and reads nothing.
   */
  push(chunk: Uint8Array, sink: FrameSink): Refusal | null;
  /** Makes the reader keep the following frames until `resume`, like a sink that returns false. */
  hold(): void;
  /** Passes the frames that were held back to `sink` and continues normally. */
  resume(sink: FrameSink): Refusal | null;
  /** Bytes in the reader's buffer: the start of an incomplete frame, and frames held back. */
  readonly heldBytes: number;
  /** True after a sink returned false or `hold` was called, until `resume`. */
  readonly holding: boolean;
}

export interface FrameReaderOptions {
  readonly direction: FrameDirection;
  readonly frameBytesMax: number;
  /**
   * Maximum bytes buffered while frames are held back. More than this ends the stream with a fault.
   */
  readonly heldBytesMax?: number;
}

const HELD_BYTES_MIN = 4 * 1024;
/** A reader's buffer larger than this many bytes is freed as soon as it is empty. */
const HELD_BYTES_KEPT = 256 * 1024;

/** Buffered bytes that no sink has received yet: `bytes[start, end)`. */
interface Held {
  bytes: Uint8Array;
  view: DataView;
  start: number;
  end: number;
  /**
   * Number of bytes from `start` on that the next step needs: first a header, then its whole frame.
   */
  want: number;
}

export function createFrameReader(options: FrameReaderOptions): FrameReader {
  const { direction, frameBytesMax } = options;
  const heldBytesMax = options.heldBytesMax ?? 2 * frameBytesMax;
  const frame = emptyFrame();
  const held = emptyHeld();
  let fault: Refusal | null = null;
  let holding = false;
  let inSink = false;

  /**
   * Passes every complete frame in `bytes[from, to)` to the sink. Returns the offset of the first
   * byte not consumed.
   */
  function scan(bytes: Uint8Array, view: DataView, from: number, to: number, sink: FrameSink) {
    while (to - from >= HEADER_BYTES && !holding) {
      readHeader(bytes, view, from, frame);
      fault = checkHeader(frame, direction, frameBytesMax);
      if (fault !== null || to < frame.end) break;
      from = frame.end;
      handOn(sink);
    }
    return from;
  }

  function handOn(sink: FrameSink): void {
    inSink = true;
    // If the sink throws, its frame is only partly processed, so the stream cannot continue.
    fault = refusal(FrameStatus.internal, "the receiver failed on this frame", true);
    try {
      holding = !sink(frame);
      fault = null;
    } finally {
      inSink = false;
    }
  }

  function scanHeld(sink: FrameSink): void {
    held.start = scan(held.bytes, held.view, held.start, held.end, sink);
    const kept = held.end - held.start;
    held.want = kept >= HEADER_BYTES && !holding ? frame.length : HEADER_BYTES;
    if (kept === 0) empty(held);
  }

  /**
   * Completes the frame that earlier chunks began. Returns the number of bytes consumed from this
   * chunk.
   */
  function finishHeld(chunk: Uint8Array, sink: FrameSink): number {
    let from = 0;
    while (held.end > held.start && fault === null && !holding) {
      const missing = held.want - (held.end - held.start);
      const taken = Math.min(missing, chunk.length - from);
      append(held, chunk, from, from + taken);
      from += taken;
      if (taken < missing) break;
      scanHeld(sink);
    }
    return from;
  }

  function push(chunk: Uint8Array, sink: FrameSink): Refusal | null {
    assert(!inSink, "a frame sink does not feed its own reader");
    if (fault !== null) return fault;
    let from = holding ? 0 : finishHeld(chunk, sink);
    if (fault === null && !holding && from < chunk.length) {
      const view = new DataView(chunk.buffer, chunk.byteOffset, chunk.byteLength);
      from = scan(chunk, view, from, chunk.length, sink);
      held.want = chunk.length - from >= HEADER_BYTES && !holding ? frame.length : HEADER_BYTES;
    }
    if (fault === null && from < chunk.length) keep(chunk, from);
    return ended();
  }

  function keep(chunk: Uint8Array, from: number): void {
    const bytes = held.end - held.start + chunk.length - from;
    if (holding && bytes > heldBytesMax) {
      const text = `${bytes} bytes of requests are waiting: read replies before sending more`;
      fault = refusal(FrameStatus.limit, text, true);
      return;
    }
    append(held, chunk, from, chunk.length);
  }

  function resume(sink: FrameSink): Refusal | null {
    assert(!inSink, "a frame sink does not resume its own reader");
    if (fault !== null || !holding) return fault;
    holding = false;
    scanHeld(sink);
    return ended();
  }

  function ended(): Refusal | null {
    if (fault !== null) empty(held);
    return fault;
  }

  return {
    push,
    hold() {
      assert(!inSink, "a frame sink holds frames back by its answer");
      holding = true;
    },
    resume,
    get heldBytes() {
      return held.end - held.start;
    },
    get holding() {
      return holding;
    },
  };
}

function emptyHeld(): Held {
  const bytes = new Uint8Array(0);
  return { bytes, view: new DataView(bytes.buffer), start: 0, end: 0, want: HEADER_BYTES };
}

function empty(held: Held): void {
  held.start = 0;
  held.end = 0;
  held.want = HEADER_BYTES;
  if (held.bytes.length > HELD_BYTES_KEPT) replaceHeld(held, new Uint8Array(0));
}

function replaceHeld(held: Held, bytes: Uint8Array<ArrayBuffer>): void {
  held.bytes = bytes;
  held.view = new DataView(bytes.buffer);
}

/**
 * Appends `chunk[from, to)` to the buffer. The buffer grows only with bytes received, so a client
 * that announces a long frame does not make the agent allocate it.
 */
function append(held: Held, chunk: Uint8Array, from: number, to: number): void {
  if (held.end + to - from > held.bytes.length) makeHeldRoom(held, to - from);
  held.bytes.set(from === 0 && to === chunk.length ? chunk : chunk.subarray(from, to), held.end);
  held.end += to - from;
}

/**
 * Makes room for `bytes` more bytes. Moves the content only if half the buffer is free; otherwise
 * the same bytes would be moved repeatedly.
 */
function makeHeldRoom(held: Held, bytes: number): void {
  const old = held.bytes;
  const needed = held.end - held.start + bytes;
  if (2 * needed > old.length)
    replaceHeld(held, new Uint8Array(Math.max(HELD_BYTES_MIN, 2 * needed)));
  held.bytes.set(old.subarray(held.start, held.end), 0);
  held.end -= held.start;
  held.start = 0;
}
