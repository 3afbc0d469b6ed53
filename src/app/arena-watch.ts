import { fstatSync } from "node:fs";
import type { Clock } from "../core/index.ts";
import type { Region } from "../native/index.ts";
import type { Health } from "../observability/index.ts";

const LOOK_MS = 5_000;
const RAISED_MS = 60_000;
/** `st_blocks` counts these, whatever the size of a page. */
const BLOCK_BYTES = 512;

/**
 * Raises KV_RAM_HOLES when the arena has less memory than was put into it. Engines write to the
 * arena, so it cannot have F_SEAL_WRITE or F_SEAL_FUTURE_WRITE, and without one of them whoever has
 * the descriptor may punch holes into it (fallocate(2)). A page of a hole reads as zeros, unless
 * it is a huge page and the pool is empty: touching it then ends the process with SIGBUS.
 */
export function watchArena(
  region: Pick<Region, "fd" | "state">,
  clock: Clock,
  health: Pick<Health, "raise">,
): Disposable {
  return clock.every(LOOK_MS, () => {
    const missing = region.state().populatedBytes - fstatSync(region.fd).blocks * BLOCK_BYTES;
    if (missing <= 0) return;
    const details = `${missing} bytes of the arena have no memory`;
    health.raise("KV_RAM_HOLES", details, { forMs: RAISED_MS });
  });
}
