import { NO_NODE, type NodeId, yieldToLoop } from "../../core/index.ts";
import type { HoldRow, LedgerContents, PartRow } from "../index/index.ts";
import type { Hold } from "./hold.ts";
import type { HoldBook, HoldTerms } from "./hold-book.ts";
import type { HoldNews } from "./hold-news.ts";
import type { HoldRegistryOptions } from "./hold-registry.ts";
import { deadlineNow, nodesOf } from "./hold-rows.ts";

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
class Pace {
  #looked = 0;

  async looked(blocks: number): Promise<void> {
    this.#looked += blocks + 1;
    if (this.#looked < BLOCKS_AT_ONCE) return;
    this.#looked = 0;
    await yieldToLoop();
  }
}

export interface Restoring {
  readonly find: FindBlock;
  readonly from: RememberedHolds;
  /** Of two leases of one name, the older: it had expired, and its blocks are still to go. */
  readonly onEnd: (hold: Hold) => void;
  readonly news: HoldNews;
}

interface RestoredRow {
  readonly row: HoldRow;
  readonly hold: Hold | null;
  readonly lost: number;
  /** Those from which blocks are lost. */
  readonly parts: readonly number[];
  /** The lease that had its name so far. */
  readonly replaced: Hold | null;
}

/** As `HoldRegistry.restore`. The rows that change do so in one transaction, with the time. */
export async function restoreHolds(
  book: HoldBook,
  options: HoldRegistryOptions,
  restoring: Restoring,
): Promise<Restored> {
  const { from, onEnd } = restoring;
  const rows = [...from.holds].sort((a, b) => a.id - b.id);
  const partsOf = Map.groupBy(from.parts ?? [], ({ hold }) => hold);
  book.skipIds(rows.at(-1)?.id ?? 0);
  const restored: RestoredRow[] = [];
  const sum = { holds: 0, blocks: 0, lostBlocks: 0, lostHolds: 0 };
  const pace = new Pace();
  for (const row of rows) {
    const parts = partsOf.get(row.id) ?? [];
    partsOf.delete(row.id);
    const one = await restoreOne(book, options, row, { ...restoring, parts, pace });
    const { hold, lost } = one;
    restored.push(one);
    if (hold !== null) sum.holds++;
    else sum.lostHolds++;
    const blocks = hold?.nodes.size ?? 0;
    sum.blocks += blocks;
    sum.lostBlocks += lost;
    if (lost > 0) restoring.news.missing(row, lost, blocks);
  }
  for (const one of restored) record(book, one, options.clock.bootId);
  for (const id of partsOf.keys()) book.records.forget(id);
  // Now that everything else that holds their blocks is back.
  for (const { replaced } of restored) if (replaced !== null) onEnd(replaced);
  return sum;
}

async function restoreOne(
  book: HoldBook,
  options: HoldRegistryOptions,
  row: HoldRow,
  restoring: Restoring & { readonly parts: readonly PartRow[]; readonly pace: Pace },
): Promise<RestoredRow> {
  const { find, parts, pace } = restoring;
  let [hold, replaced, lost]: [Hold | null, Hold | null, number] = [null, null, 0];
  const hit: number[] = [];
  for (const { part, blocks } of [{ part: 0, blocks: row.blocks }, ...parts]) {
    const { nodes, missing } = nodesOf(blocks, (digest, layer) => {
      const node = find(digest, layer);
      return node !== NO_NODE && book.isOnTiers(node) ? node : null;
    });
    const isSound = row.kind !== "lease" || row.name !== null;
    lost += isSound ? missing : missing + nodes.length;
    if (missing > 0) hit.push(part);
    if (nodes.length > 0 && isSound && hold === null) {
      replaced = row.kind === "lease" ? (book.leases.get(row.name!) ?? null) : null;
      if (replaced !== null) book.unname(replaced);
      hold = book.begin(termsOf(row, options, restoring), row.id);
    }
    for (const node of nodes)
      if (hold !== null && !hold.nodes.has(node)) book.join(hold, node, part);
    await pace.looked(nodes.length + missing);
  }
  if (hold !== null) book.schedule(hold);
  return { row, hold, lost, parts: hit, replaced };
}

function termsOf(row: HoldRow, options: HoldRegistryOptions, { from }: Restoring): HoldTerms {
  const { kind, owner, name, priority, createdWallMs, purges } = row;
  const idleMs = kind === "retain" ? (row.idleMs ?? options.retainIdleMs()) : null;
  const longestMs = kind === "lease" ? options.leaseTtlMaxMs() : Infinity;
  const deadlineBootMs = deadlineNow(row, from.lastSeen, options.clock, longestMs);
  return { kind, owner, name, priority, idleMs, createdWallMs, deadlineBootMs, purges };
}

/** What is not as it was is written again, or for the last time. */
function record({ records }: HoldBook, { row, hold, parts }: RestoredRow, bootId: string): void {
  if (hold === null) {
    records.forget(row.id);
    return;
  }
  if (isOfOtherBoot(row, hold, bootId)) records.change(hold);
  for (const part of parts) records.changePart(hold, hold.nodes.part(part));
}

function isOfOtherBoot(row: HoldRow, hold: Hold, bootId: string): boolean {
  if (row.deadlineBootMs === null) return false;
  return row.bootId !== bootId || row.deadlineBootMs !== hold.deadlineBootMs;
}
