import type { LabPolicy } from "./policy.ts";

/**
 * First in, first out: the block stored longest ago goes, whatever was hit since. A prompt's new
 * blocks are stored from the last to the first, so the last goes first here too.
 */
export const fifo: LabPolicy = {
  name: "fifo",
  open({ blocks, distinct }, capacity) {
    const present = new Uint8Array(distinct);
    const queue = new Uint32Array(capacity);
    let size = 0;
    let oldest = 0;
    return {
      serve(from, to) {
        let miss = from;
        while (miss < to && present[blocks[miss]!] === 1) miss++;
        for (let at = to - 1; at >= from; at--) {
          const block = blocks[at]!;
          if (present[block] === 1) continue;
          if (size < capacity) queue[size++] = block;
          else {
            present[queue[oldest]!] = 0;
            queue[oldest] = block;
            oldest = oldest + 1 === capacity ? 0 : oldest + 1;
          }
          present[block] = 1;
        }
        return miss - from;
      },
    };
  },
};
