import type { FlatTrace } from "./flat-trace.ts";
import type { LabPolicy } from "./policy.ts";
import { createPositions } from "./positions.ts";

const NEVER = 0xffff_ffff;

/**
 * The exact maximum, with full knowledge of the future and the freedom not to store (Belady 1966):
 * the block whose next use is farthest goes, the deepest first. A block's prefix is always needed
 * no later than the block, so this never breaks a prefix. The next use is a position in the flat
 * trace, which orders by request and then by depth; what is present is the set of those positions.
 */
export const best: LabPolicy = {
  name: "best",
  open(trace, capacity) {
    const { blocks, distinct } = trace;
    const nextUse = nextUses(trace);
    const present = new Uint8Array(distinct);
    const positions = createPositions(blocks.length);
    let size = 0;
    return {
      serve(from, to) {
        let miss = from;
        while (miss < to && present[blocks[miss]!] === 1) miss++;
        for (let at = from; at < to; at++) {
          const block = blocks[at]!;
          if (present[block] === 1) {
            positions.remove(at);
            present[block] = 0;
            size--;
          }
          const next = nextUse[at]!;
          if (next === NEVER) continue;
          positions.add(next);
          present[block] = 1;
          size++;
        }
        while (size > capacity) {
          const farthest = positions.last();
          positions.remove(farthest);
          present[blocks[farthest]!] = 0;
          size--;
        }
        return miss - from;
      },
    };
  },
};

/** For each use, the position of the same block's next one. */
function nextUses({ blocks, distinct }: FlatTrace): Uint32Array {
  const following = new Uint32Array(distinct).fill(NEVER);
  const next = new Uint32Array(blocks.length);
  for (let at = blocks.length - 1; at >= 0; at--) {
    const block = blocks[at]!;
    next[at] = following[block]!;
    following[block] = at;
  }
  return next;
}
