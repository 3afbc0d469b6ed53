import { readFileSync } from "node:fs";
import { type Clock, systemClock } from "../core/index.ts";

/** Set by `bun run build --faults`; what ships cannot be told another time by its environment. */
declare const HEARTH_FAULTS: boolean;

/**
 * The clock of the agent. In a build with planned faults its wall clock is wrong by the
 * milliseconds that stand in the file HEARTH_WALL_OFFSET names, read anew each time: a test makes
 * it jump, also while the agent runs. In what ships it is the system's.
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
