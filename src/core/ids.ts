/**
 * A type with a name. It prevents that values of the same plain type, such as two kinds of ids, are
 * mixed up.
 */
export type Brand<Base, Name extends string> = Base & { readonly __brand: Name };

export type WorkerId = Brand<string, "WorkerId">;

/**
 * Index of a node in the block table; 0 means none. Valid only together with the node's generation,
 * because nodes are reused.
 */
export type NodeId = Brand<number, "NodeId">;
export const NO_NODE = 0 as NodeId;

/** Number of a namespace in a block table (see `identity/`). 0 is never used. */
export type NamespaceIndex = Brand<number, "NamespaceIndex">;

/**
 * Valid worker ids. A worker id occurs in message subjects, metric labels and certificate names, so
 * it has neither dots nor wildcards.
 */
export const WORKER_ID = /^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/;

/** Valid cluster names. A cluster's name is the trust domain in the certificates of its hosts. */
export const CLUSTER_NAME = /^[a-z0-9][a-z0-9._-]{0,62}$/;

export function isWorkerId(text: string): text is WorkerId {
  return WORKER_ID.test(text);
}

export function isClusterName(text: string): boolean {
  return CLUSTER_NAME.test(text);
}

export const DIGEST_BYTES = 32;
export const BLOCK_KEY_BYTES = 32;
/** Layer number that stands for a block with all layers of the model. */
export const LAYER_ALL = 0xffff_ffff;

/**
 * Name of a block, 32 bytes: BLAKE3-256 of the namespace and of all tokens of the prompt up to the
 * end of the block.
 */
export type Digest = Brand<Uint8Array, "Digest">;
/** Key of a block in tables and files, 32 bytes: `BLAKE3(digest ‖ layer u32 LE)`. */
export type BlockKey = Brand<Uint8Array, "BlockKey">;

/**
 * Name of a block in a command: an engine's 64-bit hash, or 32 bytes that are a SHA-256 page key or
 * a Hearth digest. If a hash matches several blocks (in several namespaces or layers), it names all
 * of them.
 */
export type BlockName =
  | {
      readonly kind: "hash";
      /** The name as written in the command. Receipts repeat it. */
      readonly given: number | bigint | string;
      /** The hash as an unsigned number: `lo` has the low 32 bits, `hi` the high ones. */
      readonly lo: number;
      readonly hi: number;
    }
  | {
      readonly kind: "key";
      readonly given: string;
      /** Page key or digest, 32 bytes. It is looked up as a page key first, then as a digest. */
      readonly bytes: Uint8Array;
      /** Layer of the block if `bytes` is a digest. Default: `LAYER_ALL`. */
      readonly layer: number;
    };

const KEY = /^([0-9a-fA-F]{64})(?:\/(0|[1-9][0-9]{0,9}))?$/;
const INTEGER = /^(?:0|-?[1-9][0-9]{0,19})$/;
const I64_MIN = -(2n ** 63n);
const U64_MAX = 2n ** 64n - 1n;
const WORD = 2 ** 32;
const words = new DataView(new ArrayBuffer(8));

/**
 * Parses a block name from JSON, MessagePack, a URL query or a command line: a signed or unsigned
 * 64-bit integer (decimal digits in text), 64 hex digits, or 64 hex digits followed by `/layer`.
 * Returns null for anything else.
 */
export function readBlockName(raw: unknown): BlockName | null {
  if (typeof raw === "string") return readText(raw);
  if (typeof raw === "bigint") return readInteger(raw, raw);
  if (typeof raw !== "number" || !Number.isSafeInteger(raw)) return null;
  if (raw < 0) return readInteger(raw, BigInt(raw));
  return { kind: "hash", given: raw, lo: raw >>> 0, hi: (raw / WORD) >>> 0 };
}

function readText(given: string): BlockName | null {
  // Limits the work of the regular expression and of the conversion to bigint.
  if (given.length > 80) return null;
  if (INTEGER.test(given)) return readInteger(given, BigInt(given));
  const match = KEY.exec(given);
  if (match === null) return null;
  const layer = match[2] === undefined ? LAYER_ALL : Number(match[2]);
  return layer > LAYER_ALL
    ? null
    : { kind: "key", given, bytes: Uint8Array.fromHex(match[1]), layer };
}

function readInteger(given: number | bigint | string, value: bigint): BlockName | null {
  if (value < I64_MIN || value > U64_MAX) return null;
  words.setBigUint64(0, value);
  return { kind: "hash", given, lo: words.getUint32(4), hi: words.getUint32(0) };
}

/**
 * Outcome of one block of a request. The numbers are those of the engine protocol
 * (docs/internals/engine-protocol.md), so that the store's outcomes are sent without conversion.
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

/** Flags of a block that an engine writes, or reports as present on its GPU. */
export const BlockFlag = { transient: 1, aliasGiven: 2 } as const;

/** Flags of a slot that an engine commits. */
export const CommitFlag = { checksumGiven: 1, macGiven: 2 } as const;
