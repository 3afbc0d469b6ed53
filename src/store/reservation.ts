import {
  BlockFlag,
  BlockOutcome,
  CommitFlag,
  type NamespaceIndex,
  NO_NODE,
  type NodeId,
} from "../core/index.ts";
import { MAC_BYTES, type MacBlock } from "../native/index.ts";
import { type AddressBatch, type HandleBatch, hasParent } from "./batches.ts";
import {
  InsertRefusal,
  type InsertResult,
  isRefusal,
  NO_SLOT,
  NodeFlag,
  Tier,
} from "./blocks/index.ts";
import type { SlotRef, SlotRefs } from "./engine-session.ts";
import type { TieredStore } from "./tiered-store.ts";

/** Maximum number of evictions per block to free a block table entry. */
const TABLE_RETRIES = 4;

/**
 * Reserves slots for the blocks of one request frame and inserts the blocks into the table as being
 * written.
 */
export class Reservation {
  readonly #store: TieredStore;
  readonly #holder: SlotRefs;
  /** Namespace of the request frame being processed. */
  #namespace = 0 as NamespaceIndex;
  /** Smallest block size, in bytes, for which no room was found in the frame being processed. */
  #fullFrom = Number.POSITIVE_INFINITY;
  /** True if eviction did not free a table entry in the frame being processed. */
  #tableFull = false;

  constructor(store: TieredStore, holder: SlotRefs) {
    this.#store = store;
    this.#holder = holder;
  }

  reserve(batch: AddressBatch, out: HandleBatch, namespace: NamespaceIndex): void {
    const known: NodeId[] = [];
    this.#namespace = namespace;
    this.#fullFrom = Number.POSITIVE_INFINITY;
    this.#tableFull = false;
    out.count = batch.count;
    for (let i = 0; i < batch.count; i++) {
      const outcome = this.#reserveOne(batch, i, out, known);
      out.outcome[i] = outcome;
      if (outcome === BlockOutcome.full) this.#store.stats.fullBlocks++;
    }
    if (known.length > 0) this.#use(known);
    this.#store.evictor.wake();
  }

  /** Unlocks blocks that were already present and records a use of each, as a read does. */
  #use(known: readonly NodeId[]): void {
    const { ram, table } = this.#store;
    for (let i = known.length - 1; i >= 0; i--) table.unlock(known[i]);
    ram.touch(known, "used");
  }

  #reserveOne(batch: AddressBatch, i: number, out: HandleBatch, known: NodeId[]): number {
    const { table, stats, blockBytesMax } = this.#store;
    const bytes = batch.bytes[i];
    if (bytes === 0) return BlockOutcome.rejected;
    if (bytes > blockBytesMax) return BlockOutcome.tooLarge;
    const found = table.find(batch.keys, i * 8);
    if (found !== NO_NODE) {
      // Answer `full`, so that the client cannot learn whether another namespace has the block.
      if (table.namespaceOf(found) !== this.#namespace) return BlockOutcome.full;
      if (table.isWriting(found)) return BlockOutcome.pending;
      if (table.isResident(found, Tier.ram)) {
        stats.presentBlocks++;
        // Lock until the end of the frame, so that no other block of the frame evicts it.
        if (table.lock(found)) known.push(found);
        return BlockOutcome.present;
      }
      const below = this.#reserveKnownBelow(found, bytes, known);
      if (below !== null) return below;
    }
    if (!this.#holder.hasRoom) return BlockOutcome.rejected;
    if (!this.#holder.mayTake(bytes)) return BlockOutcome.full;
    return this.#take(batch, i, out);
  }

  /**
   * Returns the outcome for a block that is not in RAM: `present` if SSD has it, `pending` while an
   * unusable copy on SSD is in use, or null if a slot has to be reserved. Discards a copy on SSD
   * that cannot be read or has another length.
   */
  #reserveKnownBelow(node: NodeId, bytes: number, known: NodeId[]): number | null {
    const { table, ssd, stats } = this.#store;
    if (ssd === null || !table.isResident(node, Tier.ssd)) return null;
    if (ssd.readable && table.bytesOf(node) === bytes) {
      stats.presentBlocks++;
      if (table.lock(node)) known.push(node);
      return BlockOutcome.present;
    }
    // A read in progress still uses the old length of the block.
    if (table.isProtected(node, Tier.ssd)) return BlockOutcome.pending;
    ssd.replaced(node);
    return null;
  }

  #take(batch: AddressBatch, i: number, out: HandleBatch): number {
    const { slots, table } = this.#store;
    const parent = hasParent(batch, i) ? this.#foundParent(batch, i) : NO_NODE;
    // Lock the parent: making room for a block must not evict its parent.
    if (parent !== NO_NODE && !table.lock(parent)) return BlockOutcome.rejected;
    const slot = this.#takeSlot(batch, i, parent !== NO_NODE || !hasParent(batch, i));
    const outcome = slot === NO_SLOT ? BlockOutcome.full : this.#fill(batch, i, slot, out);
    if (slot !== NO_SLOT && outcome !== BlockOutcome.ok) slots.release(slot);
    if (parent !== NO_NODE) table.unlock(parent);
    return outcome;
  }

  /**
   * Returns the node of the block's parent if it is stored on any tier or being written; otherwise
   * NO_NODE.
   */
  #foundParent(batch: AddressBatch, i: number): NodeId {
    const { table } = this.#store;
    const node = table.find(batch.parentKeys, i * 8);
    if (node === NO_NODE || table.namespaceOf(node) !== this.#namespace) return NO_NODE;
    return table.residencyOf(node) !== 0 || table.isWriting(node) ? node : NO_NODE;
  }

  /**
   * Reserves a slot for block `i`. `reachable`: false if the block's parent is absent, so that
   * prefix lookups cannot find the block. Such a block may take a free slot, but no other block is
   * evicted for it.
   */
  #takeSlot(batch: AddressBatch, i: number, reachable: boolean): number {
    const { ram, slots } = this.#store;
    const bytes = batch.bytes[i];
    if (bytes >= this.#fullFrom) return NO_SLOT;
    const { zone } = this.#holder;
    const slot = reachable ? ram.takeSlot(bytes, true, zone) : slots.reserve(bytes, zone);
    // Slots are only taken during a frame, so a size that does not fit now will not fit later.
    if (slot === NO_SLOT && reachable) this.#fullFrom = bytes;
    return slot;
  }

  /**
   * Inserts block `i` into the table with this slot. On any outcome but `ok`, the caller still owns
   * the slot.
   */
  #fill(batch: AddressBatch, i: number, slot: number, out: HandleBatch): number {
    const { slots, table, stats } = this.#store;
    const node = this.#insert(batch, i);
    if (isRefusal(node)) {
      if (node === InsertRefusal.busy) return BlockOutcome.pending;
      return node === InsertRefusal.cycle ? BlockOutcome.rejected : BlockOutcome.full;
    }
    const generation = slots.generationOf(slot);
    const bytes = batch.bytes[i];
    table.lock(node);
    table.setSlot(node, slot, generation);
    slots.setNode(slot, node);
    const flags = batch.flags[i];
    // Set the flag, but never clear it: a command may have set it before.
    if ((flags & BlockFlag.transient) !== 0) table.setFlag(node, NodeFlag.transient, true);
    if ((flags & BlockFlag.aliasGiven) !== 0) {
      table.addAlias(node, batch.aliasLo[i], batch.aliasHi[i]);
    }
    const offset = slots.offsetOf(slot);
    const state = { writing: true, committing: false, reads: 0, copies: null };
    this.#holder.keep({ node, slot, generation, offset, bytes, ...state });
    stats.reservedBlocks++;
    out.slot[i] = slot;
    out.generation[i] = generation;
    out.bytes[i] = slots.slotBytesOf(slot);
    out.offset[i] = offset;
    return BlockOutcome.ok;
  }

  #insert(batch: AddressBatch, i: number): InsertResult {
    const tries = this.#tableFull ? 0 : TABLE_RETRIES;
    const node = insertWithRoom(this.#store, batch, i, this.#namespace, tries);
    // More evictions for other blocks of this frame would not free a table entry either.
    this.#tableFull = node === InsertRefusal.full;
    return node;
  }
}

/**
 * Inserts block `i` into the table as being written. If the table is full, evicts up to `tries` old
 * blocks. A locked parent is not evicted.
 */
export function insertWithRoom(
  store: TieredStore,
  batch: AddressBatch,
  i: number,
  namespace: NamespaceIndex,
  tries = TABLE_RETRIES,
): InsertResult {
  const parent = hasParent(batch, i);
  let node = store.table.insertWriting(batch, i, namespace, parent);
  for (let tried = 0; node === InsertRefusal.full && tried < tries; tried++) {
    if (!dropForEntry(store)) break;
    node = store.table.insertWriting(batch, i, namespace, parent);
  }
  return node;
}

/**
 * Evicts a block to free a table entry. Tries SSD first, because a block that leaves RAM keeps its
 * entry while SSD has it.
 */
function dropForEntry({ ram, ssd }: TieredStore): boolean {
  return ssd?.dropOldest() === true || ram.dropOne() === "dropped";
}

/**
 * Total bytes up to which a commit is hashed on the event loop. Takes about ten microseconds, less
 * than waking a thread.
 */
const INLINE_BYTES = 256 * 1024;

/**
 * Verifies and publishes written slots and sets the outcomes in `handles`. `refs[i]` belongs to
 * handle `i`; null if the handle was stale. Calls `forget` when a slot no longer belongs to its
 * writer. Returns null if the commit finished synchronously.
 */
export function commitSlots(
  store: TieredStore,
  handles: HandleBatch,
  refs: readonly (SlotRef | null)[],
  forget: (ref: SlotRef) => void,
): Promise<void> | null {
  // Kept in the order of the frame, although hashes finish in any order.
  const stored: NodeId[] = refs.map(() => NO_NODE);
  const finish = (ref: SlotRef, i: number, checksum: bigint | null, macFault: string | null) => {
    forget(ref);
    const given = (handles.flags[i] & CommitFlag.checksumGiven) !== 0;
    const isSum = checksum !== null && (!given || handles.checksum[i] === checksum);
    const right = isSum && macFault === null;
    handles.outcome[i] = right ? BlockOutcome.ok : BlockOutcome.corrupt;
    if (right) stored[i] = publish(store, ref, checksum, macOf(handles, i));
    else giveUp(store, ref);
  };
  const bytes = refs.reduce((sum, ref) => sum + (ref?.bytes ?? 0), 0);
  if (bytes <= INLINE_BYTES) {
    refs.forEach((ref, i) => {
      if (ref === null) return;
      const { offset, bytes, copies } = ref;
      const sum = copies?.failed ? null : store.region.checksum(offset, bytes);
      const namespace = store.table.namespaceOf(ref.node);
      const block = () => macBlockOf(store, ref.node, offset, bytes);
      finish(ref, i, sum, store.macs.faultOf(namespace, macOf(handles, i), block));
    });
    settle(store, stored);
    return null;
  }
  const hashed = refs.map(async (ref, i) => {
    if (ref === null) return;
    const { node, offset, bytes } = ref;
    const sum = ref.copies?.failed ? null : await checksumLater(store, ref);
    const block = () => macBlockOf(store, node, offset, bytes);
    const namespace = store.table.namespaceOf(node);
    finish(ref, i, sum, await store.macs.faultLater(namespace, macOf(handles, i), block));
  });
  return Promise.all(hashed).then(() => settle(store, stored));
}

function macOf({ mac }: HandleBatch, i: number): Uint8Array {
  return mac.subarray(i * MAC_BYTES, (i + 1) * MAC_BYTES);
}

/** Returns the block at `offset` of the arena as input for MAC functions. */
export function macBlockOf(
  { table, region }: Pick<TieredStore, "table" | "region">,
  node: NodeId,
  offset: number,
  bytes: number,
): MacBlock {
  return { region, offset, bytes, digest: table.digestOf(node), layer: table.layerOf(node) };
}

/** Computes XXH3-64 of the bytes on a native thread. Resolves to null if the agent is stopping. */
export async function checksumLater(
  store: TieredStore,
  { offset, bytes }: Pick<SlotRef, "offset" | "bytes">,
): Promise<bigint | null> {
  while (true) {
    const done = await store.queue.checksum(store.region, offset, bytes);
    if (done.ok) return done.result;
    if (done.status !== "full") return null;
    // Other commits occupy the whole submission ring: wait until there is room.
    await store.queue.room();
  }
}

/** Returns whether the bytes at `offset` match the node's committed checksum. */
export async function isWhole(
  store: TieredStore,
  node: NodeId,
  offset: number,
  bytes: number,
): Promise<boolean> {
  const { table, region } = store;
  const wanted = table.checksumOf(node);
  if (bytes <= INLINE_BYTES) return region.checksum(offset, bytes) === wanted;
  return (await checksumLater(store, { offset, bytes })) === wanted;
}

function publish(store: TieredStore, ref: SlotRef, checksum: bigint, mac: Uint8Array): NodeId {
  const { table, slots, stats } = store;
  // Discard the copy on SSD under this key: the new bytes in RAM replace it.
  if (table.isResident(ref.node, Tier.ssd)) store.ssd?.replaced(ref.node);
  const lo = Number(checksum & 0xffff_ffffn);
  table.setChecksum(ref.node, lo, Number(checksum >> 32n));
  table.setMac(ref.node, mac);
  slots.publish(ref.slot);
  table.addResidency(ref.node, Tier.ram);
  table.endWrite(ref.node);
  store.incoming.written(table, ref.node);
  stats.committedBlocks++;
  stats.committedBytes += ref.bytes;
  store.arrivals.came(table.namespaceOf(ref.node), table.layerOf(ref.node), ref.bytes);
  return ref.node;
}

function giveUp(store: TieredStore, ref: SlotRef): void {
  const { table, slots, stats } = store;
  stats.corruptBlocks++;
  // A device copy that cannot be stopped may write to the slot until the process exits.
  if (ref.copies?.leaked) slots.quarantine(ref.slot);
  else slots.release(ref.slot);
  table.endWrite(ref.node);
  table.unlock(ref.node);
}

/**
 * Unlocks the stored blocks and records them as stored. Runs after all blocks of the frame are
 * published, so that no block of the frame is evicted for another one.
 */
function settle(store: TieredStore, nodes: readonly NodeId[]): void {
  const stored = nodes.filter((node) => node !== NO_NODE);
  for (let i = stored.length - 1; i >= 0; i--) store.table.unlock(stored[i]);
  store.ram.touch(stored, "stored");
  for (const node of stored) store.ssd?.committed(node);
}
