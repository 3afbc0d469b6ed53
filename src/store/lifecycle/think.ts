import type { BlockName, BlockResult, NodeId } from "../../core/index.ts";
import { NodeFlag, Tier } from "../blocks/index.ts";
import type { LifecycleContext } from "./context.ts";
import { Slices } from "./context.ts";
import type { Grant, Lifecycle, LifecycleReport, Remember } from "./lifecycle.ts";
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
  reportOf,
  STUCK_ON_SSD,
} from "./outcomes.ts";
import { Removal } from "./removal.ts";

type Origin = Parameters<Lifecycle["markTransient"]>[1];

const NOT_TRANSIENT: BlockResult = Object.freeze({
  outcome: "rejected",
  reason: "not_transient: only blocks marked as transient are purged",
});

const onlyCopy = ({ fix }: Grant): BlockResult => ({
  outcome: "rejected",
  reason: `forbidden: its only copy is on SSD, and to remove it needs the role purge${fix}`,
});

/**
 * From now on the blocks are never written to SSD; what is written is called off or deleted. Not
 * if a pin or a lease needs the copy there (`held`), nor, without the grant, if that is the only
 * one (`rejected`).
 */
export async function markTransient(
  context: LifecycleContext,
  names: readonly BlockName[],
  origin: Origin,
  { grant, remember }: Parameters<Lifecycle["markTransient"]>[2],
): Promise<LifecycleReport> {
  const blocks = new NamedBlocks(context, names, OUR_TIERS | Tier.gpu, true);
  const { table, ssd } = context.store;
  const removal = new Removal(context, causeOf("transient", origin));
  const work: (Promise<unknown> | null)[] = [];
  const isBelowOnly = (node: NodeId) => (table.residencyOf(node) & OUR_TIERS) === Tier.ssd;
  // All marks in one turn: no write can begin in between.
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
    // What was pinned since has its copy back, or will.
    const node = blocks.nodes[at]!;
    if (result !== DONE || !blocks.isOn(at, Tier.ssd) || table.isKept(node)) continue;
    // It may have left RAM since the mark.
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

/** Takes transient blocks off all tiers. */
export async function purgeTransient(
  context: LifecycleContext,
  names: readonly BlockName[],
  origin: Origin,
  { remember }: { readonly remember?: Remember } = {},
): Promise<LifecycleReport> {
  const blocks = new NamedBlocks(context, names, OUR_TIERS | Tier.gpu);
  const { ssd, landings } = context.store;
  // Names that lead nowhere may be those of a block that is on its way here.
  landings.transientsRemoved();
  const removal = new Removal(context, causeOf("transient", origin));
  const slices = new Slices(context.clock);
  const work: (Promise<unknown> | null)[] = blocks.nodes.map(() => null);
  const results: BlockResult[] = [];
  // Children are named behind their parents: they go first.
  for (let at = blocks.nodes.length - 1; at >= 0; at--) {
    const node = blocks.nodes[at]!;
    // A mark that came while the block was on its way called the write off, which may not be over.
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
  const node = blocks.nodes[at]!;
  if (!blocks.isLive(at)) return MISSING;
  if (!table.hasFlag(node, NodeFlag.transient)) return NOT_TRANSIENT;
  if ((table.residencyOf(node) & OUR_TIERS) === 0) return { outcome: "held", by: BY_GPU };
  if (isHeld(context, node)) return { outcome: "held", by: holdersOf(context, node) };
  work[at] = removal.drop(node);
  return DONE;
}

/** Waits for files that go and writes that were called off; says what could not be confirmed. */
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
