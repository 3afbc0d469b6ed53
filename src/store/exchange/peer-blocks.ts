import { DIGEST_BYTES, equalBytes, type NamespaceIndex, type NodeId } from "../../core/index.ts";

/** A block received from a peer, as described by the frame that `src/peers` received. */
export interface PulledBlock {
  readonly digest: Uint8Array;
  readonly layer: number;
  /** Namespace key, 32 bytes. */
  readonly namespace: Uint8Array;
  readonly bytes: number;
  /** XXH3-64 of the bytes, computed by the sender. */
  readonly checksum: bigint;
  /** 16 bytes, computed with the namespace's MAC key; null if the block has no MAC. */
  readonly mac: Uint8Array | null;
  /**
   * Digest of the parent; zeros if the sender does not know it; null if the block has no parent.
   */
  readonly parent: Uint8Array | null;
  readonly transient: boolean;
  /** Aliases: engine hashes of 8 bytes and page keys of 32 bytes. */
  readonly aliases: readonly Uint8Array[];
}

/**
 * A reserved slot for a block that is being received. It does not prevent local engines from
 * writing the block: if one does, the received copy is discarded. Call `commit` or `abandon`
 * exactly once, after the transport has stopped writing to the slot.
 */
export interface IncomingBlock {
  /** Byte offset of the slot in the arena. */
  readonly offset: number;
  /** Length of the slot in bytes. */
  readonly bytes: number;
  /**
   * Verifies and publishes the received block; no other code accepts bytes from a peer. `arrived`:
   * checksum of the bytes in the slot. Result `ok`: the block is in RAM and locked until the
   * arrival is released; it may be the copy that an engine wrote meanwhile. `corrupt`: it is not
   * the requested block, or does not match its attributes. `unwanted`: a command removed it
   * meanwhile, an engine is writing it, or the table is full. `why`: the reason in English.
   */
  commit(block: PulledBlock, arrived: bigint): Committed;
  abandon(): void;
}

export type Committed =
  | { readonly kind: "ok"; readonly arrival: Arrival }
  | { readonly kind: "corrupt" | "unwanted"; readonly why: string };

/**
 * A fetched block in RAM that is locked until `release`. A second call of `release` has no effect.
 */
export interface Arrival {
  readonly node: NodeId;
  /**
   * Unlocks the block. `used`: true if a request was answered with the block. If false, the block
   * enters the eviction order on its own, as a block that no request has used.
   */
  release(used: boolean): void;
}

/**
 * A block that is locked while it is sent to a peer. It is not moved, changed or evicted until
 * `release`.
 */
export interface Loan extends Omit<PulledBlock, "namespace"> {
  readonly offset: number;
  readonly generation: bigint;
  release(): void;
}

/**
 * A locked block, or why there is none. `absent`: this host does not have it in this namespace.
 * `busy`: it cannot be sent now, because RAM is full or the disk is slow.
 */
export type Lent = Loan | "absent" | "busy";

export interface BlockCopies {
  /** Bits of the tiers that have a readable copy: RAM and SSD; 0 for none. */
  readonly tiers: number;
  readonly bytes: number;
  /**
   * Generation of the copy in RAM; 0 if RAM has none. If `tiers` is 0, 1 means that the block is
   * being written or that an engine of this host has announced it.
   */
  readonly generation: bigint;
  readonly checksum: bigint;
}

export interface FoundBlock extends BlockCopies {
  readonly namespace: Uint8Array;
  readonly digest: Uint8Array;
  readonly layer: number;
}

/** Why no slot is reserved for a block to be received. */
export type SlotRefusal = "present" | "full" | "tooLong" | "removed";

/** Outcome of the fetch of one block from peers. */
export type FetchOutcome =
  | { readonly kind: "ok"; readonly arrival: Arrival }
  | { readonly kind: "miss" | "full" | "late" };

export interface FetchOptions {
  readonly deadlineMs: number;
  /** True if the blocks after an unavailable block are not needed. */
  readonly stopAtMiss: boolean;
  readonly signal: AbortSignal;
  /** Ids of the workers that reported the blocks. The fetch asks them in any case. */
  readonly sources?: readonly string[];
}

/** State of a block at the queried worker. `coming`: it is being written or computed there. */
export type SourceHas = "here" | "coming" | "absent";

/**
 * The tier below SSD: fetches blocks from peers. Implemented by `src/peers`. The store works
 * without one.
 */
export interface PeerTier {
  /**
   * Returns the length of the leading run of blocks that peers announced and can deliver sooner
   * than an engine would compute them, among `count` blocks. `keys`: eight words per block; the
   * first block has index `from`. Answers from the local index without waiting; 0 is always a
   * correct result.
   */
  promising(namespace: NamespaceIndex, keys: Uint32Array, from: number, count: number): number;
  /**
   * Asks a worker for the state of the blocks. Resolves to null if the worker is unknown or did not
   * answer. Absent if workers cannot be asked.
   */
  whatHas?(
    worker: string,
    namespace: NamespaceIndex,
    blocks: readonly { readonly digest: Uint8Array; readonly layer: number }[],
    options: { readonly deadlineMs: number; readonly signal: AbortSignal },
  ): Promise<readonly SourceHas[] | null>;
  /**
   * Fetches the blocks. Resolves with one outcome per block, in the order of `blocks`, by the
   * deadline at the latest.
   */
  fetch(
    namespace: NamespaceIndex,
    blocks: readonly { readonly digest: Uint8Array; readonly layer: number }[],
    options: FetchOptions,
  ): Promise<FetchOutcome[]>;
}

/** Maximum number of aliases that are sent with a block. */
export const NAMES_MAX = 8;
const HASH_BYTES = 8;
const PAGE_KEY_BYTES = 32;

/** Attributes of the block that was requested, to compare the received one with. */
interface RequestedBlock {
  readonly digest: Uint8Array;
  readonly layer: number;
  /** Namespace key, 32 bytes; null if this process has assigned no number to the namespace. */
  readonly namespace: Uint8Array | null;
  /** Length of the reserved slot in bytes. */
  readonly bytes: number;
}

/**
 * Returns the reason to reject a received block, or null. Checks that it is the requested block,
 * fits its slot, matches the sender's checksum and has well-formed attributes.
 */
export function faultOfPull(
  block: PulledBlock,
  arrived: bigint,
  asked: RequestedBlock,
): string | null {
  if (!equalBytes(block.digest, asked.digest)) return "digest differs from the request";
  if (block.layer >>> 0 !== asked.layer >>> 0) return "layer differs from the request";
  const isOurs = asked.namespace !== null && equalBytes(block.namespace, asked.namespace);
  if (!isOurs) return "namespace differs from the request";
  if (!Number.isInteger(block.bytes) || block.bytes < 1) return "invalid length";
  if (block.bytes > asked.bytes) return "longer than requested";
  if (block.checksum !== arrived) return "checksum mismatch";
  return faultOfNames(block);
}

function faultOfNames({ digest, parent, aliases }: PulledBlock): string | null {
  if (parent !== null) {
    if (parent.length !== DIGEST_BYTES) return "invalid parent digest";
    if (equalBytes(parent, digest)) return "block is its own parent";
  }
  if (aliases.length > NAMES_MAX) return "too many aliases";
  const isName = ({ length }: Uint8Array) => length === HASH_BYTES || length === PAGE_KEY_BYTES;
  return aliases.every(isName) ? null : "invalid alias length";
}
