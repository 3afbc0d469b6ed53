import { DIGEST_BYTES, NO_NODE, type NodeId } from "../core/index.ts";
import { MAC_BYTES } from "../native/index.ts";
import { createAddressBatch, hasParent } from "./batches.ts";
import { isRefusal, NO_SLOT, NodeFlag, type SlotLayout, Tier } from "./blocks/index.ts";
import type { Namespaces } from "./namespaces.ts";
import type { RememberedHolds } from "./pins/index.ts";
import { ALIAS_ROW_BYTES, createRamRecord, type RamRecord } from "./ram-record.ts";
import type { TieredStore } from "./tiered-store.ts";

const TRANSIENT = 1;

/**
 * What RAM holds, for the process that takes over its memory; null where some slot is still
 * somebody's, or the arena did not get all of its memory: then it is not handed on. `holds`: who
 * wants what kept, where no ledger knows.
 */
export function describeRam(
  store: TieredStore,
  namespaces: Namespaces,
  arena: string,
  holds: RememberedHolds | null = null,
): RamRecord | null {
  const { table, slots } = store;
  const count = table.residentBlocks(Tier.ram);
  if (slots.usedSlots !== count || slots.readyBytes !== slots.arenaBytes) return null;
  const nodes: NodeId[] = [];
  for (let node = table.nextOn(NO_NODE, Tier.ram); node !== NO_NODE; ) {
    nodes.push(node);
    node = table.nextOn(node, Tier.ram);
  }
  nodes.sort((a, b) => slots.offsetOf(table.slotOf(a)) - slots.offsetOf(table.slotOf(b)));
  const record = createRamRecord({
    arena,
    arenaBytes: slots.arenaBytes,
    extentBytes: slots.extentBytes,
    namespaceKeys: namespaces.keys().map((key) => key.toHex()),
    macKeyIds: namespaces.keys().map((key) => namespaces.macKeyIdOf(namespaces.find(key)!)),
    count,
    aliases: aliasRows(store, nodes),
    holds,
  });
  for (const [i, node] of nodes.entries()) describeBlock(store, node, record, i);
  return record;
}

/** The other names of blocks: engines ask for them by these. */
function aliasRows({ table }: TieredStore, nodes: readonly NodeId[]): Uint8Array {
  const names = nodes.flatMap((node, block) =>
    table.aliasesOf(node).map((name) => ({ block, name })),
  );
  const rows = new Uint8Array(names.length * ALIAS_ROW_BYTES);
  const view = new DataView(rows.buffer);
  for (const [row, { block, name }] of names.entries()) {
    const at = row * ALIAS_ROW_BYTES;
    view.setUint32(at, block, true);
    view.setUint32(at + 4, name.length, true);
    rows.set(name, at + 8);
  }
  return rows;
}

function enterAliases({ table }: TieredStore, nodes: readonly NodeId[], rows: Uint8Array): void {
  const view = new DataView(rows.buffer, rows.byteOffset);
  for (let at = 0; at < rows.length; at += ALIAS_ROW_BYTES) {
    const node = nodes[view.getUint32(at, true)];
    if (node === undefined) continue;
    if (view.getUint32(at + 4, true) === 32) table.addSha256(node, rows, at + 8);
    else table.addAlias(node, view.getUint32(at + 8, true), view.getUint32(at + 12, true));
  }
}

function describeBlock(
  { table, slots }: TieredStore,
  node: NodeId,
  into: RamRecord,
  i: number,
): void {
  const parent = table.parentOf(node);
  table.readDigest(node, into.digests, i * DIGEST_BYTES);
  if (parent !== NO_NODE) table.readDigest(parent, into.parents, i * DIGEST_BYTES);
  into.layers[i] = table.layerOf(node);
  into.namespaces[i] = table.namespaceOf(node) - 1;
  into.bytes[i] = table.bytesOf(node);
  into.lastSeen[i] = table.lastUsedOf(node);
  into.uses[i] = table.usesOf(node);
  into.flags[i] = table.hasFlag(node, NodeFlag.transient) ? TRANSIENT : 0;
  into.offsets[i] = slots.offsetOf(table.slotOf(node));
  table.readMac(node, into.macs, i * MAC_BYTES);
  into.checksums[i] = (BigInt(table.checksumHiOf(node)) << 32n) | BigInt(table.checksumLoOf(node));
}

/**
 * Enters everything a record says into an empty store over the same memory. False where the record
 * does not fit this store: the caller then gives up memory and store together, since some of it may
 * have been entered.
 */
export function adoptRam(store: TieredStore, namespaces: Namespaces, record: RamRecord): boolean {
  const { slots } = store;
  const { extentBytes, offsets, bytes, count } = record;
  if (record.arenaBytes !== slots.arenaBytes) return false;
  const indices = record.namespaceKeys.map((key) => namespaces.indexOf(Uint8Array.fromHex(key)));
  for (const [at, id] of record.macKeyIds.entries()) {
    const namespace = indices[at] ?? null;
    if (namespace !== null && id !== null) namespaces.setMacKeyId(namespace, id);
  }
  if (count === 0) return true;
  const layout: SlotLayout = { extentBytes, offsets, bytes };
  const restored = slots.restore(layout);
  if (restored === null) return false;
  const batch = createAddressBatch(1);
  const nodes: NodeId[] = [];
  for (let i = 0; i < count; i++) {
    const namespace = indices[record.namespaces[i]!] ?? null;
    if (namespace === null || restored[i] === NO_SLOT) return false;
    batch.count = 1;
    batch.layer = record.layers[i]!;
    batch.bytes[0] = bytes[i]!;
    batch.digests.set(record.digests.subarray(i * DIGEST_BYTES, (i + 1) * DIGEST_BYTES));
    batch.parents.set(record.parents.subarray(i * DIGEST_BYTES, (i + 1) * DIGEST_BYTES));
    store.deriveKeys(batch, true);
    const node = store.table.insertResident(batch, 0, namespace, hasParent(batch, 0), Tier.ram);
    if (isRefusal(node)) return false;
    enter(store, node, restored[i]!, record, i);
    store.seen.learn(namespace, batch.layer, bytes[i]!);
    nodes.push(node);
  }
  enterAliases(store, nodes, record.aliases);
  store.ram.adopt(nodes);
  return true;
}

function enter(store: TieredStore, node: NodeId, slot: number, record: RamRecord, i: number): void {
  const { table, slots } = store;
  const checksum = record.checksums[i]!;
  table.setSlot(node, slot, slots.generationOf(slot));
  table.setChecksum(node, Number(checksum & 0xffff_ffffn), Number(checksum >> 32n));
  table.setMac(node, record.macs, i * MAC_BYTES);
  table.setUses(node, record.uses[i]!, Math.min(record.lastSeen[i]!, store.nowSeconds()));
  table.setFlag(node, NodeFlag.transient, (record.flags[i]! & TRANSIENT) !== 0);
  slots.setNode(slot, node);
  slots.publish(slot);
}
