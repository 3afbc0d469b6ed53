import type { FlatTrace } from "./flat-trace.ts";
import { createLists } from "./lists.ts";
import type { LabCache, LabPolicy } from "./policy.ts";

/**
 * Least recently used. A prompt's blocks are used from the last to the first, so a block is always
 * younger than its descendants and leaves are evicted first.
 */
export const lru: LabPolicy = {
  name: "lru",
  open: openLru,
};

function openLru({ blocks, distinct }: FlatTrace, capacity: number): LabCache {
  const lists = createLists(distinct, 1);
  let size = 0;

  function use(block: number): void {
    if (lists.has(block)) lists.remove(block);
    else if (size < capacity) size++;
    else lists.remove(lists.first(0));
    lists.append(0, block);
  }

  return {
    serve(from, to) {
      const hits = lists.leading(blocks, from, to);
      for (let at = to - 1; at >= from; at--) use(blocks[at]!);
      return hits;
    },
  };
}
