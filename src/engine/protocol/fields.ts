import { assert, DIGEST_BYTES } from "../../core/index.ts";
import { type Frame, malformed, type Refusal, refusal } from "./frame.ts";
import { FrameStatus, MAC_BYTES, opName } from "./layout.ts";

// Set only by the fuzzer's own test: enables the planted bug below, which the fuzzer must find.
declare const HEARTH_CANARY: boolean;

const U32_RANGE = 2 ** 32;
/** Upper word of the largest integer that a double represents exactly. */
const SAFE_HIGH_MAX = 2 ** 21 - 1;

/** Checks length and count together, before anything is read or allocated. */
export function checkItems(
  frame: Frame,
  headBytes: number,
  itemBytes: number,
  countMax: number,
): Refusal | null {
  const wanted = headBytes + frame.count * itemBytes;
  const length = frame.end - frame.body;
  // With the planted bug, a count with this bit is believed. It is a single expression, so that the
  // executable, which is built with the constant false, contains none of it.
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

/** Checks a body without items: the count must be `count` and the length `bytes`. */
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

/** Whether `bytes[from, to)` are all zero. */
export function isZero(bytes: Uint8Array, from: number, to: number): boolean {
  for (let i = from; i < to; i++) if (bytes[i] !== 0) return false;
  return true;
}

/** Reads a u64 as number. Null if a double cannot represent it. */
export function readSafeU64(view: DataView, at: number): number | null {
  const high = view.getUint32(at + 4, true);
  return high > SAFE_HIGH_MAX ? null : high * U32_RANGE + view.getUint32(at, true);
}

export function writeSafeU64(view: DataView, at: number, value: number): void {
  assert(Number.isSafeInteger(value) && value >= 0, "a u64 given as number is a safe integer");
  view.setUint32(at, value % U32_RANGE, true);
  view.setUint32(at + 4, Math.floor(value / U32_RANGE), true);
}

/** Copies the first `length` bytes of `from` to `at`. */
export function copyIn(from: Uint8Array, length: number, into: Uint8Array, at: number): void {
  into.set(from.length === length ? from : from.subarray(0, length), at);
}

/** Writes the digests of all blocks to `at`. */
export function writeDigests(
  { bytes }: { readonly bytes: Uint8Array },
  at: number,
  { digests, count }: Readonly<DigestItems>,
): void {
  copyIn(digests, count * DIGEST_BYTES, bytes, at);
}

/** Reads the frame's digests, which begin at `at`. */
export function readDigests(frame: Frame, layer: number, at: number, into: DigestItems): void {
  into.layer = layer;
  into.count = frame.count;
  into.digests.set(frame.bytes.subarray(at, at + frame.count * DIGEST_BYTES), 0);
}

/** The 32-bit halves of u64s, low half first, for copying without bigints. */
export function halves(words: BigUint64Array, count: number): Uint32Array {
  return new Uint32Array(words.buffer, words.byteOffset, 2 * count);
}

/** Writes MAC `i` of a column to `at`, or zeros unless `isGiven`. */
export function writeMac(
  { bytes }: { readonly bytes: Uint8Array },
  at: number,
  macs: Uint8Array,
  i: number,
  isGiven: boolean,
): void {
  if (!isGiven) bytes.fill(0, at, at + MAC_BYTES);
  else bytes.set(macs.subarray(i * MAC_BYTES, (i + 1) * MAC_BYTES), at);
}

/** Reads the MAC at `at` into position `i` of a column. */
export function readMac({ bytes }: Frame, at: number, macs: Uint8Array, i: number): void {
  macs.set(bytes.subarray(at, at + MAC_BYTES), i * MAC_BYTES);
}

export function isMacZero(macs: Uint8Array, i: number): boolean {
  return isZero(macs, i * MAC_BYTES, (i + 1) * MAC_BYTES);
}

const strictUtf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Text of `bytes[from, to)`. Null if it is not valid UTF-8. */
export function readUtf8(bytes: Uint8Array, from: number, to: number): string | null {
  try {
    return strictUtf8.decode(bytes.subarray(from, to));
  } catch (thrown) {
    if (thrown instanceof TypeError) return null;
    throw thrown;
  }
}

const CONTROL_CHARACTERS = /\p{Cc}/u;

/** A zero-padded text of at most `length` bytes. Null unless it is UTF-8 without control characters. */
export function readPaddedText(bytes: Uint8Array, at: number, length: number): string | null {
  let end = at;
  while (end < at + length && bytes[end] !== 0) end++;
  if (!isZero(bytes, end, at + length)) return null;
  const text = readUtf8(bytes, at, end);
  return text === null || CONTROL_CHARACTERS.test(text) ? null : text;
}

/**
 * The items of frames, as columns. Decoders fill the first `count` entries of the caller's arrays
 * and never grow them. The batches of `src/store` extend these shapes.
 */

/** Blocks by name: digest `i` is `digests[32 i, 32 i + 32)`; one layer for all of them. */
export interface DigestItems {
  count: number;
  layer: number;
  readonly digests: Uint8Array;
}

/** Blocks to be written or mirrored. A parent of 32 zero bytes means none. */
export interface BlockItems extends DigestItems {
  readonly parents: Uint8Array;
  /** Low and high half of the engine's 64-bit hash. Zero without `BlockFlag.aliasGiven`. */
  readonly aliasLo: Uint32Array;
  readonly aliasHi: Uint32Array;
  readonly bytes: Uint32Array;
  readonly flags: Uint32Array;
}

/** Slots by number and generation. */
export interface HandleItems {
  count: number;
  readonly slot: Uint32Array;
  readonly generation: Uint32Array;
}

/** Slots whose bytes are complete. Checksum and MAC are valid only with their `CommitFlag`. */
export interface CommitItems extends HandleItems {
  readonly checksum: BigUint64Array;
  readonly flags: Uint32Array;
}

export interface OutcomeItems {
  count: number;
  readonly outcome: Uint32Array;
}

/** Granted slots. `bytes` is the capacity of a reserved slot or the length of an acquired block. */
export interface SlotItems extends OutcomeItems, HandleItems {
  readonly bytes: Uint32Array;
  /** Offset in the arena in bytes. */
  readonly offset: Float64Array;
}

export interface AcquiredItems extends SlotItems {
  readonly checksum: BigUint64Array;
}
