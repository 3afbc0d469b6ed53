import { DIGEST_BYTES } from "../../core/index.ts";
import {
  beginReply,
  beginRequest,
  checkItems,
  copyIn,
  type Frame,
  isZero,
  malformed,
  type Output,
  type Refusal,
  readSafeU64,
  reservedField,
  undefinedBits,
  writeSafeU64,
} from "./frame.ts";
import {
  AcquireFlag,
  BlockFlag,
  CommitFlag,
  MAC_BYTES,
  Op,
  Outcome,
  TIER_MASK_ALL,
} from "./layout.ts";

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

/** RESERVE and ACQUIRE, which grant slots, and the notices about the GPU tier. */

const BLOCK_ITEM_BYTES = 80;
const RESERVED_ITEM_BYTES = 24;
const ACQUIRED_ITEM_BYTES = 32;
const BLOCK_FLAGS = BlockFlag.transient | BlockFlag.aliasGiven;

export interface ReserveOptions {
  /** The session of the blocks; 0 = none. */
  session: bigint;
  /** Handle of the namespace; 0 or absent = the connection's own. */
  namespace?: number;
}

export interface AcquireOptions {
  /** Tiers to fetch from, as a mask of `TierBit`; 0 = all. */
  tiers: number;
  /** Deadline of a promotion; 0 = the agent's default. */
  deadlineMs: number;
  stopAtMiss: boolean;
  /** Handle of the namespace, below 65,536; 0 or absent = the connection's own. */
  namespace?: number;
}

export function encodeReserveRequest(
  output: Output,
  requestId: number,
  session: bigint,
  blocks: Readonly<BlockItems>,
  namespace = 0,
): void {
  const bodyBytes = 16 + blocks.count * BLOCK_ITEM_BYTES;
  const at = beginRequest(output, Op.reserve, requestId, blocks.count, bodyBytes);
  output.view.setUint32(at, blocks.layer, true);
  output.view.setUint32(at + 4, namespace, true);
  output.view.setBigUint64(at + 8, session, true);
  writeBlocks(output, at + 16, blocks);
}

export function decodeReserveRequest(
  frame: Frame,
  options: ReserveOptions,
  into: BlockItems,
): Refusal | null {
  const bad = checkItems(frame, 16, BLOCK_ITEM_BYTES, into.bytes.length);
  if (bad !== null) return bad;
  options.namespace = frame.view.getUint32(frame.body + 4, true);
  options.session = frame.view.getBigUint64(frame.body + 8, true);
  return readBlocks(frame, frame.body + 16, into);
}

export function encodeGpuStoredRequest(
  output: Output,
  requestId: number,
  blocks: Readonly<BlockItems>,
  noReply = false,
): void {
  const bodyBytes = 8 + blocks.count * BLOCK_ITEM_BYTES;
  const at = beginRequest(output, Op.gpuStored, requestId, blocks.count, bodyBytes, noReply);
  output.view.setUint32(at, blocks.layer, true);
  output.view.setUint32(at + 4, 0, true);
  writeBlocks(output, at + 8, blocks);
}

export function decodeGpuStoredRequest(frame: Frame, into: BlockItems): Refusal | null {
  const bad = checkItems(frame, 8, BLOCK_ITEM_BYTES, into.bytes.length);
  if (bad !== null) return bad;
  if (frame.view.getUint32(frame.body + 4, true) !== 0) return reservedField(frame);
  return readBlocks(frame, frame.body + 8, into);
}

export function encodeGpuEvictedRequest(
  output: Output,
  requestId: number,
  blocks: Readonly<DigestItems>,
  noReply = false,
): void {
  const { count, layer } = blocks;
  const bodyBytes = 8 + count * DIGEST_BYTES;
  const at = beginRequest(output, Op.gpuEvicted, requestId, count, bodyBytes, noReply);
  output.view.setUint32(at, layer, true);
  output.view.setUint32(at + 4, 0, true);
  writeDigests(output, at + 8, blocks);
}

export function decodeGpuEvictedRequest(frame: Frame, into: DigestItems): Refusal | null {
  const bad = checkItems(frame, 8, DIGEST_BYTES, into.digests.length / DIGEST_BYTES);
  if (bad !== null) return bad;
  if (frame.view.getUint32(frame.body + 4, true) !== 0) return reservedField(frame);
  readDigests(frame, frame.view.getUint32(frame.body, true), frame.body + 8, into);
  return null;
}

function writeBlocks(output: Output, at: number, blocks: Readonly<BlockItems>): void {
  const { bytes, view } = output;
  for (let i = 0; i < blocks.count; i++, at += BLOCK_ITEM_BYTES) {
    for (let k = 0; k < DIGEST_BYTES; k++) {
      bytes[at + k] = blocks.digests[DIGEST_BYTES * i + k]!;
      bytes[at + DIGEST_BYTES + k] = blocks.parents[DIGEST_BYTES * i + k]!;
    }
    view.setUint32(at + 64, blocks.aliasLo[i]!, true);
    view.setUint32(at + 68, blocks.aliasHi[i]!, true);
    view.setUint32(at + 72, blocks.bytes[i]!, true);
    view.setUint32(at + 76, blocks.flags[i]!, true);
  }
}

function readBlocks(frame: Frame, at: number, into: BlockItems): Refusal | null {
  const { bytes, view } = frame;
  for (let i = 0; i < frame.count; i++, at += BLOCK_ITEM_BYTES) {
    for (let k = 0; k < DIGEST_BYTES; k++) {
      into.digests[DIGEST_BYTES * i + k] = bytes[at + k]!;
      into.parents[DIGEST_BYTES * i + k] = bytes[at + DIGEST_BYTES + k]!;
    }
    const aliasLo = view.getUint32(at + 64, true);
    const aliasHi = view.getUint32(at + 68, true);
    const flags = view.getUint32(at + 76, true);
    if ((flags & ~BLOCK_FLAGS) !== 0) return undefinedBits(frame, "an item's flags");
    if ((flags & BlockFlag.aliasGiven) === 0 && (aliasLo | aliasHi) !== 0)
      return malformed("an alias without its flag: set item flag bit 1, or send alias 0");
    into.aliasLo[i] = aliasLo;
    into.aliasHi[i] = aliasHi;
    into.bytes[i] = view.getUint32(at + 72, true);
    into.flags[i] = flags;
  }
  into.layer = view.getUint32(frame.body, true);
  into.count = frame.count;
  return null;
}

/** `bytes` is sent as the slot's capacity. For an item without a slot only the outcome is sent. */
export function encodeReserveReply(
  output: Output,
  requestId: number,
  slots: Readonly<SlotItems>,
): void {
  const { count } = slots;
  let at = beginReply(output, Op.reserve, requestId, count, count * RESERVED_ITEM_BYTES);
  for (let i = 0; i < count; i++, at += RESERVED_ITEM_BYTES) writeSlot(output, at, slots, i);
}

export function decodeReserveReply(frame: Frame, into: SlotItems): Refusal | null {
  const bad = checkItems(frame, 0, RESERVED_ITEM_BYTES, into.outcome.length);
  if (bad !== null) return bad;
  for (let i = 0, at = frame.body; i < frame.count; i++, at += RESERVED_ITEM_BYTES)
    if (!readSlot(frame, at, into, i)) return slotOutOfRange(frame);
  into.count = frame.count;
  return null;
}

export function encodeAcquireRequest(
  output: Output,
  requestId: number,
  options: Readonly<AcquireOptions>,
  blocks: Readonly<DigestItems>,
): void {
  const { count, layer } = blocks;
  const at = beginRequest(output, Op.acquire, requestId, count, 16 + count * DIGEST_BYTES);
  output.view.setUint32(at, layer, true);
  output.view.setUint32(at + 4, options.tiers, true);
  output.view.setUint32(at + 8, options.deadlineMs, true);
  output.view.setUint16(at + 12, options.stopAtMiss ? AcquireFlag.stopAtMiss : 0, true);
  output.view.setUint16(at + 14, options.namespace ?? 0, true);
  writeDigests(output, at + 16, blocks);
}

export function decodeAcquireRequest(
  frame: Frame,
  options: AcquireOptions,
  into: DigestItems,
): Refusal | null {
  const bad = checkItems(frame, 16, DIGEST_BYTES, into.digests.length / DIGEST_BYTES);
  if (bad !== null) return bad;
  const { view, body } = frame;
  const tiers = view.getUint32(body + 4, true);
  const flags = view.getUint16(body + 12, true);
  if (tiers > TIER_MASK_ALL) return undefinedBits(frame, "tiers");
  if ((flags & ~AcquireFlag.stopAtMiss) !== 0) return undefinedBits(frame, "flags");
  options.tiers = tiers;
  options.deadlineMs = view.getUint32(body + 8, true);
  options.stopAtMiss = (flags & AcquireFlag.stopAtMiss) !== 0;
  options.namespace = view.getUint16(body + 14, true);
  readDigests(frame, view.getUint32(body, true), body + 16, into);
  return null;
}

/** For an item that was not acquired only the outcome is sent. */
export function encodeAcquireReply(
  output: Output,
  requestId: number,
  slots: Readonly<AcquiredItems>,
  macs: Uint8Array | null = null,
): void {
  const { count } = slots;
  const itemBytes = ACQUIRED_ITEM_BYTES + (macs === null ? 0 : MAC_BYTES);
  let at = beginReply(output, Op.acquire, requestId, count, count * itemBytes);
  const checksums = halves(slots.checksum, count);
  for (let i = 0; i < count; i++, at += itemBytes) {
    writeSlot(output, at, slots, i);
    const ok = slots.outcome[i] === Outcome.ok;
    output.view.setUint32(at + 24, ok ? checksums[2 * i]! : 0, true);
    output.view.setUint32(at + 28, ok ? checksums[2 * i + 1]! : 0, true);
    if (macs !== null) writeMac(output, at + ACQUIRED_ITEM_BYTES, macs, i, ok);
  }
}

/** `macs`: as for `decodeCommitRequest`. */
export function decodeAcquireReply(
  frame: Frame,
  into: AcquiredItems,
  macs: Uint8Array | null = null,
): Refusal | null {
  const itemBytes = ACQUIRED_ITEM_BYTES + (macs === null ? 0 : MAC_BYTES);
  const bad = checkItems(frame, 0, itemBytes, into.outcome.length);
  if (bad !== null) return bad;
  const { view } = frame;
  const checksums = halves(into.checksum, frame.count);
  for (let i = 0, at = frame.body; i < frame.count; i++, at += itemBytes) {
    if (!readSlot(frame, at, into, i)) return slotOutOfRange(frame);
    if (macs !== null) {
      readMac(frame, at + ACQUIRED_ITEM_BYTES, macs, i);
      if (into.outcome[i] !== Outcome.ok && !isMacZero(macs, i)) return slotOutOfRange(frame);
    }
    const low = view.getUint32(at + 24, true);
    const high = view.getUint32(at + 28, true);
    if (into.outcome[i] !== Outcome.ok && (low | high) !== 0) return slotOutOfRange(frame);
    checksums[2 * i] = low;
    checksums[2 * i + 1] = high;
  }
  into.count = frame.count;
  return null;
}

function writeSlot(output: Output, at: number, slots: Readonly<SlotItems>, i: number): void {
  const { view } = output;
  const outcome = slots.outcome[i]!;
  const ok = outcome === Outcome.ok;
  view.setUint32(at, outcome, true);
  view.setUint32(at + 4, ok ? slots.slot[i]! : 0, true);
  view.setUint32(at + 8, ok ? slots.generation[i]! : 0, true);
  view.setUint32(at + 12, ok ? slots.bytes[i]! : 0, true);
  writeSafeU64(view, at + 16, ok ? slots.offset[i]! : 0);
}

/** False if the outcome or the offset is out of range, or an item without a slot names one. */
function readSlot(frame: Frame, at: number, into: SlotItems, i: number): boolean {
  const { view } = frame;
  const outcome = view.getUint32(at, true);
  const offset = readSafeU64(view, at + 16);
  if (outcome > Outcome.rejected || offset === null) return false;
  if (outcome !== Outcome.ok && !isZero(frame.bytes, at + 4, at + RESERVED_ITEM_BYTES))
    return false;
  into.outcome[i] = outcome;
  into.slot[i] = view.getUint32(at + 4, true);
  into.generation[i] = view.getUint32(at + 8, true);
  into.bytes[i] = view.getUint32(at + 12, true);
  into.offset[i] = offset;
  return true;
}

function slotOutOfRange(frame: Frame): Refusal {
  return malformed(`reply ${frame.requestId}: an outcome, a slot or an offset is out of range`);
}

/** Requests that name granted slots: commit, abort, release, report. */

const COMMIT_ITEM_BYTES = 24;
const HANDLE_ITEM_BYTES = 8;
const OUTCOME_ITEM_BYTES = 8;

export function encodeCommitRequest(
  output: Output,
  requestId: number,
  handles: Readonly<CommitItems>,
  noReply = false,
  macs: Uint8Array | null = null,
): void {
  const { count } = handles;
  const itemBytes = COMMIT_ITEM_BYTES + (macs === null ? 0 : MAC_BYTES);
  let at = beginRequest(output, Op.commit, requestId, count, count * itemBytes, noReply);
  const { view } = output;
  const checksums = halves(handles.checksum, count);
  for (let i = 0; i < count; i++, at += itemBytes) {
    const given = (handles.flags[i]! & CommitFlag.checksumGiven) !== 0;
    view.setUint32(at, handles.slot[i]!, true);
    view.setUint32(at + 4, handles.generation[i]!, true);
    view.setUint32(at + 8, given ? checksums[2 * i]! : 0, true);
    view.setUint32(at + 12, given ? checksums[2 * i + 1]! : 0, true);
    view.setUint32(at + 16, handles.flags[i]!, true);
    view.setUint32(at + 20, 0, true);
    if (macs !== null) writeMac(output, at + COMMIT_ITEM_BYTES, macs, i, hasMac(handles.flags[i]!));
  }
}

/** `macs`: receives the MACs, 16 bytes per item, on a connection with `Feature.mac`. */
export function decodeCommitRequest(
  frame: Frame,
  into: CommitItems,
  macs: Uint8Array | null = null,
): Refusal | null {
  const itemBytes = COMMIT_ITEM_BYTES + (macs === null ? 0 : MAC_BYTES);
  const known = CommitFlag.checksumGiven | (macs === null ? 0 : CommitFlag.macGiven);
  const bad = checkItems(frame, 0, itemBytes, into.slot.length);
  if (bad !== null) return bad;
  const { view } = frame;
  const checksums = halves(into.checksum, frame.count);
  for (let i = 0, at = frame.body; i < frame.count; i++, at += itemBytes) {
    const low = view.getUint32(at + 8, true);
    const high = view.getUint32(at + 12, true);
    const flags = view.getUint32(at + 16, true);
    if (view.getUint32(at + 20, true) !== 0) return reservedField(frame);
    if ((flags & ~known) !== 0) return undefinedBits(frame, "an item's flags");
    if (macs !== null) {
      readMac(frame, at + COMMIT_ITEM_BYTES, macs, i);
      if (hasMac(flags) === isMacZero(macs, i))
        return malformed("a MAC must be nonzero with item flag bit 1, and zero without it");
    }
    if ((flags & CommitFlag.checksumGiven) === 0 && (low | high) !== 0)
      return malformed("a checksum without its flag: set item flag bit 0, or send checksum 0");
    into.slot[i] = view.getUint32(at, true);
    into.generation[i] = view.getUint32(at + 4, true);
    checksums[2 * i] = low;
    checksums[2 * i + 1] = high;
    into.flags[i] = flags;
  }
  into.count = frame.count;
  return null;
}

const hasMac = (flags: number) => (flags & CommitFlag.macGiven) !== 0;

type HandleOp = typeof Op.abort | typeof Op.release | typeof Op.report;

/** ABORT, RELEASE and REPORT have the same layout. */
export function encodeHandlesRequest(
  output: Output,
  op: HandleOp,
  requestId: number,
  handles: Readonly<HandleItems>,
  noReply = false,
): void {
  const { count } = handles;
  let at = beginRequest(output, op, requestId, count, count * HANDLE_ITEM_BYTES, noReply);
  for (let i = 0; i < count; i++, at += HANDLE_ITEM_BYTES) {
    output.view.setUint32(at, handles.slot[i]!, true);
    output.view.setUint32(at + 4, handles.generation[i]!, true);
  }
}

export function decodeHandlesRequest(frame: Frame, into: HandleItems): Refusal | null {
  const bad = checkItems(frame, 0, HANDLE_ITEM_BYTES, into.slot.length);
  if (bad !== null) return bad;
  for (let i = 0, at = frame.body; i < frame.count; i++, at += HANDLE_ITEM_BYTES) {
    into.slot[i] = frame.view.getUint32(at, true);
    into.generation[i] = frame.view.getUint32(at + 4, true);
  }
  into.count = frame.count;
  return null;
}

/** Operations whose reply is one outcome per item. */
export type OutcomeOp = Exclude<
  (typeof Op)[keyof typeof Op],
  | typeof Op.hello
  | typeof Op.ping
  | typeof Op.identify
  | typeof Op.match
  | typeof Op.reserve
  | typeof Op.acquire
  | typeof Op.sessionStatus
  | typeof Op.sessionList
  | typeof Op.gpuDevices
  | typeof Op.gpuRegister
  | typeof Op.gpuWarm
  | typeof Op.join
  | typeof Op.lookup
  | typeof Op.command
  | typeof Op.namespace
>;

export function encodeOutcomesReply(
  output: Output,
  op: OutcomeOp,
  requestId: number,
  outcomes: Readonly<OutcomeItems>,
): void {
  const { count } = outcomes;
  let at = beginReply(output, op, requestId, count, count * OUTCOME_ITEM_BYTES);
  for (let i = 0; i < count; i++, at += OUTCOME_ITEM_BYTES) {
    output.view.setUint32(at, outcomes.outcome[i]!, true);
    output.view.setUint32(at + 4, 0, true);
  }
}

export function decodeOutcomesReply(frame: Frame, into: OutcomeItems): Refusal | null {
  const bad = checkItems(frame, 0, OUTCOME_ITEM_BYTES, into.outcome.length);
  if (bad !== null) return bad;
  for (let i = 0, at = frame.body; i < frame.count; i++, at += OUTCOME_ITEM_BYTES) {
    const outcome = frame.view.getUint32(at, true);
    if (outcome > Outcome.device) return malformed(`reply: outcome ${outcome} is not defined`);
    if (frame.view.getUint32(at + 4, true) !== 0) return reservedField(frame);
    into.outcome[i] = outcome;
  }
  into.count = frame.count;
  return null;
}
