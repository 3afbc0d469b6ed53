import { HearthError } from "../core/index.ts";
import { EXIT_CODES } from "./exit-codes.ts";

const SIGNALS = ["SIGINT", "SIGTERM", "SIGHUP"] as const;

/**
 * A signal that fires with ABORTED when somebody wants this process to end. The second wish is
 * granted at once: whoever presses Ctrl-C twice does not wait for a cleanup.
 */
export function interruptSignal(): AbortSignal {
  const controller = new AbortController();
  for (const name of SIGNALS) {
    process.on(name, () => {
      if (controller.signal.aborted) process.exit(EXIT_CODES.interrupted.code);
      controller.abort(new HearthError("ABORTED", `interrupted by ${name}`));
    });
  }
  return controller.signal;
}
