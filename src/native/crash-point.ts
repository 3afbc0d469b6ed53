import { faultPoint, setFaults } from "./faults.ts";
import { loadNative, type Native } from "./native.ts";

/** Set by `bun run build --faults`; what ships cannot be told a plan by its environment. */
declare const HEARTH_FAULTS: boolean;

let armed: Native | null = null;

/** The library of this thread: a worker of the executable has its own, with its own counts. */
function arm(): Native {
  const native = loadNative();
  setFaults(native, process.env.HEARTH_FAULTS ?? "");
  return native;
}

/**
 * A point at which a test may end this process: the plan is in the environment, as HEARTH_FAULTS
 * (zig/base/faults.zig says how it is written). The first point that a thread comes to arms the
 * plan for its native calls, too. In what ships this does nothing. Names are fixed in the program.
 */
export function crashPoint(name: string): void {
  if (typeof HEARTH_FAULTS !== "undefined" && HEARTH_FAULTS) {
    armed ??= arm();
    faultPoint(armed, name);
  }
}
