import type { Clock } from "../../core/index.ts";
import type { Validity } from "../../peers/index.ts";

const DAY_MS = 86_400_000;
/** Clocks of other hosts may be behind by so much. */
const SKEW_MS = 3_600_000;
export const DAYS_MAX = 36_500;

/** From a little ago to so many days from now. */
export function validityOf(clock: Clock, days: number): Validity {
  const nowMs = clock.wallMs();
  return { notBeforeMs: nowMs - SKEW_MS, notAfterMs: nowMs + days * DAY_MS };
}
