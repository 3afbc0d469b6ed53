/** Names that must not be mixed up, though all are plain strings or numbers at run time. */
export type Brand<Base, Name extends string> = Base & { readonly __brand: Name };

export type WorkerId = Brand<string, "WorkerId">;
export type SessionId = Brand<string, "SessionId">;

/** Index of a node in the block table; 0 is "none". Valid only with the node's generation. */
export type NodeId = Brand<number, "NodeId">;
export const NO_NODE = 0 as NodeId;

/** Small number a table gives a namespace (see `identity/`); 0 is never used. */
export type NamespaceIndex = Brand<number, "NamespaceIndex">;

/**
 * A worker id becomes part of message subjects, metric labels and certificate names, so it holds
 * neither dots nor wildcards.
 */
export const WORKER_ID = /^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/;

/** A cluster's name is the trust domain in its hosts' certificates. */
export const CLUSTER_NAME = /^[a-z0-9][a-z0-9._-]{0,62}$/;

export function isWorkerId(text: string): text is WorkerId {
  return WORKER_ID.test(text);
}

export function isClusterName(text: string): boolean {
  return CLUSTER_NAME.test(text);
}

export const DIGEST_BYTES = 32;
export const BLOCK_KEY_BYTES = 32;
export const BLOCK_ADDRESS_BYTES = 36;
/** The layer of a block whose layers all lie in one object. */
export const LAYER_ALL = 0xffff_ffff;

/** BLAKE3-256 over (namespace, all prefix tokens up to the block's end): 32 bytes. */
export type Digest = Brand<Uint8Array, "Digest">;
/** `BLAKE3(digest ‖ layer u32 LE)`: 32 bytes; what tables and files are keyed by. */
export type BlockKey = Brand<Uint8Array, "BlockKey">;

export interface BlockAddress {
  readonly digest: Digest;
  readonly layer: number;
}

/** Writes the 36 bytes `digest ‖ layer u32 LE` at `offset`. */
export function writeBlockAddress(address: BlockAddress, into: Uint8Array, offset = 0): void {
  into.set(address.digest, offset);
  const layer = address.layer >>> 0;
  into[offset + 32] = layer & 0xff;
  into[offset + 33] = (layer >>> 8) & 0xff;
  into[offset + 34] = (layer >>> 16) & 0xff;
  into[offset + 35] = layer >>> 24;
}

/** Reads the 36 bytes back; the digest is a copy. */
export function readBlockAddress(from: Uint8Array, offset = 0): BlockAddress {
  const digest = from.slice(offset, offset + DIGEST_BYTES) as Digest;
  const at = offset + DIGEST_BYTES;
  const layer =
    (from[at]! | (from[at + 1]! << 8) | (from[at + 2]! << 16) | (from[at + 3]! << 24)) >>> 0;
  return { digest, layer };
}

/**
 * How a command names a block: by a 64-bit engine hash, or by 32 bytes that are a SHA-256 page key
 * or our own digest. A hash may lead to several blocks (namespaces, layers): all of them are meant.
 */
export type BlockName =
  | {
      readonly kind: "hash";
      /** As it was given; answers repeat it. */
      readonly given: number | bigint | string;
      /** The low and high 32 bits of the hash as an unsigned number. */
      readonly lo: number;
      readonly hi: number;
    }
  | {
      readonly kind: "key";
      readonly given: string;
      /** 32 bytes. Looked up as a page key first, then as a digest. */
      readonly bytes: Uint8Array;
      /** Of the digest; `LAYER_ALL` unless given. */
      readonly layer: number;
    };

const KEY = /^([0-9a-fA-F]{64})(?:\/(0|[1-9][0-9]{0,9}))?$/;
const INTEGER = /^(?:0|-?[1-9][0-9]{0,19})$/;
const I64_MIN = -(2n ** 63n);
const U64_MAX = 2n ** 64n - 1n;
const WORD = 2 ** 32;
const words = new DataView(new ArrayBuffer(8));

/**
 * A block's name from what `parseJson` or MessagePack gave, or from a word of a query or command
 * line: an integer of 64 bits, signed or not (in digits where it is text); 64 hex digits; those
 * with `/layer` behind them. Null where it is none of these.
 */
export function readBlockName(raw: unknown): BlockName | null {
  if (typeof raw === "string") return readText(raw);
  if (typeof raw === "bigint") return readInteger(raw, raw);
  if (typeof raw !== "number" || !Number.isSafeInteger(raw)) return null;
  if (raw < 0) return readInteger(raw, BigInt(raw));
  return { kind: "hash", given: raw, lo: raw >>> 0, hi: (raw / WORD) >>> 0 };
}

function readText(given: string): BlockName | null {
  // Bounded before a pattern or a bigint sees it.
  if (given.length > 80) return null;
  if (INTEGER.test(given)) return readInteger(given, BigInt(given));
  const match = KEY.exec(given);
  if (match === null) return null;
  const layer = match[2] === undefined ? LAYER_ALL : Number(match[2]);
  return layer > LAYER_ALL
    ? null
    : { kind: "key", given, bytes: Uint8Array.fromHex(match[1]!), layer };
}

function readInteger(given: number | bigint | string, value: bigint): BlockName | null {
  if (value < I64_MIN || value > U64_MAX) return null;
  words.setBigUint64(0, value);
  return { kind: "hash", given, lo: words.getUint32(4), hi: words.getUint32(0) };
}

/**
 * What happened to one block of a request. The numbers are the engine protocol's
 * (docs/internals/engine-protocol.md), so that the store's answer goes on the wire as it is.
 */
export const BlockOutcome = {
  ok: 0,
  miss: 1,
  full: 2,
  present: 3,
  stale: 4,
  corrupt: 5,
  tooLarge: 6,
  late: 7,
  pending: 8,
  skipped: 9,
  rejected: 10,
  device: 11,
} as const;
export type BlockOutcome = (typeof BlockOutcome)[keyof typeof BlockOutcome];

/** Bits of the flags of a block to be written, or mirrored. */
export const BlockFlag = { transient: 1, aliasGiven: 2 } as const;

/** Bits of the flags of a slot to be committed. */
export const CommitFlag = { checksumGiven: 1, macGiven: 2 } as const;
