import { DIGEST_BYTES } from "../../core/index.ts";
import {
  beginReply,
  beginRequest,
  checkItems,
  type Frame,
  isZero,
  malformed,
  type Output,
  type Refusal,
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
  columnsMessage,
  Fields,
  flag,
  itemsMessage,
  replyTo,
  requestOf,
  reserved,
  size,
  u16,
  u32,
  u64,
  within,
} from "./message.ts";

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

/** Blocks that a message names by digest alone. */
export const DIGEST_ITEM = { digests: bytes(DIGEST_BYTES) } as const;
export const digestsFit = ({ digests }: DigestItems) => digests.length / DIGEST_BYTES;

/** RESERVE and ACQUIRE, which grant slots, and the notices about the GPU tier. */

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
      if ((flags[i]! & BlockFlag.aliasGiven) === 0 && (aliasLo[i]! | aliasHi[i]!) !== 0)
        return malformed("an alias without its flag: set item flag bit 1, or send alias 0");
    }
    return null;
  },
} as const;

export interface ReserveOptions {
  /** The session of the blocks; 0 = none. */
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

const SLOT_ITEM = {
  outcome: within<Outcome>(Outcome.ok, Outcome.rejected),
  slot: u32,
  generation: u32,
  bytes: u32,
  offset: size,
} as const;
const SLOTS = {
  capacity: ({ outcome }: OutcomeItems) => outcome.length,
  /** For an item without a slot only the outcome is sent. */
  clear(output: Output, start: number, stride: number, { outcome, count }: OutcomeItems) {
    for (let i = 0, at = start; i < count; i++, at += stride)
      if (outcome[i] !== Outcome.ok) output.bytes.fill(0, at + 4, at + stride);
  },
  check(frame: Frame, start: number, stride: number, { outcome }: OutcomeItems) {
    for (let i = 0, at = start; i < frame.count; i++, at += stride)
      if (outcome[i] !== Outcome.ok && !isZero(frame.bytes, at + 4, at + stride))
        return malformed(`reply ${frame.requestId}: an item without a slot names one`);
    return null;
  },
} as const;

/** `bytes` is sent as the slot's capacity. */
export const { encode: encodeReserveReply, decode: decodeReserveReply } = itemsMessage<SlotItems>(
  replyTo(Op.reserve),
  { head: {}, item: SLOT_ITEM },
  SLOTS,
);

export interface AcquireOptions {
  /** Tiers to fetch from, as a mask of `TierBit`; 0 = all. */
  tiers: number;
  /** Deadline of a promotion; 0 = the agent's default. */
  deadlineMs: number;
  stopAtMiss: boolean;
  /** Handle of the namespace, below 65,536; 0 or absent = the connection's own. */
  namespace?: number;
}

export const { encode: encodeAcquireRequest, decode: decodeAcquireRequest } = columnsMessage<
  AcquireOptions,
  DigestItems
>(
  requestOf(Op.acquire),
  {
    head: {
      layer: u32,
      tiers: bits(TIER_MASK_ALL),
      deadlineMs: u32,
      stopAtMiss: flag(AcquireFlag.stopAtMiss, u16),
      namespace: u16,
    },
    item: DIGEST_ITEM,
  },
  { capacity: digestsFit },
);

const ACQUIRED_ITEM = { ...SLOT_ITEM, checksum: u64 } as const;
const MAC = { mac: bytes(MAC_BYTES) } as const;

/** Items with MACs: on a connection with `Feature.mac`. */
export interface MacItems {
  readonly mac: Uint8Array;
}

export const acquireReply = itemsMessage<AcquiredItems>(
  replyTo(Op.acquire),
  { head: {}, item: ACQUIRED_ITEM },
  SLOTS,
);
export const acquireReplyWithMacs = itemsMessage<AcquiredItems & MacItems>(
  replyTo(Op.acquire),
  { head: {}, item: { ...ACQUIRED_ITEM, ...MAC } },
  SLOTS,
);

/** Requests that name granted slots: commit, abort, release, report. */

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

/** Rules for items of a commit. Items with MACs are longer. */
const COMMITTED = {
  capacity: ({ slot }: HandleItems) => slot.length,
  clear({ bytes: out }: Output, start: number, stride: number, { flags, count }: CommitItems) {
    const hasMacs = stride > MAC_AT;
    for (let i = 0, at = start; i < count; i++, at += stride) {
      const given = flags[i]!;
      if ((given & CommitFlag.checksumGiven) === 0)
        out.fill(0, at + CHECKSUM_AT, at + CHECKSUM_END);
      if (hasMacs && (given & CommitFlag.macGiven) === 0) out.fill(0, at + MAC_AT, at + stride);
    }
  },
  check({ bytes: from, count }: Frame, start: number, stride: number, { flags }: CommitItems) {
    const hasMacs = stride > MAC_AT;
    for (let i = 0, at = start; i < count; i++, at += stride) {
      const given = flags[i]!;
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

const HANDLE = new Fields({ slot: u32, generation: u32 });

/** ABORT, RELEASE and REPORT have the same layout. */
export function encodeHandlesRequest(
  output: Output,
  op: HandleOp,
  requestId: number,
  handles: Readonly<HandleItems>,
  noReply = false,
): void {
  const { count } = handles;
  const at = beginRequest(output, op, requestId, count, count * HANDLE.bytes, noReply);
  HANDLE.writeColumns(output, at, handles);
}

export function decodeHandlesRequest(frame: Frame, into: HandleItems): Refusal | null {
  return (
    checkItems(frame, 0, HANDLE.bytes, into.slot.length) ??
    HANDLE.readColumns(frame, frame.body, into)
  );
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

const OUTCOME = new Fields({ outcome: within<Outcome>(Outcome.ok, Outcome.device), reserved });

export function encodeOutcomesReply(
  output: Output,
  op: OutcomeOp,
  requestId: number,
  outcomes: Readonly<OutcomeItems>,
): void {
  const { count } = outcomes;
  const at = beginReply(output, op, requestId, count, count * OUTCOME.bytes);
  OUTCOME.writeColumns(output, at, outcomes);
}

export function decodeOutcomesReply(frame: Frame, into: OutcomeItems): Refusal | null {
  return (
    checkItems(frame, 0, OUTCOME.bytes, into.outcome.length) ??
    OUTCOME.readColumns(frame, frame.body, into)
  );
}
