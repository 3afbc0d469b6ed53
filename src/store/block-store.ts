import type { NamespaceIndex } from "../core/index.ts";
import type { AddressBatch, HandleBatch } from "./batches.ts";
import type { EngineMember } from "./engines/announcements.ts";
import type { Lookup, LookupState, LookupWish } from "./engines/lookup.ts";
import type { SessionPage } from "./pins/index.ts";
import type { LentBlock, LentSlot } from "./slot-refs.ts";

/** What engines may do with blocks below the GPU, whatever tiers lie behind it. */
export interface BlockStore {
  readonly arena: ArenaAccess;
  /** Bytes of the largest block that can be stored. */
  readonly blockBytesMax: number;
  /** Fills `keys` from `digests` and `layer`; with `parents`, `parentKeys` too. */
  deriveKeys(batch: AddressBatch, withParents: boolean): void;
  /** Whether RAM or SSD have the block of this namespace whose key's words begin at block `i`. */
  isStored(namespace: NamespaceIndex, keys: Uint32Array, i: number): boolean;
  /** One per engine connection. What it takes is given back through it alone. */
  openHolder(options: HolderOptions): Holder;
}

/** The shared memory behind the RAM tier. */
export interface ArenaAccess {
  readonly fd: number;
  readonly bytes: number;
  /** Bytes that are backed by memory and may hold blocks; grows until it is `bytes`. */
  readyBytes(): number;
}

export interface HolderOptions {
  readonly namespace: NamespaceIndex;
  /** Slots held at the same time, at most. */
  readonly handlesMax: number;
  /** What several holders may hold together. Default: no limit. */
  readonly share?: SlotShare;
}

/** Bytes of slots that several holders hold together, and how many they may. */
export interface SlotShare {
  /** Whether a slot of this many bytes may be taken now. */
  mayTake(bytes: number): boolean;
  /** A slot of this many bytes was taken. */
  took(bytes: number): void;
  /** A slot of this many bytes was given back, and is no longer touched by its holder. */
  gave(bytes: number): void;
}

export interface AcquireOptions {
  /** Tiers that may answer, as a bit mask; 0 = all. */
  readonly tiers: number;
  /** Milliseconds after which the rest is `late`. */
  readonly deadlineMs: number;
  /** After the first block that is not to be had, the rest is `skipped`. */
  readonly stopAtMiss: boolean;
  /** Namespace of the blocks. Default: the holder's own. */
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
 * One engine connection's hold on blocks. Promises:
 * - A block of another namespace is as if it were not there.
 * - What was reserved is seen by nobody before `commit` answered `ok` for it, and `commit` does so
 *   only after the bytes were hashed (and equal the writer's checksum where it gave one).
 * - What was acquired does not move, change or go until it is released.
 * - No call waits for room: without a free slot the outcome is `full`.
 * - Handles of another holder, of an earlier generation or never given out are `stale`.
 * - A slot that is lent is not freed, used again or published before the loan ends, whatever else
 *   is called: a commit waits for it, an abort takes effect behind it.
 */
export interface Holder {
  /** Slots held now, reserved and acquired together (a slot acquired twice counts twice). */
  readonly held: number;

  /** The engine that the connection is part of. */
  readonly engine: EngineMember;

  /**
   * How much of a prefix is there, brought to RAM and reserved for the engine if that is wanted.
   * `isOver` of the answer: it is known at once; else `done` says when. `onPartial` is called when
   * blocks have come meanwhile.
   */
  lookup(wish: LookupWish, onPartial: (state: LookupState) => void): Lookup;

  /** Lookups that wait are answered with what there is now. */
  endLookups(): void;

  /**
   * What it reserves from now on lies near this NUMA node where there is room, since the device
   * that copies is there; null: anywhere.
   */
  near(node: number | null): void;

  /**
   * Length of the leading run present on any tier of `tiers` (0 = all); `best[i]` is the best
   * tier's bit, 0 behind that run.
   */
  match(batch: AddressBatch, tiers: number, best: Uint8Array): number;

  /**
   * `ok` with a slot to write, or `present`, `pending`, `full`, `tooLarge`, `rejected`. The blocks
   * are of `namespace`, or of the holder's own.
   */
  reserve(batch: AddressBatch, out: HandleBatch, namespace?: NamespaceIndex): void;

  /**
   * Makes written slots visible: `ok`, `corrupt` (the slot is gone then), `stale`. Null where it
   * was done at once; else the bytes are hashed on another thread, after copies by devices that are
   * under way, and the batch must stay as it is until then.
   */
  commit(handles: HandleBatch): Promise<void> | null;

  /**
   * The slot of handle `i`, for a device to copy to; null where it is not one to be written now. A
   * copy that did not end `done` makes a commit of the slot answer `corrupt`.
   */
  lendWritten(handles: SlotNames, i: number): LentSlot | null;

  /** The slot of handle `i`, for a device to copy from; null where it was not acquired. */
  lendRead(handles: SlotNames, i: number): LentBlock | null;

  /** Gives reserved slots back unwritten. */
  abort(handles: HandleBatch): void;

  /**
   * `ok` with a slot to read, its length and checksum; or `miss`, `late` (its tier did not give it
   * within the deadline), `full` (no room in RAM to bring it to), `skipped`, `rejected`. Null where
   * `out` has the answer at once; else some blocks have to be brought from a slower tier, `batch`
   * and `out` are the caller's again, and the answer is what the promise resolves with.
   */
  acquire(
    batch: AddressBatch,
    options: AcquireOptions,
    out: HandleBatch,
  ): Promise<HandleBatch> | null;

  release(handles: HandleBatch): void;

  /**
   * As `release`, of blocks whose copies did not verify. Outcomes: `stale`; `corrupt`: the bytes in
   * RAM are damaged, and the block has left RAM; `ok`: they are right, or were not looked at. Null
   * where it was done at once; else the batch must stay as it is until then.
   */
  report(handles: HandleBatch): Promise<void> | null;

  /** The engine says what its GPU holds, so that `match` and the router know. */
  gpuStored(batch: AddressBatch, out: HandleBatch): void;
  gpuEvicted(batch: AddressBatch, out: HandleBatch): void;

  /**
   * Moves the session's lock forward to this block: the new lock is taken before the old one goes.
   */
  sessionCommit(session: bigint, batch: AddressBatch): number;
  sessionRelease(session: bigint): number;
  sessionStatus(session: bigint): SessionStatus;
  /** A page of the namespace's sessions after `after`; only this one unless `session` is 0. */
  sessionList(session: bigint, after: number, max: number): SessionPage;

  /** Gives blocks another name: 64-bit engine hashes, or SHA-256 page keys of 32 bytes each. */
  alias(batch: AddressBatch, aliases: Uint8Array, sha256: boolean, out: HandleBatch): void;

  /**
   * The other way round: `digests` receives 32 bytes for each of `count` engine hashes (u64
   * little-endian), zeros for one that nobody gave in this namespace and layer.
   */
  resolve(hashes: Uint8Array, count: number, layer: number, digests: Uint8Array): void;

  /**
   * The connection is over but its process may live and still touch what it held: reads stay
   * locked, half-written slots leave the tree, and none of these slots is reused before `buried`.
   */
  abandon(): void;

  /** The process is dead: everything it held is free again. */
  buried(): void;
}
