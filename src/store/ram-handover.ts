import { DIGEST_BYTES, HearthError, NO_NODE, type NodeId } from "../core/index.ts";
import { MAC_BYTES } from "../native/index.ts";
import { createAddressBatch, hasParent } from "./batches.ts";
import { isRefusal, NO_SLOT, NodeFlag, type SlotLayout, Tier } from "./blocks/index.ts";
import type { RetentionRow } from "./index/index.ts";
import type { Namespaces } from "./namespaces.ts";
import type { RememberedPins } from "./pins/index.ts";
import type { TieredStore } from "./tiered-store.ts";

const TRANSIENT = 1;

/**
 * Returns a record of the blocks in RAM for the process that takes over the arena. Returns null if
 * a slot is still in use or the arena is not fully populated; the arena then cannot be handed over.
 * `holds`: the pins and leases, if no retention ledger stores them.
 */
export function describeRam(
  store: TieredStore,
  namespaces: Namespaces,
  arena: string,
  holds: RememberedPins | null = null,
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

/**
 * Returns the aliases of the blocks, the names by which engines request them, as rows of
 * `ALIAS_ROW_BYTES`.
 */
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
    table.addName(node, rows.subarray(at + 8, at + 8 + view.getUint32(at + 4, true)));
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
  into.checksums[i] = table.checksumOf(node);
}

/**
 * Restores the blocks of a record into an empty store over the same memory. Returns false if the
 * record does not match the store. The caller must then discard the memory and the store, since
 * some blocks may have been restored.
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
    const namespace = indices[record.namespaces[i]] ?? null;
    if (namespace === null || restored[i] === NO_SLOT) return false;
    batch.count = 1;
    batch.layer = record.layers[i];
    batch.bytes[0] = bytes[i];
    batch.digests.set(record.digests.subarray(i * DIGEST_BYTES, (i + 1) * DIGEST_BYTES));
    batch.parents.set(record.parents.subarray(i * DIGEST_BYTES, (i + 1) * DIGEST_BYTES));
    store.deriveKeys(batch, true);
    const node = store.table.insertResident(batch, 0, namespace, hasParent(batch, 0), Tier.ram);
    if (isRefusal(node)) return false;
    enter(store, node, restored[i], record, i);
    store.arrivals.learn(namespace, batch.layer, bytes[i]);
    nodes.push(node);
  }
  enterAliases(store, nodes, record.aliases);
  store.ram.adopt(nodes);
  return true;
}

function enter(store: TieredStore, node: NodeId, slot: number, record: RamRecord, i: number): void {
  const { table, slots } = store;
  const checksum = record.checksums[i];
  table.setSlot(node, slot, slots.generationOf(slot));
  table.setChecksum(node, Number(checksum & 0xffff_ffffn), Number(checksum >> 32n));
  table.setMac(node, record.macs, i * MAC_BYTES);
  table.setUses(node, record.uses[i], Math.min(record.lastSeen[i], store.nowSeconds()));
  table.setFlag(node, NodeFlag.transient, (record.flags[i] & TRANSIENT) !== 0);
  slots.setNode(slot, node);
  slots.publish(slot);
}

/**
 * State of the RAM tier that a planned restart passes to the next process together with the memory.
 */
export type RamRecord = ReturnType<typeof createRamRecord>;

/** The fields of a record that do not have one entry per block. */
interface AboutRam {
  /** Identifier of the arena, assigned by the caller. */
  readonly arena: string;
  readonly arenaBytes: number;
  readonly extentBytes: number;
  /** Namespace keys in hex. The column `namespaces` contains indices into this list. */
  readonly namespaceKeys: readonly string[];
  /** Identifier of each namespace's MAC key; null if the namespace has none or it is unknown. */
  readonly macKeyIds: readonly (string | null)[];
  readonly count: number;
  /**
   * Aliases of the blocks in rows of `ALIAS_ROW_BYTES`: block index as u32, length of the alias as
   * u32 (8 or 32), the alias.
   */
  readonly aliases: Uint8Array;
  /** Pins and leases; null if a retention ledger stores them or there are none. */
  readonly holds: RememberedPins | null;
}

const ALIAS_ROW_BYTES = 40;

const MAGIC = "HEARTHRM";
const VERSION = 3;
/**
 * Oldest record version that this agent can read. Version 1 has no pins and leases, version 2 has
 * no MACs.
 */
const OLDEST_VERSION = 1;
const HEAD_BYTES = 16;
const SUM_BYTES = 8;
const ALIGN = 8;

/**
 * Columns of a record, with bytes per entry, in the order of the file. Entry sizes are multiples of
 * four bytes.
 */
const COLUMNS = [
  ["checksums", 8],
  ["offsets", 8],
  ["digests", 32],
  ["parents", 32],
  ["layers", 4],
  ["namespaces", 4],
  ["bytes", 4],
  ["lastSeen", 4],
  ["uses", 4],
  ["flags", 4],
  ["macs", 16],
] as const satisfies readonly (readonly [keyof RamRecord, number])[];

type Column = (typeof COLUMNS)[number];

/** Returns the columns that a record of this version has. */
function columnsOf(version: number): readonly Column[] {
  return version >= 3 ? COLUMNS : COLUMNS.filter(([name]) => name !== "macs");
}

function rowBytesOf(columns: readonly Column[]): number {
  return columns.reduce((sum, [, width]) => sum + width, 0);
}

function createRamRecord(about: AboutRam) {
  const { count } = about;
  return {
    ...about,
    checksums: new BigUint64Array(count),
    /** Byte offsets of the blocks in the arena, ascending. */
    offsets: new Float64Array(count),
    /** 32 bytes per block. All zero in `parents` means that the block has no parent. */
    digests: new Uint8Array(count * 32),
    parents: new Uint8Array(count * 32),
    layers: new Uint32Array(count),
    namespaces: new Uint32Array(count),
    bytes: new Uint32Array(count),
    lastSeen: new Uint32Array(count),
    uses: new Uint32Array(count),
    /** Bit 0: the block is transient. */
    flags: new Uint32Array(count),
    /** MACs, 16 bytes per block; all zero means no MAC. */
    macs: new Uint8Array(count * 16),
  };
}

/**
 * Encodes a record. Layout: magic, version, length of the JSON part, JSON, columns, aliases, blocks
 * of the pins and leases, XXH3-64 of all preceding bytes.
 */
export function encodeRamRecord(record: RamRecord): Uint8Array {
  const { arena, arenaBytes, extentBytes, namespaceKeys, count, aliases } = record;
  const { holds, blocks } = writtenHolds(record.holds);
  const sizes = { count, aliasBytes: aliases.length };
  const names = { namespaceKeys, macKeyIds: record.macKeyIds };
  const about = JSON.stringify({ arena, arenaBytes, extentBytes, ...names, ...sizes, holds });
  const json = new TextEncoder().encode(about);
  const columnsAt = Math.ceil((HEAD_BYTES + json.length) / ALIGN) * ALIGN;
  const aliasesAt = columnsAt + count * rowBytesOf(COLUMNS);
  const holdsAt = aliasesAt + aliases.length;
  const sumAt = holdsAt + blocks.reduce((sum, { length }) => sum + length, 0);
  const out = new Uint8Array(sumAt + SUM_BYTES);
  const view = new DataView(out.buffer);
  out.set(new TextEncoder().encode(MAGIC));
  view.setUint32(8, VERSION, true);
  view.setUint32(12, json.length, true);
  out.set(json, HEAD_BYTES);
  let at = columnsAt;
  for (const [name, width] of COLUMNS) {
    const column = record[name];
    out.set(new Uint8Array(column.buffer, column.byteOffset, count * width), at);
    at += count * width;
  }
  out.set(aliases, aliasesAt);
  at = holdsAt;
  for (const part of blocks) {
    out.set(part, at);
    at += part.length;
  }
  view.setBigUint64(sumAt, Bun.hash.xxHash3(out.subarray(0, sumAt)), true);
  return out;
}

/** Decodes a record. Returns null if it is damaged; the checksum covers every byte. */
export function decodeRamRecord(from: Uint8Array): RamRecord | null {
  if (from.length < HEAD_BYTES + SUM_BYTES) return null;
  const bytes = from.slice();
  const view = new DataView(bytes.buffer);
  const sumAt = bytes.length - SUM_BYTES;
  if (view.getBigUint64(sumAt, true) !== Bun.hash.xxHash3(bytes.subarray(0, sumAt))) return null;
  const magic = new TextDecoder().decode(bytes.subarray(0, 8));
  const version = view.getUint32(8, true);
  if (magic !== MAGIC || version < OLDEST_VERSION || version > VERSION) return null;
  const jsonBytes = view.getUint32(12, true);
  const about = aboutOf(bytes.subarray(HEAD_BYTES, HEAD_BYTES + jsonBytes));
  let at = Math.ceil((HEAD_BYTES + jsonBytes) / ALIGN) * ALIGN;
  const { aliasBytes, holds: written, macKeyIds = [], ...named } = about;
  const columns = columnsOf(version);
  const aliasesAt = at + about.count * rowBytesOf(columns);
  const holdsAt = aliasesAt + aliasBytes;
  const holds = readHolds(written ?? null, bytes.subarray(holdsAt, sumAt));
  if (holds === "damaged") return null;
  const record = createRamRecord({
    ...named,
    macKeyIds,
    holds,
    aliases: bytes.slice(aliasesAt, holdsAt),
  });
  for (const [name, width] of columns) {
    const column = record[name];
    new Uint8Array(column.buffer).set(bytes.subarray(at, at + about.count * width));
    at += about.count * width;
  }
  return record;
}

/**
 * Pins and leases as the JSON part stores them. Their blocks follow in binary form; the JSON has
 * only their byte counts.
 */
interface WrittenHolds {
  readonly lastSeen: RememberedPins["lastSeen"];
  readonly rows: readonly (Omit<RetentionRow, "blocks"> & { readonly blockBytes: number })[];
}

function writtenHolds(from: RememberedPins | null): {
  readonly holds: WrittenHolds | null;
  readonly blocks: readonly Uint8Array[];
} {
  if (from === null) return { holds: null, blocks: [] };
  const rows = from.holds.map(({ blocks, ...row }) => ({ ...row, blockBytes: blocks.length }));
  const blocks = from.holds.map((row) => row.blocks);
  return { holds: { lastSeen: from.lastSeen, rows }, blocks };
}

function readHolds(
  written: WrittenHolds | null,
  blocks: Uint8Array,
): RememberedPins | null | "damaged" {
  let at = 0;
  const holds = (written?.rows ?? []).map(({ blockBytes, ...row }): RetentionRow => {
    at += blockBytes;
    return { ...row, purges: row.purges === true, blocks: blocks.slice(at - blockBytes, at) };
  });
  if (at !== blocks.length) return "damaged";
  return written === null ? null : { holds, lastSeen: written.lastSeen };
}

type About = Omit<AboutRam, "aliases" | "holds" | "macKeyIds"> & {
  /** Absent in records of versions 1 and 2. */
  readonly macKeyIds?: RamRecord["macKeyIds"];
  readonly aliasBytes: number;
  readonly holds?: WrittenHolds | null;
};

/**
 * Parses the JSON part. Throws INTERNAL if it is invalid: the checksum matched, so a faulty agent
 * wrote it.
 */
function aboutOf(json: Uint8Array): About {
  try {
    return JSON.parse(new TextDecoder().decode(json));
  } catch (cause) {
    throw new HearthError(
      "INTERNAL",
      "handover record with a valid checksum contains invalid JSON",
      {
        cause,
      },
    );
  }
}
