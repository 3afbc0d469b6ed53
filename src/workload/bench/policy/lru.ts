import type { FlatTrace } from "./flat-trace.ts";
import { createLists } from "./lists.ts";
import type { LabCache, LabPolicy } from "./policy.ts";

/**
 * Least recently used, a prompt used from its last block to its first: a block is never older than
 * what hangs behind it, so leaves go first.
 */
export const lru: LabPolicy = {
  name: "lru",
  open: (trace, capacity) => openLru(trace, capacity, false),
};

/** The naive order, from a prompt's first block to its last: parents go before their children. */
export const lruHeadFirst: LabPolicy = {
  name: "lru-head-first",
  open: (trace, capacity) => openLru(trace, capacity, true),
};

function openLru({ blocks, distinct }: FlatTrace, capacity: number, headFirst: boolean): LabCache {
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
      if (headFirst) for (let at = from; at < to; at++) use(blocks[at]!);
      else for (let at = to - 1; at >= from; at--) use(blocks[at]!);
      return hits;
    },
  };
}
