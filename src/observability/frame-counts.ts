import { assert } from "../core/index.ts";
import { FRAME_OPERATIONS, FRAME_STATUSES } from "./catalogue-engine.ts";
import type { FrameCount } from "./snapshots.ts";

/**
 * Counts frames by operation and status: one addition each, whatever the numbers on the wire are.
 */
export interface FrameCounts {
  /** Numbers as on the wire; an operation that does not exist counts as `unknown`. */
  add(operation: number, status: number): void;
  total(): number;
  /** Those that occurred. */
  list(): FrameCount[];
}

export function createFrameCounts(): FrameCounts {
  const width = FRAME_STATUSES.length;
  const counts = new Float64Array(FRAME_OPERATIONS.length * width);
  return {
    add(operation, status) {
      assert(status < width, "a status of the protocol");
      const row = operation < FRAME_OPERATIONS.length ? operation : 0;
      counts[row * width + status]!++;
    },
    total: () => counts.reduce((sum, count) => sum + count, 0),
    list() {
      const found: FrameCount[] = [];
      for (const [at, count] of counts.entries()) {
        if (count === 0) continue;
        const operation = FRAME_OPERATIONS[Math.floor(at / width)]!;
        found.push({ operation, status: FRAME_STATUSES[at % width]!, count });
      }
      return found;
    },
  };
}
