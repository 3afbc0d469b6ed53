import { type BlockResult, type NodeId, yieldToLoop } from "../../core/index.ts";
import type { BlockTable } from "../blocks/index.ts";
import { HOLD_BLOCKS_A_CALL, type Soon } from "./holds.ts";

interface SliceResult {
  readonly results: readonly BlockResult[];
}

const MISSING: BlockResult = Object.freeze({ outcome: "missing" });

/**
 * Works on nodes in slices, one in a turn of the event loop; those that are gone when their turn
 * comes are `missing`. The first slice is done before this returns. What else the slices answer is
 * taken from the last one in which anything was rejected, or the last.
 */
export function inSlices<Result extends SliceResult>(
  table: BlockTable,
  nodes: readonly NodeId[],
  work: (nodes: readonly NodeId[]) => Result,
): Soon<Result> {
  return nodes.length <= HOLD_BLOCKS_A_CALL ? work(nodes) : inTurns(table, nodes, work);
}

async function inTurns<Result extends SliceResult>(
  table: BlockTable,
  nodes: readonly NodeId[],
  work: (nodes: readonly NodeId[]) => Result,
): Promise<Result> {
  const born = nodes.map((node) => table.generationOf(node));
  const results: BlockResult[] = [];
  let told: Result | null = null;
  for (let from = 0; from < nodes.length; from += HOLD_BLOCKS_A_CALL) {
    if (from > 0) await yieldToLoop();
    const slice = nodes.slice(from, from + HOLD_BLOCKS_A_CALL);
    const isThere = slice.map((node, at) => table.isLive(node, born[from + at]!));
    const done = work(slice.filter((_, at) => isThere[at]));
    let next = 0;
    for (const is of isThere) results.push(is ? done.results[next++]! : MISSING);
    if (told === null || !wasAnyRejected(told) || wasAnyRejected(done)) told = done;
  }
  return { ...told!, results };
}

function wasAnyRejected({ results }: SliceResult): boolean {
  return results.some(({ outcome }) => outcome === "rejected");
}
