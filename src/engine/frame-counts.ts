import { assert } from "../core/index.ts";
import { FrameStatus, Op } from "./protocol/index.ts";

/** Returns the names of a table, indexed by their number on the wire. */
function namesOf(table: Readonly<Record<string, number>>): string[] {
  const names: string[] = [];
  for (const [name, number] of Object.entries(table)) names[number] = name;
  return names;
}

/** Operations of the engine plane, indexed by number. Entry 0 stands for unknown numbers. */
export const FRAME_OPERATIONS: readonly string[] = Object.assign(namesOf(Op), { 0: "unknown" });
/** Statuses of replies, indexed by number. */
export const FRAME_STATUSES: readonly string[] = namesOf(FrameStatus);

/** Result of a lookup: all requested blocks were present, only some from the first on, or none. */
export type LookupOutcome = "hit" | "partial" | "miss";

/** Counts frames by operation and status. Counting costs one addition per frame. */
export class FrameCounts {
  readonly #counts = new Float64Array(FRAME_OPERATIONS.length * FRAME_STATUSES.length);

  /** Counts one frame by its numbers on the wire. An unknown operation counts as `unknown`. */
  add(operation: number, status: number): void {
    assert(status < FRAME_STATUSES.length, "a status of the protocol");
    const row = operation < FRAME_OPERATIONS.length ? operation : 0;
    this.#counts[row * FRAME_STATUSES.length + status]++;
  }

  total(): number {
    return this.#counts.reduce((sum, count) => sum + count, 0);
  }

  /** Returns the combinations that occurred, each with its number of frames. */
  list(): (readonly [operation: string, status: string, count: number])[] {
    return [...this.#counts].flatMap((count, at) => {
      const operation = FRAME_OPERATIONS[Math.floor(at / FRAME_STATUSES.length)];
      return count === 0 ? [] : [[operation, FRAME_STATUSES[at % FRAME_STATUSES.length], count]];
    });
  }
}
