import { readFileSync } from "node:fs";
import { type Clock, systemClock } from "../core/index.ts";

/**
 * True in builds made with `bun run build --faults`. In releases, the environment cannot change the
 * clock.
 */
declare const HEARTH_FAULTS: boolean;

/**
 * Returns the agent's clock. Releases use the system clock. Fault-injection builds add an offset,
 * in milliseconds, to the wall clock. Every call rereads the offset from the file named by
 * HEARTH_WALL_OFFSET, so tests can make the clock jump at run time.
 */
export function agentClock(): Clock {
  if (typeof HEARTH_FAULTS !== "undefined" && HEARTH_FAULTS) {
    const path = process.env.HEARTH_WALL_OFFSET;
    if (path !== undefined) return { ...systemClock, wallMs: () => wrongWallMs(path) };
  }
  return systemClock;
}

function wrongWallMs(path: string): number {
  return systemClock.wallMs() + Number(readFileSync(path, "utf8"));
}
