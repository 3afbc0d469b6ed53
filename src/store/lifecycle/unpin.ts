import type { BlockName, BlockResult } from "../../core/index.ts";
import type { LifecycleContext } from "./context.ts";
import type { Lifecycle, LifecycleReport, Remember } from "./lifecycle.ts";
import { NamedBlocks } from "./named-blocks.ts";
import { ALREADY, DONE, NOT_DURABLE, reportOf } from "./outcomes.ts";

/** Lets the owner's pin on each block go, once; where nobody else has one, the block ages again. */
export async function unpin(
  context: LifecycleContext,
  names: readonly BlockName[],
  { owner, remember }: Parameters<Lifecycle["unpin"]>[1],
): Promise<LifecycleReport> {
  const blocks = new NamedBlocks(context, names, 0);
  const going = context.holds.letGoAll("pin", owner, blocks.nodes);
  const gone = going instanceof Promise ? await going : going;
  const byNode = gone.map((isGone) => (isGone ? DONE : ALREADY));
  return settled(context, blocks, byNode, gone.includes(true), remember);
}

/** Sets what is left of the owner's preference for each block; priority 0: none. */
export async function retain(
  context: LifecycleContext,
  names: readonly BlockName[],
  { owner, priority, idleMs, remember }: Parameters<Lifecycle["retain"]>[1],
): Promise<LifecycleReport> {
  const { holds } = context;
  if (priority === 0) {
    const blocks = new NamedBlocks(context, names, 0);
    const going = holds.letGoAll("retain", owner, blocks.nodes);
    const gone = going instanceof Promise ? await going : going;
    const byNode = gone.map((isGone) => (isGone ? DONE : ALREADY));
    return settled(context, blocks, byNode, gone.includes(true), remember);
  }
  const blocks = new NamedBlocks(context, names);
  const { nodes } = blocks;
  if (nodes.length === 0) return reportOf(blocks.resultsOf([]));
  const request = { name: null, ttlMs: null, priority, idleMs };
  // It takes the place of what the owner said before.
  const going = holds.letGoAll("retain", owner, nodes);
  const hadOne = (going instanceof Promise ? await going : going).includes(true);
  const adding = holds.addAll({ ...request, kind: "retain", owner, nodes });
  const added = adding instanceof Promise ? await adding : adding;
  return settled(context, blocks, added.results, hadOne || added.id !== null, remember);
}

/** The report once the ledger has the change. */
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
