import type { Clock } from "../core/index.ts";

/** How long commands at work at the end are waited for: a disk that hangs is found out before. */
export const IDLE_MS = 12_000;
/** How long a disk may take to write the last lines of the audit log. */
export const AUDIT_CLOSE_MS = 2_000;
/** From the beginning of the control plane's end to that, at most. */
export const CONTROL_STOP_MS = IDLE_MS + AUDIT_CLOSE_MS;

/** What comes of `work`, or null where that is not known after `ms`; the work goes on. */
export async function within<T>(clock: Clock, ms: number, work: Promise<T>): Promise<T | null> {
  const late = Promise.withResolvers<null>();
  using _timer = clock.after(ms, () => late.resolve(null));
  return await Promise.race([work, late.promise]);
}
