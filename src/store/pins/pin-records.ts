import { type Clock, NO_NODE, type NodeId, yieldToLoop } from "../../core/index.ts";
import type { BlockTable } from "../blocks/index.ts";
import type { HoldLedger, HoldRow, LedgerContents, PartRow } from "../index/index.ts";
import type { PinRegistryOptions } from "./pin-registry.ts";
import type { Pin, PinPart, PinTable, PinTerms } from "./pin-table.ts";
import type { PinEvents } from "./pins.ts";

export interface PinRecordsOptions {
  readonly table: BlockTable;
  readonly clock: Clock;
  readonly ledger: HoldLedger | null;
}

/**
 * Writes down what changed of holds, once a turn of the event loop however often it changed: the
 * parts that were touched, and nothing else. The first part lies in the row of the hold.
 */
export class PinRecords {
  readonly #parts: PinRecordsOptions;
  readonly #changed = new Map<PinPart, Pin>();
  /** One of them: blocks of a part change one after the other. */
  #latest: PinPart | null = null;

  constructor(parts: PinRecordsOptions) {
    this.#parts = parts;
  }

  /** Its end has changed, or what is in its first part. */
  change(pin: Pin): void {
    this.changePart(pin, pin.nodes.parts[0]!);
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

  /** Its end is now, and that is written before anything else becomes of it. */
  overdue(pin: Pin): void {
    const { ledger, table, clock } = this.#parts;
    if (ledger === null || !pin.isWhole || pin.ended) return;
    const [first] = pin.nodes.parts;
    ledger.putHold(rowOf(pin, blocksOf(first!.nodes, table), clock.bootId));
    ledger.seen(clock.bootId, clock.bootMs());
  }

  /** For good, with all its parts. */
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

/** Digest, and layer as u32 little-endian. */
const BLOCK_BYTES = 36;
const LAYER_AT = 32;

/** As a row has them. */
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

function rowOf(pin: Pin, blocks: Uint8Array, bootId: string): HoldRow {
  const { id, kind, owner, name, deadlineBootMs, priority, idleMs, createdWallMs } = pin;
  const { purges } = pin;
  return {
    id,
    kind,
    owner,
    name,
    deadlineBootMs,
    bootId,
    priority,
    idleMs,
    createdWallMs,
    purges,
    blocks,
  };
}

/** Names, numbers and what stands around them, at most. */
const ROW_BYTES = 512;

/** Rows of as many holds as fit into about `bytesMax`, soft pins last. */
export function rowsWithin(
  holds: Iterable<Pin>,
  bytesMax: number,
  table: BlockTable,
  bootId: string,
): HoldRow[] {
  const all = [...holds];
  const isSoft = ({ kind }: Pin) => kind === "retain";
  const rows: HoldRow[] = [];
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
 * When a hold that was written down ends, on the clock of this boot; null: never. Of the same boot
 * that is what the row says. Of another one: what was left of it when that boot was last seen,
 * counted from now, so that time during which the machine was off does not count. Where nothing was
 * seen of the row's boot: all the time there can have been, at most `longestMs`.
 */
function deadlineNow(
  row: HoldRow,
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

/** Where the system does not name its boots, a clock that went back tells that there was one. */
function isThisBoot(
  row: HoldRow,
  lastSeen: LedgerContents["lastSeen"],
  clock: Pick<Clock, "bootId" | "bootMs">,
): boolean {
  if (row.bootId !== clock.bootId) return false;
  return row.bootId !== "" || lastSeen === null || lastSeen.bootMs <= clock.bootMs();
}

/** The node of each block that is there; what is not is counted. */
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

/** Blocks looked up before the event loop turns again: some milliseconds. */
const BLOCKS_AT_ONCE = 16_384;

/** The node of a block that is in RAM or on SSD; NO_NODE where it is not. */
export type FindBlock = (digest: Uint8Array, layer: number) => NodeId;

/** Holds of a run before, and when they were last known to hold. */
export type RememberedHolds = Pick<LedgerContents, "holds" | "lastSeen"> &
  Partial<Pick<LedgerContents, "parts">>;

export interface Restored {
  readonly holds: number;
  readonly blocks: number;
  /** Blocks that a hold had and that are not there any more. */
  readonly lostBlocks: number;
  /** Holds of which no block is there. */
  readonly lostHolds: number;
}

/** Lets others run now and then. */
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
  readonly from: RememberedHolds;
  /** Of two leases of one name, the older: it had expired, and its blocks are still to go. */
  readonly onEnd: (pin: Pin) => void;
  readonly pinEvents: PinEvents;
}

interface RestoredRow {
  readonly row: HoldRow;
  readonly pin: Pin | null;
  readonly lost: number;
  /** Those from which blocks are lost. */
  readonly parts: readonly number[];
  /** The lease that had its name so far. */
  readonly replaced: Pin | null;
}

/** As `HoldRegistry.restore`. The rows that change do so in one transaction, with the time. */
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
  // Now that everything else that holds their blocks is back.
  for (const { replaced } of restored) if (replaced !== null) onEnd(replaced);
  return sum;
}

async function restoreOne(
  pinTable: PinTable,
  options: PinRegistryOptions,
  row: HoldRow,
  restoring: Restoring & { readonly parts: readonly PartRow[]; readonly pace: LoopYielder },
): Promise<RestoredRow> {
  const { find, parts, pace } = restoring;
  let [pin, replaced, lost]: [Pin | null, Pin | null, number] = [null, null, 0];
  const hit: number[] = [];
  for (const { part, blocks } of [{ part: 0, blocks: row.blocks }, ...parts]) {
    const { nodes, missing } = nodesOf(blocks, (digest, layer) => {
      const node = find(digest, layer);
      return node !== NO_NODE && pinTable.isOnTiers(node) ? node : null;
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

function termsOf(row: HoldRow, options: PinRegistryOptions, { from }: Restoring): PinTerms {
  const { kind, owner, name, priority, createdWallMs, purges } = row;
  const idleMs = kind === "retain" ? (row.idleMs ?? options.retainIdleMs()) : null;
  const longestMs = kind === "lease" ? options.leaseTtlMaxMs() : Infinity;
  const deadlineBootMs = deadlineNow(row, from.lastSeen, options.clock, longestMs);
  return { kind, owner, name, priority, idleMs, createdWallMs, deadlineBootMs, purges };
}

/** What is not as it was is written again, or for the last time. */
function record({ records }: PinTable, { row, pin, parts }: RestoredRow, bootId: string): void {
  if (pin === null) {
    records.forget(row.id);
    return;
  }
  if (isOfOtherBoot(row, pin, bootId)) records.change(pin);
  for (const part of parts) records.changePart(pin, pin.nodes.part(part));
}

function isOfOtherBoot(row: HoldRow, pin: Pin, bootId: string): boolean {
  if (row.deadlineBootMs === null) return false;
  return row.bootId !== bootId || row.deadlineBootMs !== pin.deadlineBootMs;
}
