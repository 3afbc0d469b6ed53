import {
  assert,
  BlockFlag,
  BlockOutcome,
  DIGEST_BYTES,
  type NamespaceIndex,
  NO_NODE,
  type NodeId,
} from "../core/index.ts";
import { MAC_BYTES } from "../native/index.ts";
import { type AcquireRequest, Acquiring, COMING } from "./acquiring.ts";
import type { AddressBatch, HandleBatch } from "./batches.ts";
import { ANY_ZONE, type BlockTable, NODES_PER_ALIAS_MAX, TIERS_ALL, Tier } from "./blocks/index.ts";
import type { EngineMember } from "./engines/engines.ts";
import { Lookup, type LookupQuery, type LookupState, matchBlocks } from "./engines/lookup.ts";
import type { SessionPage } from "./pins/index.ts";
import { type RamVerdict, ReportBudget } from "./ram-check.ts";
import { commitSlots, isWhole, Reservation } from "./reservation.ts";
import { type CopyEnd, type CopySlot, type CopySource, SlotCopies } from "./slot-copies.ts";
import type { TieredStore } from "./tiered-store.ts";

export interface EngineSessionOptions {
  readonly namespace: NamespaceIndex;
  /** Maximum number of slot references of the session at a time. */
  readonly handlesMax: number;
  /** Byte limit that this session shares with other sessions. Default: no limit. */
  readonly share?: SlotShare;
}

/** Byte limit on the slots that several sessions reference together. */
export interface SlotShare {
  /** Returns whether a session may reference another slot of this many bytes. */
  mayTake(bytes: number): boolean;
  /** Adds the bytes of a slot that a session has started to reference. */
  took(bytes: number): void;
  /** Subtracts the bytes of a slot that its session no longer accesses. */
  gave(bytes: number): void;
}

export interface AcquireOptions {
  /** Bit mask of the tiers that the request may use; 0 means all. */
  readonly tiers: number;
  /** Milliseconds after which a block that has not arrived is answered as `late`. */
  readonly deadlineMs: number;
  /** If true, all blocks after the first unavailable one are answered as `skipped`. */
  readonly stopAtMiss: boolean;
  /** Namespace of the blocks. Default: the session's own namespace. */
  readonly namespace?: NamespaceIndex;
}

export interface SessionStatus {
  readonly known: boolean;
  readonly blocks: number;
  readonly bytes: number;
}

/** Slot handles as columns: entry `i` of both columns is handle `i`. */
export interface SlotNames {
  readonly slot: Uint32Array;
  readonly generation: Uint32Array;
}

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
export class StoreEngineSession {
  readonly #store: TieredStore;
  readonly #namespace: NamespaceIndex;
  readonly #slots: SlotRefs;
  readonly #gpu: Set<NodeId>;
  readonly #reservation: Reservation;
  readonly #acquiring: Acquiring;
  readonly #lookups = new Set<Lookup>();
  readonly #reports: ReportBudget;
  #over = false;

  constructor(store: TieredStore, { namespace, handlesMax, share }: EngineSessionOptions) {
    this.#store = store;
    this.#namespace = namespace;
    this.#slots = new SlotRefs(store, namespace, handlesMax, share);
    this.#gpu = store.mirror.openWindow();
    this.#reservation = new Reservation(store, this.#slots);
    this.#acquiring = new Acquiring(this.#slots);
    this.#reports = new ReportBudget(store.clock);
  }

  /**
   * Number of slot references of the session, reserved and acquired together. A slot acquired twice
   * counts twice.
   */
  get held(): number {
    return this.#slots.count;
  }

  /** The engine to which the connection belongs. */
  get engine(): EngineMember {
    return this.#slots.engine;
  }

  /**
   * Starts a lookup of the leading blocks of a prefix. If the query asks for it, the lookup also
   * reads the blocks into RAM and reserves them for the engine. If the result's `isOver` is true,
   * the result is final; otherwise `done` resolves with the final result, and `onPartial` is called
   * as blocks arrive.
   */
  lookup(query: LookupQuery, onPartial: (state: LookupState) => void): Lookup {
    const store = this.#store;
    const { engines } = store;
    const lookup = new Lookup({ store, engines, member: this.engine, onPartial }, query);
    try {
      lookup.begin();
    } catch (error) {
      // Cancel, because no other code releases the blocks that the lookup has reserved so far.
      lookup.cancel();
      throw error;
    }
    if (lookup.isOver) return lookup;
    this.#lookups.add(lookup);
    const forget = () => void this.#lookups.delete(lookup);
    lookup.done.then(forget, forget);
    return lookup;
  }

  /** Completes all waiting lookups with the blocks found so far. */
  endLookups(): void {
    for (const lookup of [...this.#lookups]) lookup.end();
  }

  /**
   * Makes the session prefer slots near this NUMA node, to which the device that copies is
   * attached; null means no preference.
   */
  near(node: number | null): void {
    this.#slots.zone = this.#store.zoneNear(node);
  }

  /**
   * Returns the length of the leading run of blocks that are present on any tier of the bit mask
   * `tiers` (0 = all). Sets `best[i]` to the bit of the fastest tier that has block `i`, and to 0
   * after that run.
   */
  match(batch: AddressBatch, tiers: number, best: Uint8Array): number {
    return matchBlocks(this.#store, this.#namespace, batch, tiers, best);
  }

  /**
   * Reserves a slot for each block and sets its outcome: `ok` (slot to write), `present` (already
   * stored), `pending` (another writer writes it), `full` (no room), `tooLarge` or `rejected`.
   * `namespace` defaults to the session's own.
   */
  reserve(batch: AddressBatch, out: HandleBatch, namespace = this.#namespace): void {
    this.#reservation.reserve(batch, out, namespace);
  }

  /**
   * Publishes written slots. Outcomes: `ok`, `corrupt` (the checksum or MAC is wrong; the slot is
   * released) or `stale`. Returns null if `handles` already has the outcomes. Otherwise another
   * thread hashes the bytes after the device copies in progress have ended, and the caller must not
   * change `handles` until the promise resolves.
   */
  commit(handles: HandleBatch): Promise<void> | null {
    const refs: (SlotRef | null)[] = [];
    for (let i = 0; i < handles.count; i++) {
      const ref = this.#slots.written(handles, i);
      if (ref === null) handles.outcome[i] = BlockOutcome.stale;
      else ref.committing = true;
      refs.push(ref);
    }
    const commit = () => commitSlots(this.#store, handles, refs, (ref) => this.#slots.forget(ref));
    const copied = refs.filter((ref) => ref?.copies?.underWay === true);
    if (copied.length === 0) return commit();
    return Promise.all(copied.map((ref) => ref!.copies!.over())).then(async () => {
      await commit();
    });
  }

  /**
   * Returns the slot of handle `i` as the target of a device copy, or null if the handle is not a
   * reserved slot. If the copy ends with anything but `done`, a commit of the slot answers
   * `corrupt`.
   */
  copyTarget(handles: SlotNames, i: number): CopySlot | null {
    const ref = this.#slots.written(handles, i);
    return ref === null ? null : this.#slots.copyTarget(ref);
  }

  /**
   * Returns the slot of handle `i` as the source of a device copy, or null if the handle is not an
   * acquired block.
   */
  copySource(handles: SlotNames, i: number): CopySource | null {
    const ref = this.#slots.find(handles, i);
    return ref === null || ref.reads === 0 ? null : this.#slots.copySource(ref);
  }

  /** Releases reserved slots without publishing them. Outcome per handle: `ok` or `stale`. */
  abort(handles: HandleBatch): void {
    for (let i = 0; i < handles.count; i++) {
      const ref = this.#slots.written(handles, i);
      handles.outcome[i] = ref === null ? BlockOutcome.stale : BlockOutcome.ok;
      if (ref !== null) this.#slots.abort(ref);
    }
  }

  /**
   * Adds a read reference to each block that is available. Outcomes: `ok` with slot, length and
   * checksum; `miss`; `late` (did not arrive before the deadline); `full` (no room in RAM);
   * `skipped`; or `rejected`. Returns null if `out` already has the result. Otherwise some blocks
   * are read from SSD or fetched from peers: the promise resolves with the result, and the caller
   * may reuse `batch` and `out` meanwhile.
   */
  acquire(
    batch: AddressBatch,
    options: AcquireOptions,
    out: HandleBatch,
  ): Promise<HandleBatch> | null {
    const { table, found } = this.#store;
    const { namespace = this.#namespace } = options;
    const tiers = options.tiers === 0 ? TIERS_ALL : options.tiers;
    const request: AcquireRequest = {
      batch,
      namespace,
      tiers,
      out,
      coming: [],
      reads: [],
      fetches: [],
      promisedTo: 0,
      vainLooks: 0,
    };
    let skip = false;
    out.count = batch.count;
    out.waitedFor = 0;
    // One call for the whole batch lets the processor overlap the cache misses of the table
    // lookups.
    table.findMany(batch.keys, batch.count, found);
    for (let i = 0; i < batch.count; i++) {
      const outcome: number = skip
        ? BlockOutcome.skipped
        : this.#acquireOne(found[i] as NodeId, i, request);
      out.outcome[i] = outcome;
      skip ||= options.stopAtMiss && outcome !== BlockOutcome.ok && outcome !== COMING;
    }
    if (request.coming.length > 0) return this.#acquiring.finish(found, request, options);
    this.#slots.answered(found, out);
    return null;
  }

  /**
   * Acquires one block: returns its outcome, or COMING if the block has to be read from SSD or
   * fetched from a peer first.
   */
  #acquireOne(node: NodeId, i: number, request: AcquireRequest): number {
    const { table } = this.#store;
    if (node === NO_NODE) return this.#acquiring.fetch(i, request);
    // Answer a miss here: a key that another namespace uses must not be fetched from peers either.
    if (table.namespaceOf(node) !== request.namespace) return BlockOutcome.miss;
    if (!table.isResident(node, Tier.ram)) return this.#acquiring.read(node, i, request);
    return (request.tiers & Tier.ram) === 0
      ? BlockOutcome.miss
      : this.#slots.grant(node, i, request.out);
  }

  /**
   * Releases acquired blocks, from last to first, so that the eviction order sees parents as newer
   * than their children.
   */
  release(handles: HandleBatch): void {
    for (let i = handles.count - 1; i >= 0; i--) {
      const ref = this.#slots.find(handles, i);
      if (ref === null || ref.reads === 0) {
        handles.outcome[i] = BlockOutcome.stale;
        continue;
      }
      handles.outcome[i] = BlockOutcome.ok;
      this.#slots.giveBack(ref);
    }
  }

  /**
   * Releases blocks whose copies failed verification at the engine, and checks their bytes in RAM.
   * Outcomes: `stale`; `corrupt` (the bytes in RAM are damaged, and the block was removed from
   * RAM); `ok` (the bytes are correct, or were not checked). Returns null if `handles` already has
   * the outcomes. Otherwise the caller must not change `handles` until the promise resolves.
   */
  report(handles: HandleBatch): Promise<void> | null {
    const judged: Promise<void>[] = [];
    for (let i = handles.count - 1; i >= 0; i--) {
      const ref = this.#slots.find(handles, i);
      if (ref === null || ref.reads === 0) {
        handles.outcome[i] = BlockOutcome.stale;
        continue;
      }
      handles.outcome[i] = BlockOutcome.ok;
      const verdict = this.#store.checks.report(ref.node, ref, this.#reports);
      this.#slots.giveBack(ref);
      const judge = (is: RamVerdict) => {
        if (is === "damaged") handles.outcome[i] = BlockOutcome.corrupt;
      };
      judged.push(verdict.then(judge));
    }
    return judged.length === 0 ? null : Promise.all(judged).then(() => undefined);
  }

  /**
   * Records that these blocks are in the engine's GPU memory, so that `match` and the router find
   * them there.
   */
  gpuStored(batch: AddressBatch, out: HandleBatch): void {
    const { mirror, table } = this.#store;
    out.count = batch.count;
    for (let i = 0; i < batch.count; i++) {
      const { outcome, node } = mirror.stored(this.#gpu, this.#namespace, batch, i);
      out.outcome[i] = outcome;
      if (node === NO_NODE || (batch.flags[i] & BlockFlag.aliasGiven) === 0) continue;
      const added = table.addAlias(node, batch.aliasLo[i], batch.aliasHi[i]);
      if (added === "added") this.#store.ssd?.aliased(node);
    }
  }

  gpuEvicted(batch: AddressBatch, out: HandleBatch): void {
    out.count = batch.count;
    for (let i = 0; i < batch.count; i++) {
      out.outcome[i] = this.#store.mirror.evicted(this.#gpu, batch, i);
    }
  }

  /**
   * Makes the first block of `batch` the last block of the session: locks it, then releases the
   * lock on the previous one. Returns `ok`, `miss` (the block is not in RAM or on SSD) or
   * `rejected`.
   */
  sessionCommit(session: bigint, batch: AddressBatch): number {
    const { table, sessions } = this.#store;
    if (session === 0n) return BlockOutcome.rejected;
    const node = this.#visible(batch, 0);
    const below = Tier.ram | Tier.ssd;
    if (node === NO_NODE || (table.residencyOf(node) & below) === 0) return BlockOutcome.miss;
    const outcome = sessions.commit(this.#namespace, session, node);
    return outcome === "ok" ? BlockOutcome.ok : BlockOutcome.rejected;
  }

  sessionRelease(session: bigint): number {
    const outcome = this.#store.sessions.release(this.#namespace, session);
    return outcome === "ok" ? BlockOutcome.ok : BlockOutcome.miss;
  }

  sessionStatus(session: bigint): SessionStatus {
    const state = this.#store.sessions.state(this.#namespace, session);
    if (state === null) return { known: false, blocks: 0, bytes: 0 };
    return { known: true, ...state.ram };
  }

  /**
   * Returns one page of the namespace's sessions, beginning after cursor `after`. `session`: return
   * only this session; 0 means all.
   */
  sessionList(session: bigint, after: number, max: number): SessionPage {
    const { sessions } = this.#store;
    const namespace = this.#namespace;
    if (session === 0n) return sessions.list({ namespace, after, max });
    const found = sessions.find(session).filter((info) => info.namespace === namespace);
    return { sessions: found, next: null };
  }

  /**
   * Adds one alias to each block: a 64-bit engine hash, or, with `sha256`, a page key of 32 bytes.
   */
  alias(batch: AddressBatch, aliases: Uint8Array, sha256: boolean, out: HandleBatch): void {
    const { table } = this.#store;
    const words = new DataView(aliases.buffer, aliases.byteOffset);
    out.count = batch.count;
    for (let i = 0; i < batch.count; i++) {
      const node = this.#visible(batch, i);
      out.outcome[i] = BlockOutcome.miss;
      if (node === NO_NODE) continue;
      const at = i * 32;
      const added = sha256
        ? table.addSha256(node, aliases, at)
        : table.addAlias(node, words.getUint32(at, true), words.getUint32(at + 4, true));
      if (added === "added") this.#store.ssd?.aliased(node);
      out.outcome[i] = added === "full" ? BlockOutcome.rejected : BlockOutcome.ok;
    }
  }

  /**
   * Looks up `count` engine hashes (u64 little-endian) and writes the digests of their blocks to
   * `digests`, 32 bytes each. A hash that is unknown in this namespace and layer gets zeros.
   */
  resolve(hashes: Uint8Array, count: number, layer: number, digests: Uint8Array): void {
    resolveHashes(this.#store.table, this.#namespace, layer, { hashes, count, digests });
  }

  /** Returns the node of block `i` if it belongs to this namespace; otherwise NO_NODE. */
  #visible(batch: AddressBatch, i: number): NodeId {
    const { table } = this.#store;
    const node = table.find(batch.keys, i * 8);
    return node !== NO_NODE && table.namespaceOf(node) === this.#namespace ? node : NO_NODE;
  }

  /**
   * Ends the session while its process may still access the slots. Call when the connection has
   * closed. Acquired blocks stay locked, blocks that were being written leave the block table, and
   * no slot of the session is reused before `buried`.
   */
  abandon(): void {
    if (this.#over) return;
    this.#over = true;
    this.#store.mirror.closeWindow(this.#gpu);
    this.#acquiring.end();
    for (const lookup of [...this.#lookups]) lookup.cancel();
    this.engine.leave();
    this.#slots.quarantine();
  }

  /** Releases all slots of the abandoned session. Call when its process has exited. */
  buried(): void {
    assert(this.#over, "an engine session is abandoned before it is buried");
    this.#slots.bury();
  }
}

/** The public methods of `StoreEngineSession`. */
export type EngineSession = Pick<StoreEngineSession, keyof StoreEngineSession>;

/**
 * Writes to `digests` the digests of the blocks with `count` 64-bit engine hashes (little-endian).
 * If several blocks of the namespace and layer have a hash, the first one counts. An unknown hash
 * gets zeros.
 */
function resolveHashes(
  table: BlockTable,
  namespace: NamespaceIndex,
  layer: number,
  { hashes, count, digests }: { hashes: Uint8Array; count: number; digests: Uint8Array },
): void {
  const words = new DataView(hashes.buffer, hashes.byteOffset);
  const found = new Int32Array(NODES_PER_ALIAS_MAX);
  const isOurs = (node: number) =>
    table.namespaceOf(node as NodeId) === namespace && table.layerOf(node as NodeId) === layer;
  for (let i = 0; i < count; i++) {
    const low = words.getUint32(i * 8, true);
    const named = table.nodesOfAlias(low, words.getUint32(i * 8 + 4, true), found);
    const node = found.subarray(0, named).find(isOurs) ?? NO_NODE;
    const at = i * DIGEST_BYTES;
    if (node === NO_NODE) digests.fill(0, at, at + DIGEST_BYTES);
    else table.readDigest(node as NodeId, digests, at);
  }
}

const NO_LIMIT: SlotShare = { mayTake: () => true, took: () => undefined, gave: () => undefined };

/** The slot references of one engine session, with their count and byte limits. */
export class SlotRefs {
  readonly store: TieredStore;
  readonly namespace: NamespaceIndex;
  /**
   * The engine that owns the session. `grant` turns RAM reservations of this engine into slot
   * references.
   */
  readonly engine: EngineMember;
  /**
   * Number of blocks being read or fetched for this session. Counted against the limit, since each
   * becomes a slot reference when it arrives.
   */
  coming = 0;
  /** Preferred allocator zone for new slots of this session. */
  zone: number = ANY_ZONE;
  readonly #max: number;
  readonly #share: SlotShare;
  /** References by slot number. A session either writes or reads a slot, never both. */
  readonly #refs = new Map<number, SlotRef>();
  /**
   * Slots whose write was never finished, after the session was abandoned. The process may still
   * write to them, so they are not reused yet.
   */
  readonly #aside = new Set<SlotRef>();
  /** True after the session's process has exited. */
  #buried = false;
  #size = 0;

  constructor(
    store: TieredStore,
    namespace: NamespaceIndex,
    max: number,
    share: SlotShare = NO_LIMIT,
  ) {
    this.store = store;
    this.namespace = namespace;
    this.engine = store.engines.open();
    this.#max = max;
    this.#share = share;
  }

  get count(): number {
    return this.#size + this.coming + this.#aside.size;
  }

  /** Whether the session may hold one more slot reference. */
  get hasRoom(): boolean {
    return this.count < this.#max;
  }

  /** Returns the slot reference of handle `i`, or null if the handle is stale. */
  find(handles: SlotNames, i: number): SlotRef | null {
    const ref = this.#refs.get(handles.slot[i]);
    return ref?.generation === handles.generation[i] ? ref : null;
  }

  /**
   * Returns the slot reference of handle `i` if its slot is reserved and not being committed;
   * otherwise null.
   */
  written(handles: SlotNames, i: number): SlotRef | null {
    const ref = this.find(handles, i);
    return ref?.writing && !ref.committing ? ref : null;
  }

  mayTake(bytes: number): boolean {
    return this.#share.mayTake(this.store.slots.slotBytesFor(bytes));
  }

  #took(bytes: number): void {
    this.#share.took(this.store.slots.slotBytesFor(bytes));
  }

  #gave(bytes: number): void {
    this.#share.gave(this.store.slots.slotBytesFor(bytes));
  }

  keep(ref: SlotRef): void {
    this.#refs.set(ref.slot, ref);
    this.#took(ref.bytes);
    this.#size++;
  }

  forget(ref: SlotRef): void {
    this.#refs.delete(ref.slot);
    this.#gave(ref.bytes);
    this.#size--;
  }

  /**
   * Unlocks the node of a failed or aborted write, so that the node can be removed from the table.
   */
  dropWriter(ref: SlotRef): void {
    const { table, stats } = this.store;
    stats.abortedBlocks++;
    table.endWrite(ref.node);
    table.unlock(ref.node);
  }

  /**
   * Adds a read reference to a block in RAM and fills entry `i` of the reply. Returns the block's
   * outcome.
   */
  grant(node: NodeId, i: number, out: HandleBatch): number {
    const { table, slots } = this.store;
    const slot = table.slotOf(node);
    const ref = this.#refs.get(slot);
    const bytes = table.bytesOf(node);
    if (!this.hasRoom) return BlockOutcome.rejected;
    if (ref === undefined && !this.mayTake(bytes)) return BlockOutcome.full;
    if (!table.lock(node)) return BlockOutcome.rejected;
    this.engine.taken(node);
    const generation = table.slotGenerationOf(node);
    const offset = slots.offsetOf(slot);
    if (ref !== undefined) ref.reads++;
    else {
      this.#took(bytes);
      const state = { writing: false, committing: false, reads: 1, copies: null };
      this.#refs.set(slot, { node, slot, generation, offset, bytes, ...state });
    }
    this.#size++;
    slots.addReference(slot);
    out.slot[i] = slot;
    out.generation[i] = generation;
    out.bytes[i] = bytes;
    out.offset[i] = offset;
    const words = new Uint32Array(out.checksum.buffer, out.checksum.byteOffset + i * 8, 2);
    words[0] = table.checksumLoOf(node);
    words[1] = table.checksumHiOf(node);
    table.readMac(node, out.mac, i * MAC_BYTES);
    return BlockOutcome.ok;
  }

  /** Releases one read reference of a slot. */
  giveBack(ref: SlotRef): void {
    ref.reads--;
    this.#size--;
    if (ref.reads === 0) {
      this.#refs.delete(ref.slot);
      this.#gave(ref.bytes);
    }
    this.store.slots.dropReference(ref.slot);
    this.store.table.unlock(ref.node);
    this.store.ram.letGo(ref.node);
  }

  /**
   * Removes blocks whose write is unfinished from the block table. Keeps their slots from being
   * reused until `bury`, since the process may still write to them.
   */
  quarantine(): void {
    const { stats } = this.store;
    for (const ref of [...this.#refs.values()]) {
      // A commit has begun, so the bytes are complete: let it finish.
      if (!ref.writing || ref.committing) continue;
      this.#setAside(ref);
      stats.quarantinedSlots++;
    }
  }

  #setAside(ref: SlotRef): void {
    this.forget(ref);
    this.store.slots.quarantine(ref.slot);
    this.#aside.add(ref);
    this.#took(ref.bytes);
    this.dropWriter(ref);
  }

  /**
   * Releases a reserved slot without publishing it. If a device copy is in progress, releases the
   * slot when the copy ends.
   */
  abort(ref: SlotRef): void {
    if (ref.copies?.underWay || ref.copies?.leaked) {
      ref.copies.aborted = true;
      this.#setAside(ref);
      this.#freeIfIdle(ref);
      return;
    }
    this.forget(ref);
    this.store.slots.release(ref.slot);
    this.dropWriter(ref);
  }

  /** Returns the slot as the target of a device copy that its writer requested. */
  copyTarget(ref: SlotRef): CopySlot {
    const { offset, bytes } = ref;
    ref.copies ??= new SlotCopies();
    const { copies } = ref;
    copies.begin();
    const end = (how: CopyEnd) => {
      copies.end(how);
      this.#freeIfIdle(ref);
    };
    return { offset, bytes, end };
  }

  /**
   * Returns the slot as the source of a device copy and locks its block, or returns null if the
   * block's lock count is at its maximum.
   */
  copySource({ node, slot, offset, bytes }: SlotRef): CopySource | null {
    const { store } = this;
    if (!store.table.lock(node)) return null;
    store.slots.addReference(slot);
    const end = (how: CopyEnd) => {
      // The device may read the slot until this process exits, so the slot is never reused.
      if (how === "leaked") return;
      store.slots.dropReference(slot);
      store.table.unlock(node);
      store.ram.letGo(node);
    };
    const isRight = async () => {
      const isRight = await isWhole(store, node, offset, bytes);
      // If the bytes in RAM are damaged, remove the block, so that the next request gets a miss.
      if (!isRight) await store.checks.check(node, "gpu");
      return isRight;
    };
    return { offset, bytes, end, isWhole: isRight };
  }

  #freeIfIdle(ref: SlotRef): void {
    const { copies } = ref;
    const mayGo = this.#aside.has(ref) && (this.#buried || copies?.aborted === true);
    if (!mayGo || copies?.underWay) return;
    this.#aside.delete(ref);
    this.#gave(ref.bytes);
    if (!copies?.leaked) this.store.slots.bury(ref.slot);
  }

  /** Releases all slots of the session. Call when no process accesses them any more. */
  bury(): void {
    this.#buried = true;
    for (const ref of [...this.#aside]) this.#freeIfIdle(ref);
    for (const ref of [...this.#refs.values()].reverse()) {
      if (!ref.writing) while (ref.reads > 0) this.giveBack(ref);
      // The process that owned the GPU memory has exited, so the running copy may read freed
      // memory.
      else if (ref.copies?.underWay) ref.copies.failed = true;
    }
  }

  /**
   * Records the use of the acquired blocks, in the order of the request, and counts hits and
   * misses.
   */
  answered(nodes: Int32Array, out: HandleBatch): void {
    const { ram, stats } = this.store;
    const used: NodeId[] = [];
    for (let i = 0; i < out.count; i++) {
      const outcome = out.outcome[i];
      if (outcome === BlockOutcome.ok) used.push(nodes[i] as NodeId);
      else if (outcome === BlockOutcome.miss) stats.acquireMisses++;
    }
    stats.acquireHits += used.length;
    if (used.length > 0) ram.touch(used, "used");
  }
}

/**
 * A slot reference of an engine session. The session either writes the slot or has `reads` read
 * references to it.
 */
export interface SlotRef {
  readonly node: NodeId;
  readonly slot: number;
  readonly generation: number;
  readonly offset: number;
  readonly bytes: number;
  readonly writing: boolean;
  /**
   * True while the bytes are hashed for a commit. The slot can then be neither aborted nor
   * committed again.
   */
  committing: boolean;
  reads: number;
  /** Device copies into the slot; null if there were none. */
  copies: SlotCopies | null;
}
