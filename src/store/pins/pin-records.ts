import { type Clock, NO_NODE, type NodeId, yieldToLoop } from "../../core/index.ts";
import type { BlockTable } from "../blocks/index.ts";
import type { LedgerContents, PartRow, RetentionLedger, RetentionRow } from "../index/index.ts";
import type { PinRegistryOptions } from "./pin-registry.ts";
import type { Pin, PinPart, PinTable, PinTerms } from "./pin-table.ts";
import { isOnTiers } from "./pinned-bytes.ts";
import type { PinEvents } from "./pins.ts";

interface PinRecordsOptions {
  readonly table: BlockTable;
  readonly clock: Clock;
  readonly ledger: RetentionLedger | null;
}

/**
 * Writes changed pins to the ledger once per turn of the event loop. Writes only the changed parts
 * of a pin. The first part is stored in the row of the pin itself.
 */
export class PinRecords {
  readonly #parts: PinRecordsOptions;
  readonly #changed = new Map<PinPart, Pin>();
  /**
   * The part that changed last. Remembered because changes of one part usually follow one another.
   */
  #latest: PinPart | null = null;

  constructor(parts: PinRecordsOptions) {
    this.#parts = parts;
  }

  /** Marks the pin's row as changed. Call after a change of its deadline or its first part. */
  change(pin: Pin): void {
    this.changePart(pin, pin.nodes.parts[0]);
  }

  changePart(pin: Pin, part: PinPart): void {
    const { ledger } = this.#parts;
    if (part === this.#latest || ledger === null || !pin.isWhole || pin.ended) return;
    this.#latest = part;
    if (this.#changed.size === 0) ledger.beforeTurnEnds(() => this.#write());
    this.#changed.set(part, pin);
  }

  changeAll(pin: Pin): void {
    for (const part of pin.nodes.parts) this.changePart(pin, part);
  }

  /**
   * Writes the deadline of an expired lease, which is the current time, before its blocks are
   * released.
   */
  overdue(pin: Pin): void {
    const { ledger, table, clock } = this.#parts;
    if (ledger === null || !pin.isWhole || pin.ended) return;
    const [first] = pin.nodes.parts;
    ledger.putHold(rowOf(pin, blocksOf(first!.nodes, table), clock.bootId));
    ledger.seen(clock.bootId, clock.bootMs());
  }

  /** Deletes the pin and all its parts from the ledger. */
  forget(id: number): void {
    this.#parts.ledger?.removeHold(id);
  }

  #write(): void {
    const { ledger, table, clock } = this.#parts;
    if (ledger === null) return;
    for (const [part, pin] of this.#changed) {
      if (pin.ended) continue;
      const blocks = blocksOf(part.nodes, table);
      if (part.number > 0) ledger.putPart({ hold: pin.id, part: part.number, blocks });
      else ledger.putHold(rowOf(pin, blocks, clock.bootId));
      if (pin.deadlineBootMs !== null) ledger.seen(clock.bootId, clock.bootMs());
    }
    this.#changed.clear();
    this.#latest = null;
  }
}

/** A block in a row: its digest (32 bytes), then its layer as u32 little-endian. */
const BLOCK_BYTES = 36;
const LAYER_AT = 32;

/** Encodes blocks in the format of a ledger row. */
function blocksOf(
  nodes: Iterable<NodeId> & { readonly size: number },
  table: BlockTable,
): Uint8Array {
  const blocks = new Uint8Array(nodes.size * BLOCK_BYTES);
  const view = new DataView(blocks.buffer);
  let at = 0;
  for (const node of nodes) {
    table.readDigest(node, blocks, at);
    view.setUint32(at + LAYER_AT, table.layerOf(node), true);
    at += BLOCK_BYTES;
  }
  return blocks;
}

function rowOf(pin: Pin, blocks: Uint8Array, bootId: string): RetentionRow {
  const { id, kind, owner, name, deadlineBootMs, priority, idleMs, createdWallMs, purges } = pin;
  const terms = { kind, owner, name, deadlineBootMs, priority, idleMs, createdWallMs, purges };
  return { id, ...terms, bootId, blocks };
}

/** Maximum bytes of a row without its blocks. */
const ROW_BYTES = 512;

/** Returns the rows of those pins that fit into about `bytesMax` bytes. Soft pins come last. */
export function rowsWithin(
  holds: Iterable<Pin>,
  bytesMax: number,
  table: BlockTable,
  bootId: string,
): RetentionRow[] {
  const all = [...holds];
  const isSoft = ({ kind }: Pin) => kind === "retain";
  const rows: RetentionRow[] = [];
  let bytes = 0;
  for (const pin of [...all.filter((pin) => !isSoft(pin)), ...all.filter(isSoft)]) {
    bytes += ROW_BYTES + pin.nodes.size * BLOCK_BYTES;
    if (bytes > bytesMax) break;
    rows.push(rowOf(pin, blocksOf(pin.nodes, table), bootId));
  }
  return rows;
}

function blockAt(blocks: Uint8Array, index: number): { digest: Uint8Array; layer: number } {
  const at = index * BLOCK_BYTES;
  const layer = new DataView(blocks.buffer, blocks.byteOffset).getUint32(at + LAYER_AT, true);
  return { digest: blocks.subarray(at, at + LAYER_AT), layer };
}

/**
 * Returns the deadline of a restored pin on the clock of this boot, or null if it has none. If the
 * machine has not rebooted, it is the deadline of the row. Otherwise it is the time that was left
 * when the earlier boot was last recorded, counted from now: time with the machine off does not
 * count. If that boot was never recorded, the longest time that can have been left is used, at most
 * `longestMs`.
 */
function deadlineNow(
  row: RetentionRow,
  lastSeen: LedgerContents["lastSeen"],
  clock: Pick<Clock, "bootId" | "bootMs">,
  longestMs: number,
): number | null {
  if (row.deadlineBootMs === null) return null;
  const now = clock.bootMs();
  if (isThisBoot(row, lastSeen, clock)) return row.deadlineBootMs;
  const seenMs = lastSeen !== null && lastSeen.bootId === row.bootId ? lastSeen.bootMs : null;
  const leftMs = seenMs === null ? longestMs : row.deadlineBootMs - seenMs;
  return now + Math.max(0, Math.min(leftMs, row.deadlineBootMs));
}

/**
 * Returns whether the row was written in this boot. Without boot ids from the system, a boot clock
 * that went back proves a reboot.
 */
function isThisBoot(
  row: RetentionRow,
  lastSeen: LedgerContents["lastSeen"],
  clock: Pick<Clock, "bootId" | "bootMs">,
): boolean {
  if (row.bootId !== clock.bootId) return false;
  return row.bootId !== "" || lastSeen === null || lastSeen.bootMs <= clock.bootMs();
}

/** Returns the nodes of the blocks that are resident, and the number of blocks that are not. */
function nodesOf(
  blocks: Uint8Array,
  find: (digest: Uint8Array, layer: number) => NodeId | null,
): { readonly nodes: NodeId[]; readonly missing: number } {
  const nodes: NodeId[] = [];
  const count = Math.floor(blocks.length / BLOCK_BYTES);
  for (let i = 0; i < count; i++) {
    const { digest, layer } = blockAt(blocks, i);
    const node = find(digest, layer);
    if (node !== null) nodes.push(node);
  }
  return { nodes, missing: count - nodes.length };
}

/** Blocks looked up in one turn of the event loop. Takes some milliseconds. */
const BLOCKS_AT_ONCE = 16_384;

/** Returns the node of a block that is in RAM or on SSD, or NO_NODE. */
export type FindBlock = (digest: Uint8Array, layer: number) => NodeId;

/**
 * Pins of a previous run of the agent, and the latest time at which they were recorded to be in
 * force.
 */
export type RememberedPins = Pick<LedgerContents, "holds" | "lastSeen"> &
  Partial<Pick<LedgerContents, "parts">>;

export interface Restored {
  readonly holds: number;
  readonly blocks: number;
  /** Number of pinned blocks that are no longer resident. */
  readonly lostBlocks: number;
  /** Number of pins that ended because none of their blocks is resident. */
  readonly lostHolds: number;
}

/** Yields to the event loop after every `BLOCKS_AT_ONCE` blocks. */
class LoopYielder {
  #scan = 0;

  async scan(blocks: number): Promise<void> {
    this.#scan += blocks + 1;
    if (this.#scan < BLOCKS_AT_ONCE) return;
    this.#scan = 0;
    await yieldToLoop();
  }
}

interface Restoring {
  readonly find: FindBlock;
  readonly from: RememberedPins;
  /**
   * Called with the older of two leases of the same name. It had expired before the restart, but
   * its blocks were not removed yet.
   */
  readonly onEnd: (pin: Pin) => void;
  readonly pinEvents: PinEvents;
}

interface RestoredRow {
  readonly row: RetentionRow;
  readonly pin: Pin | null;
  readonly lost: number;
  /** Numbers of the parts that lack blocks, because these are no longer resident. */
  readonly parts: readonly number[];
  /** The older lease of the same name, or null. */
  readonly replaced: Pin | null;
}

/**
 * Implements `PinRegistry.restore`. Writes the changed rows and the current time to the ledger in
 * one transaction.
 */
export async function restorePins(
  pinTable: PinTable,
  options: PinRegistryOptions,
  restoring: Restoring,
): Promise<Restored> {
  const { from, onEnd } = restoring;
  const rows = [...from.holds].sort((a, b) => a.id - b.id);
  const partsOf = Map.groupBy(from.parts ?? [], ({ hold }) => hold);
  pinTable.skipIds(rows.at(-1)?.id ?? 0);
  const restored: RestoredRow[] = [];
  const sum = { holds: 0, blocks: 0, lostBlocks: 0, lostHolds: 0 };
  const pace = new LoopYielder();
  for (const row of rows) {
    const parts = partsOf.get(row.id) ?? [];
    partsOf.delete(row.id);
    const one = await restoreOne(pinTable, options, row, { ...restoring, parts, pace });
    const { pin, lost } = one;
    restored.push(one);
    if (pin !== null) sum.holds++;
    else sum.lostHolds++;
    const blocks = pin?.nodes.size ?? 0;
    sum.blocks += blocks;
    sum.lostBlocks += lost;
    if (lost > 0) restoring.pinEvents.missing(row, lost, blocks);
  }
  for (const one of restored) record(pinTable, one, options.clock.bootId);
  for (const id of partsOf.keys()) pinTable.records.forget(id);
  // End the replaced leases last, when all other pins of their blocks are restored.
  for (const { replaced } of restored) if (replaced !== null) onEnd(replaced);
  return sum;
}

async function restoreOne(
  pinTable: PinTable,
  options: PinRegistryOptions,
  row: RetentionRow,
  restoring: Restoring & { readonly parts: readonly PartRow[]; readonly pace: LoopYielder },
): Promise<RestoredRow> {
  const { find, parts, pace } = restoring;
  let [pin, replaced, lost]: [Pin | null, Pin | null, number] = [null, null, 0];
  const hit: number[] = [];
  for (const { part, blocks } of [{ part: 0, blocks: row.blocks }, ...parts]) {
    const { nodes, missing } = nodesOf(blocks, (digest, layer) => {
      const node = find(digest, layer);
      return node !== NO_NODE && isOnTiers(pinTable.table, node) ? node : null;
    });
    const isSound = row.kind !== "lease" || row.name !== null;
    lost += isSound ? missing : missing + nodes.length;
    if (missing > 0) hit.push(part);
    if (nodes.length > 0 && isSound && pin === null) {
      replaced = row.kind === "lease" ? (pinTable.leases.get(row.name!) ?? null) : null;
      if (replaced !== null) pinTable.unname(replaced);
      pin = pinTable.begin(termsOf(row, options, restoring), row.id);
    }
    for (const node of nodes)
      if (pin !== null && !pin.nodes.has(node)) pinTable.join(pin, node, part);
    await pace.scan(nodes.length + missing);
  }
  if (pin !== null) pinTable.schedule(pin);
  return { row, pin, lost, parts: hit, replaced };
}

function termsOf(row: RetentionRow, options: PinRegistryOptions, { from }: Restoring): PinTerms {
  const { kind, owner, name, priority, createdWallMs, purges } = row;
  const idleMs = kind === "retain" ? (row.idleMs ?? options.retainIdleMs()) : null;
  const longestMs = kind === "lease" ? options.leaseTtlMaxMs() : Infinity;
  const deadlineBootMs = deadlineNow(row, from.lastSeen, options.clock, longestMs);
  return { kind, owner, name, priority, idleMs, createdWallMs, deadlineBootMs, purges };
}

/** Updates the ledger row of a restored pin that changed, or deletes the row if the pin ended. */
function record({ records }: PinTable, { row, pin, parts }: RestoredRow, bootId: string): void {
  if (pin === null) {
    records.forget(row.id);
    return;
  }
  if (isOfOtherBoot(row, pin, bootId)) records.change(pin);
  for (const part of parts) records.changePart(pin, pin.nodes.part(part));
}

function isOfOtherBoot(row: RetentionRow, pin: Pin, bootId: string): boolean {
  if (row.deadlineBootMs === null) return false;
  return row.bootId !== bootId || row.deadlineBootMs !== pin.deadlineBootMs;
}
