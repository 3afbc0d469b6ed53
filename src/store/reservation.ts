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

/** Maximum number of evictions per block to free a table entry. */
const TABLE_RETRIES = 4;

/** Finds room for the blocks of a frame and inserts them as being written. */
export class Reservation {
  readonly #store: TieredStore;
  readonly #holder: SlotRefs;
  /** Namespace of the current frame. */
  #namespace = 0 as NamespaceIndex;
  /** Smallest block size, in bytes, for which the current frame found no room. */
  #fullFrom = Number.POSITIVE_INFINITY;
  /** In the current frame, evicting blocks did not free a table entry. */
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

  /** Records a use of blocks that are present already, as a read does. */
  #use(known: readonly NodeId[]): void {
    const { ram, table } = this.#store;
    for (let i = known.length - 1; i >= 0; i--) table.unlock(known[i]!);
    ram.touch(known, "used");
  }

  #reserveOne(batch: AddressBatch, i: number, out: HandleBatch, known: NodeId[]): number {
    const { table, stats, blockBytesMax } = this.#store;
    const bytes = batch.bytes[i]!;
    if (bytes === 0) return BlockOutcome.rejected;
    if (bytes > blockBytesMax) return BlockOutcome.tooLarge;
    const found = table.find(batch.keys, i * 8);
    if (found !== NO_NODE) {
      // A client must not be able to distinguish a block of another namespace from a lack of room.
      if (table.namespaceOf(found) !== this.#namespace) return BlockOutcome.full;
      if (table.isWriting(found)) return BlockOutcome.pending;
      if (table.isResident(found, Tier.ram)) {
        stats.presentBlocks++;
        // Locked until the end of the frame, so that no other block of the frame evicts it.
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
   * For a block that is not in RAM: `present` if SSD has it. An entry that cannot be read from SSD
   * is removed.
   */
  #reserveKnownBelow(node: NodeId, bytes: number, known: NodeId[]): number | null {
    const { table, ssd, stats } = this.#store;
    if (ssd === null || !table.isResident(node, Tier.ssd)) return null;
    if (ssd.readable && table.bytesOf(node) === bytes) {
      stats.presentBlocks++;
      if (table.lock(node)) known.push(node);
      return BlockOutcome.present;
    }
    // A read under way still uses the block's length.
    if (table.isProtected(node, Tier.ssd)) return BlockOutcome.pending;
    ssd.replaced(node);
    return null;
  }

  #take(batch: AddressBatch, i: number, out: HandleBatch): number {
    const { slots, table } = this.#store;
    const parent = hasParent(batch, i) ? this.#foundParent(batch, i) : NO_NODE;
    // Making room for a block must not evict its parent.
    if (parent !== NO_NODE && !table.lock(parent)) return BlockOutcome.rejected;
    const slot = this.#takeSlot(batch, i, parent !== NO_NODE || !hasParent(batch, i));
    const outcome = slot === NO_SLOT ? BlockOutcome.full : this.#fill(batch, i, slot, out);
    if (slot !== NO_SLOT && outcome !== BlockOutcome.ok) slots.release(slot);
    if (parent !== NO_NODE) table.unlock(parent);
    return outcome;
  }

  /** The block's parent if it is stored on any tier or being written; otherwise NO_NODE. */
  #foundParent(batch: AddressBatch, i: number): NodeId {
    const { table } = this.#store;
    const node = table.find(batch.parentKeys, i * 8);
    if (node === NO_NODE || table.namespaceOf(node) !== this.#namespace) return NO_NODE;
    return table.residencyOf(node) !== 0 || table.isWriting(node) ? node : NO_NODE;
  }

  /**
   * A block whose parent is absent cannot be found by its prefix. It may take a free slot, but no
   * reachable block is evicted for it.
   */
  #takeSlot(batch: AddressBatch, i: number, reachable: boolean): number {
    const { ram, slots } = this.#store;
    const bytes = batch.bytes[i]!;
    if (bytes >= this.#fullFrom) return NO_SLOT;
    const { zone } = this.#holder;
    const slot = reachable ? ram.takeSlot(bytes, true, zone) : slots.reserve(bytes, zone);
    // A frame only takes slots: a size that does not fit now does not fit later in the frame
    // either.
    if (slot === NO_SLOT && reachable) this.#fullFrom = bytes;
    return slot;
  }

  /** Inserts the block for the slot. On any outcome but `ok` the caller keeps the slot. */
  #fill(batch: AddressBatch, i: number, slot: number, out: HandleBatch): number {
    const { slots, table, stats } = this.#store;
    const node = this.#insert(batch, i);
    if (isRefusal(node)) {
      if (node === InsertRefusal.busy) return BlockOutcome.pending;
      return node === InsertRefusal.cycle ? BlockOutcome.rejected : BlockOutcome.full;
    }
    const generation = slots.generationOf(slot);
    const bytes = batch.bytes[i]!;
    table.lock(node);
    table.setSlot(node, slot, generation);
    slots.setNode(slot, node);
    const flags = batch.flags[i]!;
    // The flag is only set here, never cleared: a command may have set it before.
    if ((flags & BlockFlag.transient) !== 0) table.setFlag(node, NodeFlag.transient, true);
    if ((flags & BlockFlag.aliasGiven) !== 0) {
      table.addAlias(node, batch.aliasLo[i]!, batch.aliasHi[i]!);
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
    // More evictions for other blocks of the frame would not free an entry either.
    this.#tableFull = node === InsertRefusal.full;
    return node;
  }
}

/**
 * Inserts block `i` as being written. If the table is full, evicts up to `tries` old blocks, but
 * not its parent if the parent is locked.
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

/** SSD first: a block on SSD keeps its entry when it leaves RAM. */
function dropForEntry({ ram, ssd }: TieredStore): boolean {
  return ssd?.dropOldest() === true || ram.dropOne() === "dropped";
}

/**
 * Up to this size, hashing on the event loop takes about ten microseconds, less than waking a
 * thread.
 */
const INLINE_BYTES = 256 * 1024;

/**
 * Verifies and publishes written slots. `refs[i]` belongs to handle `i`; null if the handle was
 * stale. Calls `forget` as soon as a slot no longer belongs to its writer. Null if the commit
 * finished synchronously.
 */
export function commitSlots(
  store: TieredStore,
  handles: HandleBatch,
  refs: readonly (SlotRef | null)[],
  forget: (ref: SlotRef) => void,
): Promise<void> | null {
  // In the frame's order, in whatever order the hashes finish.
  const stored: NodeId[] = refs.map(() => NO_NODE);
  const finish = (ref: SlotRef, i: number, checksum: bigint | null, macFault: string | null) => {
    forget(ref);
    const given = (handles.flags[i]! & CommitFlag.checksumGiven) !== 0;
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

/** The block of a node at `offset` of the arena, for MAC functions. */
export function macBlockOf(
  { table, region }: Pick<TieredStore, "table" | "region">,
  node: NodeId,
  offset: number,
  bytes: number,
): MacBlock {
  return { region, offset, bytes, digest: table.digestOf(node), layer: table.layerOf(node) };
}

/** XXH3-64 of the bytes, computed on a native thread; null if the agent is stopping. */
export async function checksumLater(
  store: TieredStore,
  { offset, bytes }: Pick<SlotRef, "offset" | "bytes">,
): Promise<bigint | null> {
  while (true) {
    const done = await store.queue.checksum(store.region, offset, bytes);
    if (done.ok) return done.result;
    if (done.status !== "full") return null;
    // All places of the ring are in use by other commits: wait for one of them.
    await store.queue.room();
  }
}

/** Whether the bytes at `offset` match the node's committed checksum. */
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
  // The bytes on SSD under this key are replaced by those in RAM.
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
  // A device copy that cannot be stopped occupies its slot until the process exits.
  if (ref.copies?.leaked) slots.quarantine(ref.slot);
  else slots.release(ref.slot);
  table.endWrite(ref.node);
  table.unlock(ref.node);
}

/**
 * Releases the writers' locks only now, so that no block of the frame is evicted for another one.
 */
function settle(store: TieredStore, nodes: readonly NodeId[]): void {
  const stored = nodes.filter((node) => node !== NO_NODE);
  for (let i = stored.length - 1; i >= 0; i--) store.table.unlock(stored[i]!);
  store.ram.touch(stored, "stored");
  for (const node of stored) store.ssd?.committed(node);
}
