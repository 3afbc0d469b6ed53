import { readFileSync } from "node:fs";
import type { PrivateAgent } from "../../replay/index.ts";

/** Microseconds that the agent's event loop has spent on a processor so far. */
export function loopUsOf({ pid }: PrivateAgent): number {
  // Its thread has the number of the process; nanoseconds on a processor come first.
  return Number.parseInt(readFileSync(`/proc/${pid}/task/${pid}/schedstat`, "utf8"), 10) / 1_000;
}
