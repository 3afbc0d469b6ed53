import { NodeFlag, Tier } from "../../blocks/index.ts";
import type { BlockName, BlockResult } from "../../core/index.ts";
import type { AddedHold } from "../../leases/index.ts";
import type { LifecycleContext } from "./context.ts";
import type { Lifecycle, LifecycleReport } from "./lifecycle.ts";
import { NamedBlocks } from "./named-blocks.ts";
import { COPY_OUTSTANDING, DONE, NOT_DURABLE, reportOf } from "./outcomes.ts";

const RAM_ONLY: BlockResult = Object.freeze({
  outcome: "deferred",
  reason: "transient: kept in RAM; it is never written to SSD, so a crash loses it",
});

type PinOptions = Parameters<Lifecycle["pin"]>[1];

/**
 * Pins blocks that are in RAM or on SSD: the hold at once, what RAM alone has is written to SSD, then
 * file and hold are made to last. A pin of what is on SSD already costs a commit of the ledger.
 */
export async function pin(
  context: LifecycleContext,
  names: readonly BlockName[],
  { owner, ttlMs, remember }: PinOptions,
): Promise<LifecycleReport> {
  const { store, holds } = context;
  const blocks = new NamedBlocks(context, names);
  if (blocks.nodes.length === 0) return reportOf(blocks.resultsOf([]));
  const { nodes } = blocks;
  const request = { name: null, priority: null, idleMs: null };
  const added = holds.add({ ...request, kind: "pin", owner, nodes, ttlMs });
  const now = () => nodes.map((_, at) => placed(context, blocks, added, at));
  if (added.id === null) return reportOf(blocks.resultsOf(now()), { figures: added.figures });
  remember?.(blocks.resultsOf(now()));
  const bytes = await secure(context, blocks, added);
  const [written, committed] = await Promise.all([
    store.ssd === null || context.durability.writes(),
    context.durability.holds(),
  ]);
  const durable = written && committed;
  const results = now().map((result) => (result === DONE && !durable ? NOT_DURABLE : result));
  const { figures } = added;
  const isOnDisk = store.ssd !== null && durable;
  return reportOf(blocks.resultsOf(results), { figures, ttlMs, bytes, durable: isOnDisk });
}

/** What can be said of the block now that it is pinned, or was refused. */
function placed(
  { store }: LifecycleContext,
  blocks: NamedBlocks,
  added: AddedHold,
  at: number,
): BlockResult {
  const result = added.results[at]!;
  if (result.outcome !== "done") return result;
  if (store.ssd === null || blocks.isOn(at, Tier.ssd)) return DONE;
  const isTransient =
    blocks.isLive(at) && store.table.hasFlag(blocks.nodes[at]!, NodeFlag.transient);
  return isTransient ? RAM_ONLY : COPY_OUTSTANDING;
}

/** Writes to SSD what was pinned and is not there; bytes written. */
async function secure(
  { store, signal }: LifecycleContext,
  blocks: NamedBlocks,
  added: AddedHold,
): Promise<number> {
  const { ssd, table } = store;
  if (ssd === null) return 0;
  const outstanding = blocks.nodes.filter(
    (node, at) =>
      added.results[at]!.outcome === "done" &&
      !table.isResident(node, Tier.ssd) &&
      !table.hasFlag(node, NodeFlag.transient),
  );
  if (outstanding.length === 0) return 0;
  const bytes = outstanding.map((node) => table.bytesOf(node));
  const written = await ssd.secure(outstanding, signal);
  return written.reduce((sum, isWritten, i) => sum + (isWritten ? bytes[i]! : 0), 0);
}
