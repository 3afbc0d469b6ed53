/** A nominal type: values that must not be mixed up although they are plain strings or numbers. */
export type Brand<Base, Name extends string> = Base & { readonly __brand: Name };

export type WorkerId = Brand<string, "WorkerId">;

/**
 * Index of a node in the block table; 0 means none. Valid only together with the node's generation.
 */
export type NodeId = Brand<number, "NodeId">;
export const NO_NODE = 0 as NodeId;

/** Small number of a namespace in a block table (see `identity/`). 0 is never used. */
export type NamespaceIndex = Brand<number, "NamespaceIndex">;

/**
 * A worker id is used in message subjects, metric labels and certificate names, so it has neither
 * dots nor wildcards.
 */
export const WORKER_ID = /^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/;

/** The name of a cluster is the trust domain in the certificates of its hosts. */
export const CLUSTER_NAME = /^[a-z0-9][a-z0-9._-]{0,62}$/;

export function isWorkerId(text: string): text is WorkerId {
  return WORKER_ID.test(text);
}

export function isClusterName(text: string): boolean {
  return CLUSTER_NAME.test(text);
}

export const DIGEST_BYTES = 32;
export const BLOCK_KEY_BYTES = 32;
/** Layer number of a block that contains all layers. */
export const LAYER_ALL = 0xffff_ffff;

/** BLAKE3-256 over the namespace and all prefix tokens up to the end of the block: 32 bytes. */
export type Digest = Brand<Uint8Array, "Digest">;
/** `BLAKE3(digest ‖ layer u32 LE)`: 32 bytes. The key of tables and files. */
export type BlockKey = Brand<Uint8Array, "BlockKey">;

/**
 * Name of a block in a command: a 64-bit engine hash, or 32 bytes that are a SHA-256 page key or a
 * Hearth digest. A hash may match several blocks (in several namespaces or layers), and then names
 * all of them.
 */
export type BlockName =
  | {
      readonly kind: "hash";
      /** The name as it was given. Answers repeat it. */
      readonly given: number | bigint | string;
      /** Low and high 32 bits of the hash as an unsigned number. */
      readonly lo: number;
      readonly hi: number;
    }
  | {
      readonly kind: "key";
      readonly given: string;
      /** 32 bytes. Looked up as a page key first, then as a digest. */
      readonly bytes: Uint8Array;
      /** Layer of the digest. Default: `LAYER_ALL`. */
      readonly layer: number;
    };

const KEY = /^([0-9a-fA-F]{64})(?:\/(0|[1-9][0-9]{0,9}))?$/;
const INTEGER = /^(?:0|-?[1-9][0-9]{0,19})$/;
const I64_MIN = -(2n ** 63n);
const U64_MAX = 2n ** 64n - 1n;
const WORD = 2 ** 32;
const words = new DataView(new ArrayBuffer(8));

/**
 * Parses a block name from JSON, MessagePack, a query or a command line: a signed or unsigned
 * 64-bit integer (decimal digits in text), 64 hex digits, or 64 hex digits followed by `/layer`.
 * Null for anything else.
 */
export function readBlockName(raw: unknown): BlockName | null {
  if (typeof raw === "string") return readText(raw);
  if (typeof raw === "bigint") return readInteger(raw, raw);
  if (typeof raw !== "number" || !Number.isSafeInteger(raw)) return null;
  if (raw < 0) return readInteger(raw, BigInt(raw));
  return { kind: "hash", given: raw, lo: raw >>> 0, hi: (raw / WORD) >>> 0 };
}

function readText(given: string): BlockName | null {
  // Bound the length before the regular expression and the conversion to bigint.
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
 * Outcome for one block of a request. The numbers are those of the engine protocol
 * (docs/internals/engine-protocol.md), so that the store's result is sent unchanged.
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

/** Flags of a block to be written or mirrored. */
export const BlockFlag = { transient: 1, aliasGiven: 2 } as const;

/** Flags of a slot to be committed. */
export const CommitFlag = { checksumGiven: 1, macGiven: 2 } as const;
