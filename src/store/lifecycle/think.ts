import type { BlockName, BlockResult, CommandOrigin, NodeId } from "../../core/index.ts";
import { NodeFlag, Tier } from "../blocks/index.ts";
import type { LifecycleContext } from "./context.ts";
import { Slices } from "./context.ts";
import type { Grant, LifecycleReport, Remembering } from "./lifecycle.ts";
import {
  ALREADY,
  BY_GPU,
  causeOf,
  DONE,
  holdersOf,
  isHeld,
  MISSING,
  NamedBlocks,
  NOT_DURABLE,
  OUR_TIERS,
  rejected,
  reportOf,
  STUCK_ON_SSD,
} from "./outcomes.ts";
import { Removal } from "./removal.ts";

const NOT_TRANSIENT = rejected("not_transient: only blocks marked as transient can be purged");

const onlyCopy = ({ fix }: Grant) =>
  rejected(`forbidden: the only copy is on SSD, and its removal requires the role purge${fix}`);

/**
 * Marks blocks as transient, which excludes them from SSD: cancels their writes and deletes their
 * files. Result `held`: a pin or lease needs the copy on SSD. `rejected`: that copy is the only
 * one, and the caller may not delete blocks.
 */
export async function markTransient(
  context: LifecycleContext,
  names: readonly BlockName[],
  origin: CommandOrigin,
  { grant, remember }: Remembering & { readonly grant: Grant },
): Promise<LifecycleReport> {
  const blocks = new NamedBlocks(context, names, OUR_TIERS | Tier.gpu, true);
  const { table, ssd } = context.store;
  const removal = new Removal(context, causeOf("transient", origin));
  const work: (Promise<unknown> | null)[] = [];
  const isBelowOnly = (node: NodeId) => (table.residencyOf(node) & OUR_TIERS) === Tier.ssd;
  // Set all marks in one turn of the event loop, so that no write to SSD begins in between.
  const marked = blocks.nodes.map((node, at): BlockResult => {
    work[at] = null;
    const isBelow = isBelowOnly(node);
    const isNeeded = ssd !== null && (table.isKept(node) || (isBelow && isHeld(context, node)));
    if (isNeeded) return { outcome: "held", by: holdersOf(context, node) };
    if (isBelow && !grant.mayPurge) return onlyCopy(grant);
    const isMarked = table.hasFlag(node, NodeFlag.transient);
    table.setFlag(node, NodeFlag.transient, true);
    const isQueued = ssd?.writer.isQueued(node) === true;
    if (isQueued) work[at] = ssd.writer.cancel(node).then(() => true);
    return isMarked && !isQueued && !table.isResident(node, Tier.ssd) ? ALREADY : DONE;
  });
  if (marked.includes(DONE)) remember?.(blocks.resultsOf(marked));
  const slices = new Slices(context.clock);
  for (const [at, result] of marked.entries()) {
    // Keep the copy of a block that was pinned meanwhile.
    const node = blocks.nodes[at];
    if (result !== DONE || !blocks.isOn(at, Tier.ssd) || table.isKept(node)) continue;
    // The block may have left RAM since it was marked, so that the copy on SSD is the only one.
    if (isBelowOnly(node) && !grant.mayPurge) {
      table.setFlag(node, NodeFlag.transient, false);
      marked[at] = onlyCopy(grant);
      continue;
    }
    work[at] = removal.dropFile(node);
    if (slices.isOver()) await slices.turn();
    if (removal.isFull) await removal.room();
  }
  return finish(context, blocks, removal, marked, work);
}

/** Removes the named blocks from all tiers if they are transient; the others are `rejected`. */
export async function purgeTransient(
  context: LifecycleContext,
  names: readonly BlockName[],
  origin: CommandOrigin,
  { remember }: Remembering = {},
): Promise<LifecycleReport> {
  const blocks = new NamedBlocks(context, names, OUR_TIERS | Tier.gpu);
  const { ssd, incoming } = context.store;
  // Report it even for unknown names, since a name may belong to a block that is being fetched.
  incoming.transientsRemoved();
  const removal = new Removal(context, causeOf("transient", origin));
  const slices = new Slices(context.clock);
  const work: (Promise<unknown> | null)[] = blocks.nodes.map(() => null);
  const results: BlockResult[] = [];
  // Go backwards: names list parents before children, and children must be removed first.
  for (let at = blocks.nodes.length - 1; at >= 0; at--) {
    const node = blocks.nodes[at];
    // If the block was marked while it was being written, its write was cancelled but may not have
    // ended.
    if (blocks.isLive(at) && ssd?.writer.isQueued(node)) {
      await ssd.orHung(ssd.writer.cancel(node));
    }
    results[at] = purgeOne(context, blocks, removal, at, work);
    if (slices.isOver()) await slices.turn();
    if (removal.isFull) await removal.room();
  }
  if (results.includes(DONE)) remember?.(blocks.resultsOf(results));
  return finish(context, blocks, removal, results, work);
}

function purgeOne(
  context: LifecycleContext,
  blocks: NamedBlocks,
  removal: Removal,
  at: number,
  work: (Promise<unknown> | null)[],
): BlockResult {
  const { table } = context.store;
  const node = blocks.nodes[at];
  if (!blocks.isLive(at)) return MISSING;
  if (!table.hasFlag(node, NodeFlag.transient)) return NOT_TRANSIENT;
  if ((table.residencyOf(node) & OUR_TIERS) === 0) return { outcome: "held", by: BY_GPU };
  if (isHeld(context, node)) return { outcome: "held", by: holdersOf(context, node) };
  work[at] = removal.drop(node);
  return DONE;
}

/**
 * Waits for file removals and cancelled writes. Sets the results of unconfirmed removals and
 * returns the report.
 */
async function finish(
  context: LifecycleContext,
  blocks: NamedBlocks,
  removal: Removal,
  results: readonly BlockResult[],
  work: readonly (Promise<unknown> | null)[],
): Promise<LifecycleReport> {
  const { ssd } = context.store;
  const over = await Promise.all(
    work.map((one) => (one === null || ssd === null ? true : ssd.orHung(one))),
  );
  const isDone = results.includes(DONE);
  const isGone = !isDone || (await removal.end());
  const told = results.map((result, at) => {
    if (result !== DONE) return result;
    if (over[at] !== true) return STUCK_ON_SSD;
    return isGone ? DONE : NOT_DURABLE;
  });
  const durable = isGone && ssd !== null;
  return reportOf(blocks.resultsOf(told), { bytes: removal.bytes, durable });
}
