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
}

/** As `HoldRegistry.restore`. The rows that change do so in one transaction, with the time. */
export async function restoreHolds(
  book: HoldBook,
  options: HoldRegistryOptions,
  find: FindBlock,
  from: RememberedHolds,
): Promise<Restored> {
  const rows = [...from.holds].sort((a, b) => a.id - b.id);
  const changes: Changes = { changed: [], gone: [] };
  const sum = { holds: 0, blocks: 0, lostBlocks: 0, lostHolds: 0 };
  let looked = 0;
  for (const row of rows) {
    const { hold, lost } = restoreOne(book, options, row, { find, from });
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
  return sum;
}

function restoreOne(
  book: HoldBook,
  options: HoldRegistryOptions,
  row: HoldRow,
  { find, from }: { readonly find: FindBlock; readonly from: RememberedHolds },
): { readonly hold: Hold | null; readonly lost: number } {
  const { clock, leaseTtlMaxMs } = options;
  const { nodes, missing } = nodesOf(row, (digest, layer) => {
    const node = find(digest, layer);
    return node !== NO_NODE && book.isOnTiers(node) ? node : null;
  });
  const { kind, owner, name, priority, idleMs, createdWallMs } = row;
  const isSound = kind !== "lease" || (name !== null && !book.leases.has(name));
  if (nodes.length === 0 || !isSound) return { hold: null, lost: missing + nodes.length };
  const longestMs = kind === "lease" ? leaseTtlMaxMs() : Infinity;
  const deadlineBootMs = deadlineNow(row, from.lastSeen, clock, longestMs);
  const terms = { kind, owner, name, priority, idleMs, createdWallMs, deadlineBootMs };
  const hold = book.begin(terms, row.id);
  for (const node of nodes) if (!hold.nodes.has(node)) book.join(hold, node);
  book.schedule(hold);
  return { hold, lost: missing };
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
