import { BlockOutcome, CommitFlag, DIGEST_BYTES, NO_NODE, type NodeId } from "../core/index.ts";
import { MAC_BYTES, type MacBlock } from "../native/index.ts";
import type { HandleBatch } from "./batches.ts";
import { type TableView, Tier } from "./blocks/index.ts";
import type { Hold } from "./hold.ts";
import type { TieredStore } from "./tiered-store.ts";

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
