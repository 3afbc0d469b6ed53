import {
  BlockFlag,
  BlockOutcome,
  CommitFlag,
  DIGEST_BYTES,
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
  type TableView,
  Tier,
} from "./blocks/index.ts";
import type { Hold } from "./slot-refs.ts";
import type { TieredStore } from "./tiered-store.ts";

/** Evictions tried to free an entry of a full table for one block. */
const TABLE_RETRIES = 4;

/** Whose slots they will be. */
export interface SlotTaker {
  /** Whether one slot more may be held. */
  readonly hasRoom: boolean;
  /** Whether a slot of this many bytes is within what may be held. */
  mayTake(bytes: number): boolean;
  /** Where in the arena they should lie. */
  readonly zone: number;
  keep(hold: Hold): void;
}

/** Finds room for the blocks of a frame and enters them as being written. */
export class Reservation {
  readonly #store: TieredStore;
  readonly #holder: SlotTaker;
  /** Of the frame at hand. */
  #namespace = 0 as NamespaceIndex;
  /** In the frame at hand there was no room for a block of so many bytes. */
  #fullFrom = Number.POSITIVE_INFINITY;
  /** In the frame at hand dropping blocks freed no entry of the table. */
  #tableFull = false;

  constructor(store: TieredStore, holder: SlotTaker) {
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

  /** Blocks that are there already were used just now, as by a read. */
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
      // What another namespace holds must not be told from a lack of room.
      if (table.namespaceOf(found) !== this.#namespace) return BlockOutcome.full;
      if (table.isWriting(found)) return BlockOutcome.pending;
      if (table.isResident(found, Tier.ram)) {
        stats.presentBlocks++;
        // Locked for the frame's length: it must not make room for another block of the frame.
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
   * The block is not in RAM: `present` where SSD has it; what cannot be read there is forgotten.
   */
  #reserveKnownBelow(node: NodeId, bytes: number, known: NodeId[]): number | null {
    const { table, ssd, stats } = this.#store;
    if (ssd === null || !table.isResident(node, Tier.ssd)) return null;
    if (ssd.readable && table.bytesOf(node) === bytes) {
      stats.presentBlocks++;
      if (table.lock(node)) known.push(node);
      return BlockOutcome.present;
    }
    // A read of it that is under way still needs its length.
    if (table.isProtected(node, Tier.ssd)) return BlockOutcome.pending;
    ssd.replaced(node);
    return null;
  }

  #take(batch: AddressBatch, i: number, out: HandleBatch): number {
    const { slots, table } = this.#store;
    const parent = hasParent(batch, i) ? this.#foundParent(batch, i) : NO_NODE;
    // What makes room for a block must not be its own parent.
    if (parent !== NO_NODE && !table.lock(parent)) return BlockOutcome.rejected;
    const slot = this.#takeSlot(batch, i, parent !== NO_NODE || !hasParent(batch, i));
    const outcome = slot === NO_SLOT ? BlockOutcome.full : this.#fill(batch, i, slot, out);
    if (slot !== NO_SLOT && outcome !== BlockOutcome.ok) slots.release(slot);
    if (parent !== NO_NODE) table.unlock(parent);
    return outcome;
  }

  /** The block's parent where it is stored somewhere, or being written; else NO_NODE. */
  #foundParent(batch: AddressBatch, i: number): NodeId {
    const { table } = this.#store;
    const node = table.find(batch.parentKeys, i * 8);
    if (node === NO_NODE || table.namespaceOf(node) !== this.#namespace) return NO_NODE;
    return table.residencyOf(node) !== 0 || table.isWriting(node) ? node : NO_NODE;
  }

  /**
   * A block behind a gap cannot be found by its prefix: it may have room that is free, but nothing
   * that can be found is dropped for it.
   */
  #takeSlot(batch: AddressBatch, i: number, reachable: boolean): number {
    const { ram, slots } = this.#store;
    const bytes = batch.bytes[i]!;
    if (bytes >= this.#fullFrom) return NO_SLOT;
    const { zone } = this.#holder;
    const slot = reachable ? ram.takeSlot(bytes, true, zone) : slots.reserve(bytes, zone);
    // A frame only takes: what there was no room for once, there is none for later.
    if (slot === NO_SLOT && reachable) this.#fullFrom = bytes;
    return slot;
  }

  /**
   * Enters the block that will lie in the slot. Anything but `ok` leaves the slot to the caller.
   */
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
    // What somebody marked before it came here stays marked.
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
    // Dropping more for the frame's other blocks would free no entry either.
    this.#tableFull = node === InsertRefusal.full;
    return node;
  }
}

/**
 * Enters block `i` as being written. A full table gives up old blocks for it, as a full arena does:
 * so many at most, and never its parent where that is locked.
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

/** Below first: what SSD has keeps its entry when it leaves RAM. */
function dropForEntry({ ram, ssd }: TieredStore): boolean {
  return ssd?.dropOldest() === true || ram.dropOne() === "dropped";
}

/**
 * Up to this much is hashed on the event loop, in ten microseconds: less than a thread costs to
 * wake.
 */
const INLINE_BYTES = 256 * 1024;

/**
 * Verifies and publishes what a holder wrote. `holds[i]` belongs to handle `i`; null where that was
 * stale. `forget` is called for each as soon as it is the writer's no longer. Null: all was done at
 * once.
 */
export function commitHolds(
  store: TieredStore,
  handles: HandleBatch,
  holds: readonly (Hold | null)[],
  forget: (hold: Hold) => void,
): Promise<void> | null {
  // In the frame's order, whichever is hashed first.
  const stored: NodeId[] = holds.map(() => NO_NODE);
  const finish = (hold: Hold, i: number, checksum: bigint | null, macFault: string | null) => {
    forget(hold);
    const given = (handles.flags[i]! & CommitFlag.checksumGiven) !== 0;
    const isSum = checksum !== null && (!given || handles.checksum[i] === checksum);
    const right = isSum && macFault === null;
    handles.outcome[i] = right ? BlockOutcome.ok : BlockOutcome.corrupt;
    if (right) stored[i] = publish(store, hold, checksum, macOf(handles, i));
    else giveUp(store, hold);
  };
  const bytes = holds.reduce((sum, hold) => sum + (hold?.bytes ?? 0), 0);
  if (bytes <= INLINE_BYTES) {
    holds.forEach((hold, i) => {
      if (hold === null) return;
      const { offset, bytes, copies } = hold;
      const sum = copies?.failed ? null : store.region.checksum(offset, bytes);
      const namespace = store.table.namespaceOf(hold.node);
      const block = () => macBlockOf(store, hold.node, offset, bytes);
      finish(hold, i, sum, store.macs.faultOf(namespace, macOf(handles, i), block));
    });
    settle(store, stored);
    return null;
  }
  const hashed = holds.map(async (hold, i) => {
    if (hold === null) return;
    const { node, offset, bytes } = hold;
    const sum = hold.copies?.failed ? null : await checksumLater(store, hold);
    const block = () => macBlockOf(store, node, offset, bytes);
    const namespace = store.table.namespaceOf(node);
    finish(hold, i, sum, await store.macs.faultLater(namespace, macOf(handles, i), block));
  });
  return Promise.all(hashed).then(() => settle(store, stored));
}

function macOf({ mac }: HandleBatch, i: number): Uint8Array {
  return mac.subarray(i * MAC_BYTES, (i + 1) * MAC_BYTES);
}

/** A node's block that lies, or is about to lie, at `offset` of the arena. */
export function macBlockOf(
  { table, region }: Pick<TieredStore, "table" | "region">,
  node: NodeId,
  offset: number,
  bytes: number,
): MacBlock {
  const digest = new Uint8Array(DIGEST_BYTES);
  table.readDigest(node, digest, 0);
  return { region, offset, bytes, digest, layer: table.layerOf(node) };
}

/** Null where the bytes could not be hashed: the agent is stopping. */
export async function checksumLater(
  store: TieredStore,
  { offset, bytes }: Pick<Hold, "offset" | "bytes">,
): Promise<bigint | null> {
  while (true) {
    const done = await store.queue.checksum(store.region, offset, bytes);
    if (done.ok) return done.result;
    if (done.status !== "full") return null;
    // Every place in the ring is taken by other commits: one of theirs ends first.
    await store.queue.room();
  }
}

/** XXH3-64 of the block's bytes, as they were committed. */
export function checksumOf(table: TableView, node: NodeId): bigint {
  return (BigInt(table.checksumHiOf(node)) << 32n) | BigInt(table.checksumLoOf(node));
}

/** Whether the bytes at `offset` are those that were committed as this node's. */
export async function isWhole(
  store: TieredStore,
  node: NodeId,
  offset: number,
  bytes: number,
): Promise<boolean> {
  const { table, region } = store;
  const wanted = checksumOf(table, node);
  if (bytes <= INLINE_BYTES) return region.checksum(offset, bytes) === wanted;
  return (await checksumLater(store, { offset, bytes })) === wanted;
}

function publish(store: TieredStore, hold: Hold, checksum: bigint, mac: Uint8Array): NodeId {
  const { table, slots, stats } = store;
  // What lies on SSD under this name is no longer what RAM holds.
  if (table.isResident(hold.node, Tier.ssd)) store.ssd?.replaced(hold.node);
  const lo = Number(checksum & 0xffff_ffffn);
  table.setChecksum(hold.node, lo, Number(checksum >> 32n));
  table.setMac(hold.node, mac);
  slots.publish(hold.slot);
  table.addResidency(hold.node, Tier.ram);
  table.endWrite(hold.node);
  store.landings.written(table, hold.node);
  stats.committedBlocks++;
  stats.committedBytes += hold.bytes;
  store.seen.came(table.namespaceOf(hold.node), table.layerOf(hold.node), hold.bytes);
  return hold.node;
}

function giveUp(store: TieredStore, hold: Hold): void {
  const { table, slots, stats } = store;
  stats.corruptBlocks++;
  // A device that cannot be stopped keeps its slot for ever.
  if (hold.copies?.leaked) slots.quarantine(hold.slot);
  else slots.release(hold.slot);
  table.endWrite(hold.node);
  table.unlock(hold.node);
}

/** Writers' locks go only now, so that no block of the frame could be dropped for another of it. */
function settle(store: TieredStore, nodes: readonly NodeId[]): void {
  const stored = nodes.filter((node) => node !== NO_NODE);
  for (let i = stored.length - 1; i >= 0; i--) store.table.unlock(stored[i]!);
  store.ram.touch(stored, "stored");
  for (const node of stored) store.ssd?.committed(node);
}
