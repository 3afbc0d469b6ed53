import { DIGEST_BYTES, equalBytes, type NamespaceIndex, type NodeId } from "../../core/index.ts";

/** Attributes of a block received from a peer; see the frame of `src/peers`. */
export interface PulledBlock {
  readonly digest: Uint8Array;
  readonly layer: number;
  /** 32 bytes. */
  readonly namespace: Uint8Array;
  readonly bytes: number;
  /** XXH3-64 computed by the sender. */
  readonly checksum: bigint;
  /** 16 bytes, made with the namespace's key; null if the block has no MAC. */
  readonly mac: Uint8Array | null;
  /** Zeros if the sender does not know the parent's digest; null if the block has no parent. */
  readonly parent: Uint8Array | null;
  readonly transient: boolean;
  /** 8 bytes (engine hash) or 32 bytes (page key) each. */
  readonly aliases: readonly Uint8Array[];
}

/**
 * A reserved slot for a block that is being received. It does not block local engines: if an engine
 * writes the block meanwhile, the received copy is discarded. Call `commit` or `abandon` exactly
 * once, after the transport has stopped writing to the slot.
 */
export interface IncomingBlock {
  /** Offset in the arena. */
  readonly offset: number;
  /** Length of the slot in bytes. */
  readonly bytes: number;
  /**
   * Verifies and publishes the received block; the only place where bytes from a peer are accepted.
   * `arrived` is the checksum of the bytes in the slot. `ok`: the block is in RAM, locked until the
   * arrival is released; it may be the copy that an engine wrote meanwhile. `corrupt`: it is not
   * the requested block, or does not match its attributes. `unwanted`: it was removed here
   * meanwhile, an engine is writing it, or the table is full. `why` is the reason for people.
   */
  commit(block: PulledBlock, arrived: bigint): Committed;
  abandon(): void;
}

export type Committed =
  | { readonly kind: "ok"; readonly arrival: Arrival }
  | { readonly kind: "corrupt" | "unwanted"; readonly why: string };

/** A block in RAM that is locked until `release`. A second call has no effect. */
export interface Arrival {
  readonly node: NodeId;
  /**
   * `used`: a request was answered with the block. Otherwise the block enters the eviction order
   * alone, as not yet requested.
   */
  release(used: boolean): void;
}

/** A block served to a peer. It is not moved, changed or evicted until `release`. */
export interface Loan extends Omit<PulledBlock, "namespace"> {
  readonly offset: number;
  readonly generation: bigint;
  release(): void;
}

/**
 * `absent`: not in this namespace on this host. `busy`: not available now (RAM is full, or the disk
 * is slow).
 */
export type Lent = Loan | "absent" | "busy";

export interface BlockCopies {
  /** Bits of `Tier`: RAM, and SSD if it is readable; 0 for none. */
  readonly tiers: number;
  readonly bytes: number;
  /**
   * Generation of the copy in RAM; 0 if there is none. 1 if `tiers` is 0 and the block is being
   * written, or an engine of this host has announced it.
   */
  readonly generation: bigint;
  readonly checksum: bigint;
}

export interface FoundBlock extends BlockCopies {
  readonly namespace: Uint8Array;
  readonly digest: Uint8Array;
  readonly layer: number;
}

/** Reason why a block gets no slot. */
export type SlotRefusal = "present" | "full" | "tooLong" | "removed";

/** Outcome of the fetch of one block from peers. */
export type FetchOutcome =
  | { readonly kind: "ok"; readonly arrival: Arrival }
  | { readonly kind: "miss" | "full" | "late" };

export interface FetchOptions {
  readonly deadlineMs: number;
  /** If a block is not available, the blocks after it are not needed. */
  readonly stopAtMiss: boolean;
  readonly signal: AbortSignal;
  /** Workers that reported the blocks. They are asked in any case. */
  readonly sources?: readonly string[];
}

/** `coming`: the block is being written or computed there. */
export type SourceHas = "here" | "coming" | "absent";

/** Peers as a tier below SSD, implemented by `src/peers`. The store works without one. */
export interface PeerTier {
  /**
   * Length of the leading run of blocks, of the `count` after the first `from` keys (eight words
   * each), that peers announced and can deliver sooner than an engine would compute them. Answers
   * synchronously from the local index; 0 is always correct.
   */
  promising(namespace: NamespaceIndex, keys: Uint32Array, from: number, count: number): number;
  /**
   * State of the blocks at this worker; null if the worker is unknown or did not answer. If the
   * method is absent, workers cannot be asked.
   */
  whatHas?(
    worker: string,
    namespace: NamespaceIndex,
    blocks: readonly { readonly digest: Uint8Array; readonly layer: number }[],
    options: { readonly deadlineMs: number; readonly signal: AbortSignal },
  ): Promise<readonly SourceHas[] | null>;
  /**
   * Fetches the blocks. Resolves with one outcome per block, in order, by the deadline at the
   * latest.
   */
  fetch(
    namespace: NamespaceIndex,
    blocks: readonly { readonly digest: Uint8Array; readonly layer: number }[],
    options: FetchOptions,
  ): Promise<FetchOutcome[]>;
}

/** Maximum number of aliases sent with a block. */
export const NAMES_MAX = 8;
const HASH_BYTES = 8;
const PAGE_KEY_BYTES = 32;

/** Attributes of the requested block. */
interface RequestedBlock {
  readonly digest: Uint8Array;
  readonly layer: number;
  /** 32 bytes; null if this process has no number for the namespace. */
  readonly namespace: Uint8Array | null;
  /** Length of the slot. */
  readonly bytes: number;
}

/**
 * The reason to reject a received block, or null. Checks that it is the requested block, fits its
 * slot, matches the sender's checksum and has well-formed attributes.
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
