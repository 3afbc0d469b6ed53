import type { NamespaceIndex } from "../core/index.ts";
import type { AddressBatch, HandleBatch } from "./batches.ts";
import type { EngineMember } from "./engines/engines.ts";
import type { Lookup, LookupQuery, LookupState } from "./engines/lookup.ts";
import type { SessionPage } from "./pins/index.ts";
import type { CopySlot, CopySource } from "./slot-refs.ts";

/** Block operations of engines below the GPU, independent of the tiers. */
export interface BlockStore {
  readonly arena: ArenaAccess;
  /** Maximum block size in bytes. */
  readonly blockBytesMax: number;
  /** Derives `keys` from `digests` and `layer`; with `withParents`, also `parentKeys`. */
  deriveKeys(batch: AddressBatch, withParents: boolean): void;
  /** Whether RAM or SSD has block `i` of `keys` in this namespace. */
  isStored(namespace: NamespaceIndex, keys: Uint32Array, i: number): boolean;
  /** Opens the session of one engine connection. Only this session can release its slots. */
  openEngineSession(options: EngineSessionOptions): EngineSession;
}

/** Shared memory of the RAM tier. */
export interface ArenaAccess {
  readonly fd: number;
  readonly bytes: number;
  /** Bytes that are backed by memory and usable for blocks. Grows up to `bytes`. */
  readyBytes(): number;
}

export interface EngineSessionOptions {
  readonly namespace: NamespaceIndex;
  /** Maximum number of slot references at a time. */
  readonly handlesMax: number;
  /** Limit shared with other sessions. Default: no limit. */
  readonly share?: SlotShare;
}

/** Bytes of slots that several sessions use together, and their limit. */
export interface SlotShare {
  /** Whether a slot of this many bytes may be taken now. */
  mayTake(bytes: number): boolean;
  /** Adds a slot of this many bytes. */
  took(bytes: number): void;
  /** Subtracts a slot of this many bytes, which its session no longer touches. */
  gave(bytes: number): void;
}

export interface AcquireOptions {
  /** Tiers that may answer, as a bit mask; 0 means all. */
  readonly tiers: number;
  /** Time after which outstanding blocks are `late`. */
  readonly deadlineMs: number;
  /** If set, all blocks after the first unavailable one are `skipped`. */
  readonly stopAtMiss: boolean;
  /** Namespace of the blocks. Default: the session's own. */
  readonly namespace?: NamespaceIndex;
}

export interface SessionStatus {
  readonly known: boolean;
  readonly blocks: number;
  readonly bytes: number;
}

/** Columns that name slots: entry `i` is handle `i`. */
export type SlotNames = Pick<HandleBatch, "slot" | "generation">;

/**
 * The slot references of one engine connection. Guarantees:
 * - A block of another namespace is treated as absent.
 * - A reserved block is invisible until `commit` answers `ok` for it. `commit` hashes the bytes
 *   first and compares them with the writer's checksum if one is given.
 * - An acquired block is not moved, changed or evicted until it is released.
 * - No call waits for room: without a free slot the outcome is `full`.
 * - Handles of another session, of an earlier generation or never issued are `stale`.
 * - A slot with a device copy under way is not freed, reused or published before the copy ends: a
 *   commit waits for the copy, an abort takes effect after it.
 */
export interface EngineSession {
  /**
   * Number of slot references, reserved and acquired together. A slot acquired twice counts twice.
   */
  readonly held: number;

  /** The engine that the connection belongs to. */
  readonly engine: EngineMember;

  /**
   * Finds the leading blocks of a prefix, and on request reads them into RAM and reserves them for
   * the engine. If `isOver` of the answer is true, the answer is final; otherwise `done` resolves
   * with it, and `onPartial` reports blocks that have arrived meanwhile.
   */
  lookup(query: LookupQuery, onPartial: (state: LookupState) => void): Lookup;

  /** Answers all waiting lookups with their current state. */
  endLookups(): void;

  /**
   * Prefers slots near this NUMA node, where the device that copies is attached; null means
   * anywhere.
   */
  near(node: number | null): void;

  /**
   * Length of the leading run of blocks present on any tier of `tiers` (0 = all). `best[i]` is the
   * bit of the fastest tier, and 0 after that run.
   */
  match(batch: AddressBatch, tiers: number, best: Uint8Array): number;

  /**
   * Outcomes: `ok` with a slot to write, `present`, `pending`, `full`, `tooLarge` or `rejected`.
   * `namespace` defaults to the session's own.
   */
  reserve(batch: AddressBatch, out: HandleBatch, namespace?: NamespaceIndex): void;

  /**
   * Publishes written slots. Outcomes: `ok`, `corrupt` (the slot is released) or `stale`. Null
   * means that `handles` has the outcomes. Otherwise another thread hashes the bytes, after device
   * copies under way have ended, and the caller must not change the batch until the promise
   * resolves.
   */
  commit(handles: HandleBatch): Promise<void> | null;

  /**
   * The slot of handle `i`, as the target of a device copy; null if it is not a reserved slot. If
   * the copy does not end with `done`, a commit of the slot answers `corrupt`.
   */
  copyTarget(handles: SlotNames, i: number): CopySlot | null;

  /** The slot of handle `i`, as the source of a device copy; null if it was not acquired. */
  copySource(handles: SlotNames, i: number): CopySource | null;

  /** Releases reserved slots without publishing them. */
  abort(handles: HandleBatch): void;

  /**
   * Outcomes: `ok` with a slot to read, its length and checksum; `miss`; `late` (the tier missed
   * the deadline); `full` (no room in RAM); `skipped`; or `rejected`. Null means that `out` has the
   * answer. Otherwise some blocks have to be read from a slower tier: the caller may reuse `batch`
   * and `out`, and the promise resolves with the answer.
   */
  acquire(
    batch: AddressBatch,
    options: AcquireOptions,
    out: HandleBatch,
  ): Promise<HandleBatch> | null;

  release(handles: HandleBatch): void;

  /**
   * Releases blocks whose copies did not verify. Outcomes: `stale`; `corrupt`: the bytes in RAM are
   * damaged and the block was removed from RAM; `ok`: the bytes are correct, or were not checked.
   * Null means that `handles` has the outcomes. Otherwise the caller must not change the batch
   * until the promise resolves.
   */
  report(handles: HandleBatch): Promise<void> | null;

  /** Records blocks in the engine's GPU memory, for `match` and the router. */
  gpuStored(batch: AddressBatch, out: HandleBatch): void;
  gpuEvicted(batch: AddressBatch, out: HandleBatch): void;

  /**
   * Moves the session's lock to this later block. The new lock is taken before the old one is
   * released.
   */
  sessionCommit(session: bigint, batch: AddressBatch): number;
  sessionRelease(session: bigint): number;
  sessionStatus(session: bigint): SessionStatus;
  /** A page of the namespace's sessions after index `after`; only `session` unless it is 0. */
  sessionList(session: bigint, after: number, max: number): SessionPage;

  /** Adds an alias to each block: 64-bit engine hashes, or SHA-256 page keys of 32 bytes. */
  alias(batch: AddressBatch, aliases: Uint8Array, sha256: boolean, out: HandleBatch): void;

  /**
   * Looks up `count` engine hashes (u64 little-endian). `digests` receives 32 bytes for each, all
   * zero for a hash that is unknown in this namespace and layer.
   */
  resolve(hashes: Uint8Array, count: number, layer: number, digests: Uint8Array): void;

  /**
   * Call when the connection has closed but its process may still access its slots. Read slots stay
   * locked, unfinished writes leave the tree, and no slot of the session is reused before `buried`.
   */
  abandon(): void;

  /** Call when the process has exited. Releases all slots of the session. */
  buried(): void;
}
