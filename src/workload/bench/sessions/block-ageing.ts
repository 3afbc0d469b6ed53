import { createLists } from "../policy/index.ts";
import type { SessionTrace } from "./session-trace.ts";
import type { Simulation } from "./simulation.ts";
import type { Tally } from "./tally.ts";

/**
 * Blocks age one by one, as in the agent: every turn's blocks are in the tree, a session between
 * two turns holds nothing, and where room is needed the block used longest ago goes, leaves before
 * parents. A prompt is used from its last block to its first.
 */
export function simulateBlockAgeing(
  { blocks, distinct }: SessionTrace,
  capacity: number,
  tally: Tally,
): Simulation {
  const lists = createLists(distinct, 1);
  let size = 0;

  function use(block: number): void {
    if (lists.has(block)) lists.remove(block);
    else if (size < capacity) size++;
    else {
      const oldest = lists.first(0);
      lists.remove(oldest);
      tally.blockEvicted(oldest);
    }
    lists.append(0, block);
  }

  return {
    serve(request, from, to) {
      tally.served(request, from, lists.leading(blocks, from, to));
      for (let at = to - 1; at >= from; at--) use(blocks[at]!);
    },
  };
}
