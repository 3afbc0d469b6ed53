import { PATIENCE } from "./patience.ts";

/**
 * Waits until `condition` holds and gives back what it returned. Tests wait for what must happen,
 * never for a time; `ms` is only the point at which it is called a failure. A condition that throws
 * is asked again, and its last error is the cause of the failure.
 */
export async function waitFor<T>(
  condition: () => T | Promise<T>,
  ms = 5_000,
  what = "the condition",
): Promise<NonNullable<T>> {
  const deadline = performance.now() + ms * PATIENCE;
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
      throw new Error(`${what} did not hold within ${ms * PATIENCE} ms`, { cause: lastThrown });
    }
    await Bun.sleep(2);
  }
}
