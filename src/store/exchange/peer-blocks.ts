import { DIGEST_BYTES, equalBytes, type NamespaceIndex, type NodeId } from "../../core/index.ts";

/** What is said of a block that came from a peer; see the frame of `src/peers`. */
export interface PulledBlock {
  readonly digest: Uint8Array;
  readonly layer: number;
  /** 32 bytes. */
  readonly namespace: Uint8Array;
  readonly bytes: number;
  /** XXH3-64 as the sender has it. */
  readonly checksum: bigint;
  /** 16 bytes under the key of the namespace; null: it has none. */
  readonly mac: Uint8Array | null;
  /** Zeros: it follows a block that its sender does not know; null: none. */
  readonly parent: Uint8Array | null;
  readonly transient: boolean;
  /** Of 8 bytes (engine hash) or 32 (page key). */
  readonly aliases: readonly Uint8Array[];
}

/**
 * A place in RAM for a block that is to come. The block is in nobody's way meanwhile: an engine
 * that writes it itself does so, and what came then is dropped. `commit` or `abandon` is called
 * exactly once, and only when nothing writes to the place any more.
 */
export interface Landing {
  /** In the arena. */
  readonly offset: number;
  /** Length of the place. */
  readonly bytes: number;
  /**
   * The one place where bytes from a peer are believed. `arrived` is the checksum of what lies in
   * the place. `ok`: the block is in RAM, locked until the arrival is released: this one, or the
   * one that an engine wrote meanwhile. `corrupt`: it is not what was asked for, or not what the
   * sender says; `why` for people. `unwanted`: it was removed here meanwhile, an engine is just
   * writing it, or the table has no entry for it.
   */
  commit(block: PulledBlock, arrived: bigint): Committed;
  abandon(): void;
}

export type Committed =
  | { readonly kind: "ok"; readonly arrival: Arrival }
  | { readonly kind: "corrupt" | "unwanted"; readonly why: string };

/** A block that is in RAM and stays there until `release`; a second call changes nothing. */
export interface Arrival {
  readonly node: NodeId;
  /**
   * `used`: a request took it. Otherwise it comes into the policy's order by itself, as something
   * that nobody has asked for yet.
   */
  release(used: boolean): void;
}

/** A block of this host that is lent to a peer: it does not move, change or go until `release`. */
export interface Loan extends Omit<PulledBlock, "namespace"> {
  readonly offset: number;
  readonly generation: bigint;
  release(): void;
}

/** `absent`: not here, or not in this namespace. `busy`: not now (RAM is full, the disk slow). */
export type Lent = Loan | "absent" | "busy";

export interface HeldCopy {
  /** Bits of `Tier`: RAM and SSD as far as they can be read; 0: nothing. */
  readonly tiers: number;
  readonly bytes: number;
  /**
   * Of the copy in RAM, as a loan has it; 0: none yet. 1 where `tiers` is 0: the block is being
   * written, or an engine here has announced it.
   */
  readonly generation: bigint;
  readonly checksum: bigint;
}

export interface FoundBlock extends HeldCopy {
  readonly namespace: Uint8Array;
  readonly digest: Uint8Array;
  readonly layer: number;
}

/** Why there is no place for a block. */
export type Unplaced = "present" | "full" | "tooLong" | "removed";

/**
 * What pulling and serving need of the store. Blocks of another namespace than the one named are as
 * if they were not there. Promises: nothing here waits for room, and nothing blocks the event loop.
 */
export interface PeerBlocks {
  /**
   * Room for a block of at most `bytes`; `present` where it is in RAM already (or on SSD and can be
   * read), `full` where RAM gives none, `tooLong` where that is no length that this arena takes,
   * `removed` where a command removed it here so lately that others may have yet to remove it.
   * Nothing that somebody keeps is let go of for it. `keep` (true unless given): whether it stays
   * in RAM behind the request that wants it; else it leaves when its last holder lets it go.
   */
  land(
    namespace: NamespaceIndex,
    digest: Uint8Array,
    layer: number,
    bytes: number,
    keep?: boolean,
  ): Landing | Unplaced;
  /**
   * Lends a block that is in RAM at once; one on SSD is brought up first, for `deadlineMs` at most
   * (`warm`: behind what engines want of the disk).
   */
  lend(
    namespace: NamespaceIndex,
    digest: Uint8Array,
    layer: number,
    options: { readonly deadlineMs: number; readonly warm: boolean },
  ): Lent | Promise<Lent>;
  has(
    namespace: NamespaceIndex,
    blocks: readonly { digest: Uint8Array; layer: number }[],
  ): HeldCopy[];
  /**
   * Blocks that an engine hash (8 bytes) or page key (32 bytes) leads to, `max` at most, of the
   * namespaces (keys) that `mayTell` is true of; others take no one's place.
   */
  find(name: Uint8Array, max: number, mayTell?: (namespace: Uint8Array) => boolean): FoundBlock[];
  /**
   * Keys (32 bytes each) of a namespace's blocks in RAM or on SSD, in slices that leave the loop to
   * others; `each` gets the key and must copy what it keeps.
   */
  eachKey(
    namespace: NamespaceIndex,
    each: (key: Uint8Array) => void,
    signal: AbortSignal,
  ): Promise<void>;
  /** Grows whenever a block of the namespace came to this host; what left is not counted. */
  changesOf(namespace: NamespaceIndex): number;
  /** The length that blocks of this namespace and layer had last; 0: none was seen. */
  usualBytes(namespace: NamespaceIndex, layer: number): number;
}

/** How a block that a request wants from other hosts ended. */
export type FetchOutcome =
  | { readonly kind: "ok"; readonly arrival: Arrival }
  | { readonly kind: "miss" | "full" | "late" };

export interface FetchOptions {
  readonly deadlineMs: number;
  /** The first that is not to be had ends the worth of those behind it. */
  readonly stopAtMiss: boolean;
  readonly signal: AbortSignal;
  /** Workers that said they have the blocks: they are asked whatever else is known. */
  readonly sources?: readonly string[];
}

/** `coming`: the block is being written there, or computed. */
export type SourceHas = "here" | "coming" | "absent";

/** Other hosts as a tier below SSD; `src/peers` is one, and none is needed. */
export interface PeerTier {
  /**
   * Whether it may pay to ask for the `count` blocks behind the first `from` of these keys (eight
   * words each): length of the leading run of them that other hosts are believed to have and that
   * comes sooner than an engine would compute it. At once, from what is known; 0 is always right.
   */
  promising(namespace: NamespaceIndex, keys: Uint32Array, from: number, count: number): number;
  /**
   * What this worker has of the blocks now; null: it is not known here, or did not answer. Absent:
   * nobody can be asked.
   */
  whatHas?(
    worker: string,
    namespace: NamespaceIndex,
    blocks: readonly { readonly digest: Uint8Array; readonly layer: number }[],
    options: { readonly deadlineMs: number; readonly signal: AbortSignal },
  ): Promise<readonly SourceHas[] | null>;
  /** One outcome for each block, in order; resolves at the latest with the deadline. */
  fetch(
    namespace: NamespaceIndex,
    blocks: readonly { readonly digest: Uint8Array; readonly layer: number }[],
    options: FetchOptions,
  ): Promise<FetchOutcome[]>;
}

/** Other names that come with a block, at most. */
export const NAMES_MAX = 8;
const HASH_BYTES = 8;
const PAGE_KEY_BYTES = 32;

/** What was asked for. */
interface AskedBlock {
  readonly digest: Uint8Array;
  readonly layer: number;
  /** 32 bytes; null: a namespace that this process gave no number. */
  readonly namespace: Uint8Array | null;
  /** At most. */
  readonly bytes: number;
}

/**
 * What is wrong with a block as it came, or null: it is the one that was asked for, no longer than
 * its place, what lies there has the checksum that its sender says, and what is said beside that
 * has the form it must have.
 */
export function faultOfPull(block: PulledBlock, arrived: bigint, asked: AskedBlock): string | null {
  if (!equalBytes(block.digest, asked.digest)) return "it is another block";
  if (block.layer >>> 0 !== asked.layer >>> 0) return "it is another layer";
  const isOurs = asked.namespace !== null && equalBytes(block.namespace, asked.namespace);
  if (!isOurs) return "it is of another namespace";
  if (!Number.isInteger(block.bytes) || block.bytes < 1) return "it has no length";
  if (block.bytes > asked.bytes) return "it is longer than what was asked for";
  if (block.checksum !== arrived) return "its bytes are not those its sender had";
  return faultOfNames(block);
}

function faultOfNames({ digest, parent, aliases }: PulledBlock): string | null {
  if (parent !== null) {
    if (parent.length !== DIGEST_BYTES) return "its parent has no name";
    if (equalBytes(parent, digest)) return "it is its own parent";
  }
  if (aliases.length > NAMES_MAX) return "it has too many names";
  const isName = ({ length }: Uint8Array) => length === HASH_BYTES || length === PAGE_KEY_BYTES;
  return aliases.every(isName) ? null : "one of its names is none";
}
