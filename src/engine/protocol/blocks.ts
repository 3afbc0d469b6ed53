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
import {
  bits,
  bytes,
  ColumnFields,
  columnsMessage,
  itemsMessage,
  requestOf,
  reserved,
  u32,
  u64,
  within,
} from "./message.ts";

/**
 * Arrays for the items of frames, one array (column) per field. Decoders fill the first `count`
 * entries of the caller's arrays and never grow them. The batches of `src/store` extend these
 * shapes.
 */

/** Blocks by name: digest `i` is `digests[32 i, 32 i + 32)`. All blocks have the same `layer`. */
export interface DigestItems {
  count: number;
  layer: number;
  readonly digests: Uint8Array;
}

/**
 * Blocks that a client writes, or reports as present on its GPU. A parent of 32 zero bytes means
 * none.
 */
export interface BlockItems extends DigestItems {
  readonly parents: Uint8Array;
  /**
   * Low and high half of the engine's own 64-bit hash of each block. Zero without
   * `BlockFlag.aliasGiven`.
   */
  readonly aliasLo: Uint32Array;
  readonly aliasHi: Uint32Array;
  readonly bytes: Uint32Array;
  readonly flags: Uint32Array;
}

/** Slots by number and generation (which increases when a slot is reused). */
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

/**
 * Slots granted to a client. `bytes` is the capacity of a reserved slot or the length of an
 * acquired block.
 */
export interface SlotItems extends OutcomeItems, HandleItems {
  readonly bytes: Uint32Array;
  /** Offset of each slot in the arena, in bytes. */
  readonly offset: Float64Array;
}

export interface AcquiredItems extends SlotItems {
  readonly checksum: BigUint64Array;
}

/** Item layout of messages that name blocks only by digest. */
export const DIGEST_ITEM = { digests: bytes(DIGEST_BYTES) } as const;
export const digestsFit = ({ digests }: DigestItems) => digests.length / DIGEST_BYTES;

/**
 * Codecs of RESERVE and ACQUIRE, which grant slots, and of reports about blocks on the GPU tier.
 */

const BLOCK_ITEM = {
  digests: bytes(DIGEST_BYTES),
  parents: bytes(DIGEST_BYTES),
  aliasLo: u32,
  aliasHi: u32,
  bytes: u32,
  flags: bits(BlockFlag.transient | BlockFlag.aliasGiven),
} as const;
const BLOCKS = {
  capacity: ({ bytes: lengths }: BlockItems) => lengths.length,
  check({ count }: Frame, _start: number, _stride: number, into: BlockItems) {
    const { flags, aliasLo, aliasHi } = into;
    for (let i = 0; i < count; i++) {
      if ((flags[i] & BlockFlag.aliasGiven) === 0 && (aliasLo[i] | aliasHi[i]) !== 0)
        return malformed("an alias without its flag: set item flag bit 1, or send alias 0");
    }
    return null;
  },
} as const;

export interface ReserveOptions {
  /** Id of the session that the blocks belong to; 0 = none. */
  session: bigint;
  /** Handle of the namespace; 0 or absent = the connection's own. */
  namespace?: number;
}

export const { encode: encodeReserveRequest, decode: decodeReserveRequest } = columnsMessage<
  ReserveOptions,
  BlockItems
>(
  requestOf(Op.reserve),
  { head: { layer: u32, namespace: u32, session: u64 }, item: BLOCK_ITEM },
  BLOCKS,
);

export const { encode: encodeGpuStoredRequest, decode: decodeGpuStoredRequest } =
  itemsMessage<BlockItems>(
    requestOf(Op.gpuStored),
    { head: { layer: u32, reserved }, item: BLOCK_ITEM },
    BLOCKS,
  );

export const { encode: encodeGpuEvictedRequest, decode: decodeGpuEvictedRequest } =
  itemsMessage<DigestItems>(
    requestOf(Op.gpuEvicted),
    { head: { layer: u32, reserved }, item: DIGEST_ITEM },
    { capacity: digestsFit },
  );

const RESERVED_ITEM_BYTES = 24;

/**
 * Encodes the reply to RESERVE. `bytes` is sent as the slot's capacity. An item without a slot has
 * only an outcome.
 */
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

export interface AcquireOptions {
  /** Tiers to fetch blocks from, as a mask of `TierBit`; 0 = all. */
  tiers: number;
  /** Deadline in ms for moving the blocks to RAM; 0 = the agent's default. */
  deadlineMs: number;
  stopAtMiss: boolean;
  /** Handle of the namespace, below 65,536; 0 or absent = the connection's own. */
  namespace?: number;
}

// ACQUIRE and RELEASE have handwritten codecs: for one block, a loop over declared fields costs 6 %
// of the round trip.

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
  copyIn(blocks.digests, count * DIGEST_BYTES, output.bytes, at + 16);
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
  into.layer = view.getUint32(body, true);
  into.count = frame.count;
  into.digests.set(frame.bytes.subarray(body + 16, body + 16 + frame.count * DIGEST_BYTES), 0);
  return null;
}

const ACQUIRED_ITEM_BYTES = 32;

/** MACs of items, on a connection with `Feature.mac`. */
export interface MacItems {
  readonly mac: Uint8Array;
}

/** Codec of the reply to ACQUIRE. An item that was not acquired has only an outcome. */
export const acquireReply = {
  encode: (output: Output, requestId: number, slots: Readonly<AcquiredItems>) =>
    encodeAcquired(output, requestId, slots, null),
  decode: (frame: Frame, into: AcquiredItems) => decodeAcquired(frame, into, null),
};
export const acquireReplyWithMacs = {
  encode: (output: Output, requestId: number, slots: Readonly<AcquiredItems & MacItems>) =>
    encodeAcquired(output, requestId, slots, slots.mac),
  decode: (frame: Frame, into: AcquiredItems & MacItems) => decodeAcquired(frame, into, into.mac),
};

function encodeAcquired(
  output: Output,
  requestId: number,
  slots: Readonly<AcquiredItems>,
  macs: Uint8Array | null,
): void {
  const { count } = slots;
  const itemBytes = ACQUIRED_ITEM_BYTES + (macs === null ? 0 : MAC_BYTES);
  let at = beginReply(output, Op.acquire, requestId, count, count * itemBytes);
  const checksums = halves(slots.checksum, count);
  for (let i = 0; i < count; i++, at += itemBytes) {
    writeSlot(output, at, slots, i);
    const ok = slots.outcome[i] === Outcome.ok;
    output.view.setUint32(at + 24, ok ? checksums[2 * i] : 0, true);
    output.view.setUint32(at + 28, ok ? checksums[2 * i + 1] : 0, true);
    if (macs === null) continue;
    if (ok)
      output.bytes.set(macs.subarray(i * MAC_BYTES, (i + 1) * MAC_BYTES), at + ACQUIRED_ITEM_BYTES);
    else output.bytes.fill(0, at + ACQUIRED_ITEM_BYTES, at + itemBytes);
  }
}

function decodeAcquired(
  frame: Frame,
  into: AcquiredItems,
  macs: Uint8Array | null,
): Refusal | null {
  const itemBytes = ACQUIRED_ITEM_BYTES + (macs === null ? 0 : MAC_BYTES);
  const bad = checkItems(frame, 0, itemBytes, into.outcome.length);
  if (bad !== null) return bad;
  const { view } = frame;
  const checksums = halves(into.checksum, frame.count);
  for (let i = 0, at = frame.body; i < frame.count; i++, at += itemBytes) {
    if (!readSlot(frame, at, into, i)) return slotOutOfRange(frame);
    if (macs !== null) {
      macs.set(frame.bytes.subarray(at + ACQUIRED_ITEM_BYTES, at + itemBytes), i * MAC_BYTES);
      const isZeroMac = isZero(frame.bytes, at + ACQUIRED_ITEM_BYTES, at + itemBytes);
      if (into.outcome[i] !== Outcome.ok && !isZeroMac) return slotOutOfRange(frame);
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
  const outcome = slots.outcome[i];
  const ok = outcome === Outcome.ok;
  view.setUint32(at, outcome, true);
  view.setUint32(at + 4, ok ? slots.slot[i] : 0, true);
  view.setUint32(at + 8, ok ? slots.generation[i] : 0, true);
  view.setUint32(at + 12, ok ? slots.bytes[i] : 0, true);
  writeSafeU64(view, at + 16, ok ? slots.offset[i] : 0);
}

/** Returns the 32-bit halves of u64s, low half first, so that copying allocates no bigints. */
function halves({ buffer, byteOffset }: BigUint64Array, count: number): Uint32Array {
  return new Uint32Array(buffer, byteOffset, 2 * count);
}

/**
 * Reads item `i`. Returns false if its outcome or offset is out of range, or if a failed item names
 * a slot.
 */
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

/** Codecs of requests that name granted slots: commit, abort, release, report. */

const MAC = { mac: bytes(MAC_BYTES) } as const;

const CHECKSUM_AT = 8;
const CHECKSUM_END = 16;
const MAC_AT = 24;
const COMMIT_ITEM = {
  slot: u32,
  generation: u32,
  checksum: u64,
  flags: bits(CommitFlag.checksumGiven),
  reserved,
} as const;

/** Layout and checks of COMMIT items without MAC. Items with MACs are longer. */
const COMMITTED = {
  capacity: ({ slot }: HandleItems) => slot.length,
  clear({ bytes: out }: Output, start: number, stride: number, { flags, count }: CommitItems) {
    const hasMacs = stride > MAC_AT;
    for (let i = 0, at = start; i < count; i++, at += stride) {
      const given = flags[i];
      if ((given & CommitFlag.checksumGiven) === 0)
        out.fill(0, at + CHECKSUM_AT, at + CHECKSUM_END);
      if (hasMacs && (given & CommitFlag.macGiven) === 0) out.fill(0, at + MAC_AT, at + stride);
    }
  },
  check({ bytes: from, count }: Frame, start: number, stride: number, { flags }: CommitItems) {
    const hasMacs = stride > MAC_AT;
    for (let i = 0, at = start; i < count; i++, at += stride) {
      const given = flags[i];
      if (
        hasMacs &&
        ((given & CommitFlag.macGiven) !== 0) === isZero(from, at + MAC_AT, at + stride)
      )
        return malformed("a MAC must be nonzero with item flag bit 1, and zero without it");
      if (
        (given & CommitFlag.checksumGiven) === 0 &&
        !isZero(from, at + CHECKSUM_AT, at + CHECKSUM_END)
      )
        return malformed("a checksum without its flag: set item flag bit 0, or send checksum 0");
    }
    return null;
  },
} as const;

export const commitRequest = itemsMessage<CommitItems>(
  requestOf(Op.commit),
  { head: {}, item: COMMIT_ITEM },
  COMMITTED,
);
export const commitRequestWithMacs = itemsMessage<CommitItems & MacItems>(
  requestOf(Op.commit),
  {
    head: {},
    item: { ...COMMIT_ITEM, flags: bits(CommitFlag.checksumGiven | CommitFlag.macGiven), ...MAC },
  },
  COMMITTED,
);

type HandleOp = typeof Op.abort | typeof Op.release | typeof Op.report;

const HANDLE_ITEM_BYTES = 8;

/** Encodes ABORT, RELEASE or REPORT, which have the same layout. */
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
    output.view.setUint32(at, handles.slot[i], true);
    output.view.setUint32(at + 4, handles.generation[i], true);
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

/** Operations whose reply has one outcome per item and nothing else. */
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

const OUTCOME = new ColumnFields({
  outcome: within<Outcome>(Outcome.ok, Outcome.device),
  reserved,
});

export function encodeOutcomesReply(
  output: Output,
  op: OutcomeOp,
  requestId: number,
  outcomes: Readonly<OutcomeItems>,
): void {
  const { count } = outcomes;
  const at = beginReply(output, op, requestId, count, count * OUTCOME.bytes);
  OUTCOME.write(output, at, outcomes);
}

export function decodeOutcomesReply(frame: Frame, into: OutcomeItems): Refusal | null {
  return (
    checkItems(frame, 0, OUTCOME.bytes, into.outcome.length) ??
    OUTCOME.read(frame, frame.body, into)
  );
}
