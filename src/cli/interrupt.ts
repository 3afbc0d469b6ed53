import { HearthError, systemClock } from "../core/index.ts";
import { EXIT_CODES } from "./exit-codes.ts";

const SIGNALS = ["SIGINT", "SIGTERM", "SIGHUP"] as const;

/** A terminal signals its whole group, and wrappers pass on what they got: both are one wish. */
const SAME_WISH_MS = 500;

/**
 * A signal that fires with ABORTED when somebody wants this process to end. The second wish is
 * granted at once: whoever presses Ctrl-C twice does not wait for a cleanup.
 */
export function interruptSignal(): AbortSignal {
  const controller = new AbortController();
  let wishedMs = 0;
  for (const name of SIGNALS) {
    process.on(name, () => {
      const nowMs = systemClock.monotonicMs();
      if (controller.signal.aborted) {
        if (nowMs - wishedMs > SAME_WISH_MS) process.exit(EXIT_CODES.interrupted.code);
        return;
      }
      wishedMs = nowMs;
      controller.abort(new HearthError("ABORTED", `interrupted by ${name}`));
    });
  }
  return controller.signal;
}
