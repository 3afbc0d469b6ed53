import { BlockFlag, BlockOutcome, CommitFlag } from "../../core/index.ts";

/**
 * Constants of the engine plane's wire format, version 1. `docs/internals/engine-protocol.md`
 * documents them. Every integer is little-endian; the length of every frame is a multiple of eight
 * bytes.
 */

export { BlockFlag, CommitFlag };

export const PROTOCOL_VERSION = 1;
export const HELLO_MAGIC = 0x4854_5248; // "HRTH" read as u32 LE
export const CHECKSUM_XXH3_64 = 1;

export const HEADER_BYTES = 16;
export const ALIGNMENT = 8;
export const NAME_BYTES = 32;
export const MAC_BYTES = 16;
export const ALIAS_BYTES = 32;
export const PING_BYTES_MAX = 64;
export const ERROR_TEXT_BYTES_MAX = 512;
export const MANIFEST_BYTES_MAX = 64 * 1024;

export const DEFAULT_LIMITS = {
  frameBytesMax: 1024 * 1024,
  itemsMax: 4096,
  handlesMax: 65_536,
  connectionsMax: 256,
  unreadBytesMax: 4 * 1024 * 1024,
  unreadMs: 5_000,
  leaseMs: 30_000,
} as const;

export const Op = {
  hello: 1,
  ping: 2,
  identify: 3,
  match: 4,
  reserve: 5,
  commit: 6,
  abort: 7,
  acquire: 8,
  release: 9,
  gpuStored: 10,
  gpuEvicted: 11,
  sessionCommit: 12,
  sessionRelease: 13,
  sessionStatus: 14,
  alias: 15,
  sessionList: 16,
  gpuDevices: 17,
  gpuRegister: 18,
  gpuUnregister: 19,
  gpuStore: 20,
  gpuLoad: 21,
  gpuWarm: 22,
  join: 23,
  lookup: 24,
  unhold: 25,
  announce: 26,
  command: 27,
  namespace: 28,
  report: 29,
} as const;
export type OpName = keyof typeof Op;
export type Op = (typeof Op)[OpName];

/**
 * Feature bits of HELLO. `gpu`: the agent copies between slots and the engine's GPU. `engine`:
 * several connections can form one engine, with operations 23 to 28 and chain keys of 16 bytes.
 * `mac`: items of COMMIT and of ACQUIRE's reply carry a MAC. `report`: the agent supports REPORT.
 */
export const Feature = { gpu: 1, engine: 2, mac: 4, report: 8 } as const;

export const FrameFlag = { reply: 1, noReply: 2 } as const;

/** Status of a whole frame: 0 in every request and in every successful reply. */
export const FrameStatus = {
  ok: 0,
  malformed: 1,
  unknownOp: 2,
  version: 3,
  frameTooLarge: 4,
  notGreeted: 5,
  limit: 6,
  internal: 7,
  manifestRefused: 8,
  overstayed: 9,
  draining: 10,
} as const;
export type FrameStatusName = keyof typeof FrameStatus;
export type FrameStatus = (typeof FrameStatus)[FrameStatusName];

/** Outcome of one item of a frame. */
export const Outcome = BlockOutcome;
export type Outcome = BlockOutcome;
export type OutcomeName = keyof typeof Outcome;

/** Bits of a tier mask. A mask of 0 selects the operation's default tiers. */
export const TierBit = { gpu: 1, ram: 2, ssd: 4, peer: 8 } as const;
export const TIER_MASK_ALL = 15;

export const AcquireFlag = { stopAtMiss: 1 } as const;

/** Kind of the items in an IDENTIFY; the table below has their size on the wire in bytes. */
export const IdentifyKind = { tokens: 0, chainKeys: 1, engineHashes: 2, shortKeys: 3 } as const;
export type IdentifyKind = (typeof IdentifyKind)[keyof typeof IdentifyKind];
export const IDENTIFY_ITEM_BYTES: Readonly<Record<IdentifyKind, number>> = {
  0: 4,
  1: 32,
  2: 8,
  3: 16,
};

/** Kind of alias in an ALIAS item: a u64 in its first eight bytes, or 32 bytes of SHA-256. */
export const AliasKind = { engineHash: 0, sha256: 1 } as const;
export type AliasKind = (typeof AliasKind)[keyof typeof AliasKind];

export const GPU_UUID_BYTES = 16;
export const GPU_HANDLE_BYTES = 64;
/**
 * Maximum memories per GPU_REGISTER. Their file descriptors wait in a socket that holds a few
 * hundred.
 */
export const GPU_REGISTER_MAX = 64;
/**
 * Maximum registered memories per connection. The KV cache of an engine can consist of thousands:
 * for example PyTorch's expandable segments map pieces of 20 MiB.
 */
export const GPU_MEMORIES_MAX = 4_096;

/**
 * Flags of GPU_DEVICES. `channel`: in the request, the client asks for a socket for file
 * descriptors; in the reply, that socket is attached.
 */
export const GpuDevicesFlag = { channel: 1 } as const;

/**
 * Flags of a GPU. `dmaBuf`: other devices can read its memory. `batches`: its driver copies many
 * pieces in one call.
 */
export const GpuDeviceFlag = { dmaBuf: 1, batches: 2 } as const;

/**
 * How a client passes GPU memory: a handle from `cuIpcGetMemHandle`, or a file descriptor sent on
 * the channel.
 */
export const GpuMemoryKind = { ipc: 1, descriptor: 2 } as const;
export type GpuMemoryKind = (typeof GpuMemoryKind)[keyof typeof GpuMemoryKind];

/**
 * Flags of GPU_LOAD. `verify`: the agent verifies the slots' content by its hash before it replies
 * `ok`.
 */
export const GpuLoadFlag = { verify: 1 } as const;

export const ENGINE_ID_BYTES = 16;
export const SOURCE_BYTES = 64;
export const SALT_BYTES_MAX = 4_096;
/** Maximum length in bytes of the name of a multimodal item. */
export const MEDIA_NAME_BYTES_MAX = 256;
/** Maximum namespace handles per connection, besides its own namespace. */
export const NAMESPACES_MAX = 1_024;
/**
 * Maximum duration in ms of a LOOKUP's reservation and of an ANNOUNCE. Longer requests are
 * shortened to this value.
 */
export const ENGINE_MS_MAX = 60_000;

/** Role of a connection within its engine. */
export const EngineRole = { other: 0, scheduler: 1, worker: 2 } as const;
export type EngineRole = (typeof EngineRole)[keyof typeof EngineRole];

/**
 * Flags of LOOKUP. `family`: look up the blocks of all ranks. `digests`: include the digests in the
 * reply.
 */
export const LookupFlag = {
  family: 1,
  hold: 2,
  fetch: 4,
  wait: 8,
  progress: 16,
  digests: 32,
} as const;

/** Flags of LOOKUP's reply. `more`: another reply to the same request follows. */
export const LookupReplyFlag = { more: 1, unknownParent: 2, budget: 4 } as const;

/** Kind of the items in an ANNOUNCE. Chain keys have the same numbers as in IDENTIFY. */
export const AnnounceKind = { digests: 0, chainKeys: 1, shortKeys: 3 } as const;
export type AnnounceKind = (typeof AnnounceKind)[keyof typeof AnnounceKind];
export const ANNOUNCE_ITEM_BYTES: Readonly<Record<AnnounceKind, number>> = { 0: 32, 1: 32, 3: 16 };
export const AnnounceFlag = { family: 1, withdraw: 2 } as const;

export const NamespaceFlag = { lora: 1, salt: 2 } as const;

const OP_NAMES = namesByNumber(Op);
const STATUS_NAMES = namesByNumber(FrameStatus);
const OUTCOME_NAMES = namesByNumber(Outcome);

function namesByNumber<Name extends string>(table: Readonly<Record<Name, number>>): Name[] {
  const names: Name[] = [];
  for (const name of Object.keys(table) as Name[]) names[table[name]] = name;
  return names;
}

/** Returns the name of an operation. Null if the number is undefined. */
export function opName(op: number): OpName | null {
  return OP_NAMES[op] ?? null;
}

export function frameStatusName(status: number): FrameStatusName | null {
  return STATUS_NAMES[status] ?? null;
}

export function outcomeName(outcome: number): OutcomeName | null {
  return OUTCOME_NAMES[outcome] ?? null;
}

/** Requests whose reply the client may decline, because it can ignore their outcome. */
const NO_REPLY_ALLOWED: ReadonlySet<number> = new Set([
  Op.ping,
  Op.commit,
  Op.abort,
  Op.release,
  Op.gpuStored,
  Op.gpuEvicted,
  Op.sessionCommit,
  Op.sessionRelease,
  Op.alias,
  Op.unhold,
  Op.announce,
  Op.report,
]);

export function mayGoUnanswered(op: number): boolean {
  return NO_REPLY_ALLOWED.has(op) || opName(op) === null;
}

/** Rounds up to the next multiple of eight bytes. */
export function padded(bytes: number): number {
  return Math.ceil(bytes / ALIGNMENT) * ALIGNMENT;
}
