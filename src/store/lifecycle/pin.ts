import { type BlockName, type BlockResult, NO_NODE, type NodeId } from "../../core/index.ts";
import { crashPoint } from "../../native/index.ts";
import { NodeFlag, type TableView, Tier } from "../blocks/index.ts";
import type { AddedPin } from "../pins/index.ts";
import type { LifecycleContext } from "./context.ts";
import type { LifecycleReport, Remember, Remembering } from "./lifecycle.ts";
import {
  ALREADY,
  COPY_OUTSTANDING,
  DONE,
  deferred,
  NamedBlocks,
  NOT_DURABLE,
  OUR_TIERS,
  reportOf,
} from "./outcomes.ts";

/** Options of the operations on one owner's pins. */
interface OwnedBy extends Remembering {
  readonly owner: string;
}

const RAM_ONLY = deferred(
  "transient: pinned in RAM only; a transient block is not written to SSD and is lost in a crash",
);

/**
 * Pins blocks on this host. Pins are counted. A pin keeps the block on the host, but not in RAM:
 * the block may leave RAM while SSD has it. Adds the pin immediately, then writes blocks that are
 * only in RAM to SSD, then makes files and pin durable. A pin of a block that is on SSD takes one
 * commit of the ledger.
 */
export async function pin(
  context: LifecycleContext,
  names: readonly BlockName[],
  { owner, ttlMs, remember }: OwnedBy & { readonly ttlMs: number | null },
): Promise<LifecycleReport> {
  const { store, holds } = context;
  const blocks = new NamedBlocks(context, names);
  if (blocks.nodes.length === 0) return reportOf(blocks.resultsOf([]));
  const { nodes } = blocks;
  const request = { name: null, priority: null, idleMs: null };
  const since = holds.mark;
  const adding = holds.addAll({ ...request, kind: "pin", owner, nodes, ttlMs });
  const added = adding instanceof Promise ? await adding : adding;
  const { figures } = added;
  const now = () => nodes.map((_, at) => placed(context, blocks, added, at));
  const atOnce = now();
  const results = blocks.resultsOf(atOnce);
  if (added.id === null) return reportOf(results, { figures });
  const above = ancestorsOf(store.table, nodes);
  const all = [...nodes, ...above];
  const isThere = areOutOfRam(store.table, above) && !atOnce.includes(COPY_OUTSTANDING);
  const expected =
    isThere && context.durability.areWritten(all)
      ? reportOf(results, { figures, ttlMs, durable: store.ssd !== null })
      : undefined;
  remember?.(results, expected);
  const bytes = await secure(context, blocks, atOnce, above);
  crashPoint("pin.secured");
  const [written, committed] = await Promise.all([
    context.durability.writes(all),
    context.durability.holds(since),
  ]);
  const durable = written && committed;
  if (durable && expected !== undefined) return expected;
  const isLeading = store.ssd === null || areOutOfRam(store.table, above);
  const later = (atOnce.includes(COPY_OUTSTANDING) ? now() : atOnce).map((result) => {
    if (result !== DONE) return result;
    if (!durable) return NOT_DURABLE;
    return isLeading ? DONE : ANCESTOR_OUTSTANDING;
  });
  const isOnDisk = store.ssd !== null && durable;
  return reportOf(blocks.resultsOf(later), { figures, ttlMs, bytes, durable: isOnDisk });
}

/** Returns the block's result after it was pinned or refused. */
function placed(
  { store }: LifecycleContext,
  blocks: NamedBlocks,
  added: AddedPin,
  at: number,
): BlockResult {
  const result = added.results[at];
  if (result.outcome !== "done") return result;
  if (store.ssd === null || blocks.isOn(at, Tier.ssd)) return DONE;
  const isTransient =
    blocks.isLive(at) && store.table.hasFlag(blocks.nodes[at], NodeFlag.transient);
  return isTransient ? RAM_ONLY : COPY_OUTSTANDING;
}

/**
 * Writes pinned blocks and their ancestors to SSD if they are not there. Returns the bytes of the
 * pinned blocks written.
 */
async function secure(
  { store, signal }: LifecycleContext,
  blocks: NamedBlocks,
  results: readonly BlockResult[],
  above: readonly NodeId[],
): Promise<number> {
  const { ssd, table } = store;
  if (ssd === null) return 0;
  const outstanding = blocks.nodes.filter((_, at) => results[at] === COPY_OUTSTANDING);
  if (outstanding.length === 0 && areOutOfRam(table, above)) return 0;
  const bytes = outstanding.map((node) => table.bytesOf(node));
  const written = await ssd.secure([...outstanding, ...above], signal);
  return bytes.reduce((sum, blockBytes, i) => sum + (written[i] ? blockBytes : 0), 0);
}

/**
 * Removes one pin of the owner from each block. A block without other pins can then be evicted.
 * Result `already`: the owner has no pin on the block.
 */
export function unpin(
  context: LifecycleContext,
  names: readonly BlockName[],
  options: OwnedBy,
): Promise<LifecycleReport> {
  return letGo(context, "pin", names, options);
}

async function letGo(
  context: LifecycleContext,
  kind: "pin" | "retain",
  names: readonly BlockName[],
  { owner, remember }: OwnedBy,
): Promise<LifecycleReport> {
  const blocks = new NamedBlocks(context, names, 0);
  const going = context.holds.letGoAll(kind, owner, blocks.nodes);
  const gone = going instanceof Promise ? await going : going;
  const byNode = gone.map((isGone) => (isGone ? DONE : ALREADY));
  return settled(context, blocks, byNode, gone.includes(true), remember);
}

/** Sets the owner's soft pin on each block. Priority 0 removes it. */
export async function retain(
  context: LifecycleContext,
  names: readonly BlockName[],
  options: OwnedBy & { readonly priority: number; readonly idleMs: number | null },
): Promise<LifecycleReport> {
  const { owner, priority, idleMs, remember } = options;
  const { holds } = context;
  if (priority === 0) return letGo(context, "retain", names, options);
  const blocks = new NamedBlocks(context, names);
  const { nodes } = blocks;
  if (nodes.length === 0) return reportOf(blocks.resultsOf([]));
  const request = { name: null, ttlMs: null, priority, idleMs };
  // Remove the owner's previous soft pin: the new one replaces it.
  const going = holds.letGoAll("retain", owner, nodes);
  const hadOne = (going instanceof Promise ? await going : going).includes(true);
  const adding = holds.addAll({ ...request, kind: "retain", owner, nodes });
  const added = adding instanceof Promise ? await adding : adding;
  return settled(context, blocks, added.results, hadOne || added.id !== null, remember);
}

/** Waits for the ledger's commit and returns the report. */
async function settled(
  context: LifecycleContext,
  blocks: NamedBlocks,
  byNode: readonly BlockResult[],
  changed: boolean,
  remember: Remember | undefined,
): Promise<LifecycleReport> {
  const results = blocks.resultsOf(byNode);
  if (!changed) return reportOf(results);
  const expected = reportOf(results, { durable: context.store.ssd !== null });
  remember?.(results, expected);
  if (await context.durability.holds()) return expected;
  return reportOf(results.map((result) => (result.outcome === "done" ? NOT_DURABLE : result)));
}

/**
 * Result for a block that is on SSD while an ancestor is only in RAM: after a crash a prefix lookup
 * would end before the block.
 */
export const ANCESTOR_OUTSTANDING = deferred(
  "ssd: an ancestor is in RAM only; its copy to SSD is retried",
);

/** Returns the ancestors of `nodes` that are not in `nodes`, each once. */
export function ancestorsOf(table: TableView, nodes: readonly NodeId[]): NodeId[] {
  const seen = new Set(nodes);
  const above: NodeId[] = [];
  for (const node of nodes) {
    let step = table.parentOf(node);
    for (; step !== NO_NODE && !seen.has(step); step = table.parentOf(step)) {
      seen.add(step);
      above.push(step);
    }
  }
  return above;
}

/**
 * Returns whether all nodes of `above` survive a crash, so that the blocks after them in the prefix
 * can still be found. `above`: ancestors of pinned blocks.
 */
export function areOutOfRam(table: TableView, above: readonly NodeId[]): boolean {
  return above.every((node) => (table.residencyOf(node) & OUR_TIERS) !== Tier.ram);
}
