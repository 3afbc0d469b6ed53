import { readFileSync } from "node:fs";
import { type Clock, systemClock } from "../core/index.ts";

/** Set by `bun run build --faults`. In releases, the environment cannot change the clock. */
declare const HEARTH_FAULTS: boolean;

/**
 * The agent's clock. In fault-injection builds, its wall clock is offset by the milliseconds in the
 * file named by HEARTH_WALL_OFFSET, read on every call, so that tests can make it jump at run time.
 * Releases use the system clock.
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
