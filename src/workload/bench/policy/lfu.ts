import { createLists } from "./lists.ts";
import type { LabPolicy } from "./policy.ts";

/**
 * Least frequently used: the block with the fewest uses since it was stored goes; among equals the
 * one whose last use is the longest ago (counting age from when it was stored gives the same four
 * digits on the traces tried). A block that is stored again starts at one use. One list for each
 * count, in order of use; one use a request at most, so as many lists as requests.
 */
export const lfu: LabPolicy = {
  name: "lfu",
  open({ blocks, distinct, ends }, capacity) {
    const lists = createLists(distinct, ends.length + 1);
    const count = new Uint32Array(distinct);
    let size = 0;
    let lowest = 1;

    function store(block: number): void {
      if (size < capacity) size++;
      else {
        while (lists.isEmpty(lowest)) lowest++;
        lists.remove(lists.first(lowest));
      }
      count[block] = 1;
      lists.append(1, block);
      lowest = 1;
    }

    return {
      serve(from, to) {
        const hits = lists.leading(blocks, from, to);
        for (let at = to - 1; at >= from; at--) {
          const block = blocks[at]!;
          if (!lists.has(block)) store(block);
          else {
            lists.remove(block);
            lists.append(++count[block]!, block);
          }
        }
        return hits;
      },
    };
  },
};
