import { NO_NODE, type NodeId, yieldToLoop } from "../core/index.ts";
import type { HoldRow, LedgerContents } from "../index/index.ts";
import type { Hold } from "./hold.ts";
import type { HoldBook } from "./hold-book.ts";
import type { HoldRegistryOptions } from "./hold-registry.ts";
import { deadlineNow, nodesOf } from "./hold-rows.ts";

/** Blocks looked up before the event loop turns again: some milliseconds. */
const BLOCKS_AT_ONCE = 16_384;
const WHY = "not there after the start";

/** The node of a block that is in RAM or on SSD; NO_NODE where it is not. */
export type FindBlock = (digest: Uint8Array, layer: number) => NodeId;

/** Holds of a run before, and when they were last known to hold. */
export type RememberedHolds = Pick<LedgerContents, "holds" | "lastSeen">;

export interface Restored {
  readonly holds: number;
  readonly blocks: number;
  /** Blocks that a hold had and that are not there any more. */
  readonly lostBlocks: number;
  /** Holds of which no block is there. */
  readonly lostHolds: number;
}

/** What has to be written again, or for the last time. */
interface Changes {
  readonly changed: Hold[];
  readonly gone: number[];
  /** Their names are another's. */
  readonly replaced: Hold[];
}

export interface Restoring {
  readonly find: FindBlock;
  readonly from: RememberedHolds;
  /** Of two leases of one name, the older: it had expired, and its blocks are still to go. */
  readonly onEnd: (hold: Hold) => void;
}

/** As `HoldRegistry.restore`. The rows that change do so in one transaction, with the time. */
export async function restoreHolds(
  book: HoldBook,
  options: HoldRegistryOptions,
  restoring: Restoring,
): Promise<Restored> {
  const { from, onEnd } = restoring;
  const rows = [...from.holds].sort((a, b) => a.id - b.id);
  const changes: Changes = { changed: [], gone: [], replaced: [] };
  const sum = { holds: 0, blocks: 0, lostBlocks: 0, lostHolds: 0 };
  let looked = 0;
  for (const row of rows) {
    const { hold, lost, replaced } = restoreOne(book, options, row, restoring);
    if (replaced !== undefined) changes.replaced.push(replaced);
    if (hold !== null) sum.holds++;
    else sum.lostHolds++;
    const blocks = hold?.nodes.size ?? 0;
    sum.blocks += blocks;
    sum.lostBlocks += lost;
    if (hold === null) changes.gone.push(row.id);
    else if (lost > 0 || isOfOtherBoot(row, hold, options.clock.bootId)) changes.changed.push(hold);
    if (lost > 0) tellLost(options, row, lost, blocks);
    looked += blocks + lost + 1;
    if (looked < BLOCKS_AT_ONCE) continue;
    looked = 0;
    await yieldToLoop();
  }
  book.skipIds(rows.at(-1)?.id ?? 0);
  for (const hold of changes.changed) book.record(hold);
  for (const id of changes.gone) book.forget(id);
  // Now that everything else that holds their blocks is back.
  for (const hold of changes.replaced) onEnd(hold);
  return sum;
}

interface RestoredRow {
  readonly hold: Hold | null;
  readonly lost: number;
  /** The lease that had its name so far. */
  readonly replaced?: Hold | undefined;
}

function restoreOne(
  book: HoldBook,
  options: HoldRegistryOptions,
  row: HoldRow,
  { find, from }: Restoring,
): RestoredRow {
  const { clock, leaseTtlMaxMs } = options;
  const { nodes, missing } = nodesOf(row, (digest, layer) => {
    const node = find(digest, layer);
    return node !== NO_NODE && book.isOnTiers(node) ? node : null;
  });
  const { kind, owner, name, priority, idleMs, createdWallMs } = row;
  const isSound = kind !== "lease" || name !== null;
  if (nodes.length === 0 || !isSound) return { hold: null, lost: missing + nodes.length };
  const longestMs = kind === "lease" ? leaseTtlMaxMs() : Infinity;
  const deadlineBootMs = deadlineNow(row, from.lastSeen, clock, longestMs);
  const terms = { kind, owner, name, priority, idleMs, createdWallMs, deadlineBootMs };
  const replaced = kind === "lease" ? book.leases.get(name!) : undefined;
  if (replaced !== undefined) book.unname(replaced);
  const hold = book.begin(terms, row.id);
  for (const node of nodes) if (!hold.nodes.has(node)) book.join(hold, node);
  book.schedule(hold);
  return { hold, lost: missing, replaced };
}

function isOfOtherBoot(row: HoldRow, hold: Hold, bootId: string): boolean {
  if (row.deadlineBootMs === null) return false;
  return row.bootId !== bootId || row.deadlineBootMs !== hold.deadlineBootMs;
}

function tellLost(
  { events, log }: HoldRegistryOptions,
  row: HoldRow,
  lost: number,
  left: number,
): void {
  const { kind, owner, name } = row;
  events.emit({ kind: "hold_lost", hold: kind, owner, name, blocks: lost, why: WHY });
  const lease = name === null ? {} : { lease: name };
  const fields = { hold: kind, owner, ...lease, lost, left };
  log.warn("blocks under a hold are not there after the start", fields);
}
