import { PATIENCE } from "./patience.ts";

/** A wait detects hangs: on a busy host everything may take many times as long as usual. */
const HANG_MS = 60_000;

/**
 * Waits until `condition` holds and returns its result. Tests wait for events that must happen,
 * never for a time; `ms`, or `leastMs` if that is more, is only the point at which it is called a
 * failure. A condition that throws is asked again, and its last error is the cause of the failure.
 * A caller that treats a failure as a result sets `leastMs` to 0.
 */
export async function waitFor<T>(
  condition: () => T | Promise<T>,
  ms = 5_000,
  what = "the condition",
  leastMs = HANG_MS,
): Promise<NonNullable<T>> {
  const limitMs = Math.max(ms, leastMs) * PATIENCE;
  const deadline = performance.now() + limitMs;
  let lastThrown: unknown;
  for (;;) {
    try {
      const value = await condition();
      if (value !== false && value !== null && value !== undefined) return value;
      lastThrown = undefined;
    } catch (thrown) {
      lastThrown = thrown;
    }
    if (performance.now() > deadline) {
      throw new Error(`${what} did not hold within ${limitMs} ms`, { cause: lastThrown });
    }
    await Bun.sleep(2);
  }
}
