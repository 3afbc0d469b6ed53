import { loadNative, type Native } from "./native.ts";

const encoder = new TextEncoder();
const names = new Map<string, Uint8Array>();

/**
 * Makes chosen disk system calls fail, for tests. The plan has items `name:nth:action` separated by
 * `;` (format: zig/base/faults.zig). An empty plan ends the previous plan and releases calls that
 * it froze. Throws NativeError `bad_request` if the plan is invalid.
 */
export function setFaults(native: Native, plan: string): void {
  const bytes = encoder.encode(plan === "" ? ";" : plan);
  native.call("hearth_faults", bytes, bytes.length);
}

/**
 * Marks a fault point in TypeScript code. Returns 0, or the errno with which the caller must let
 * its next operation fail. The plan may also end the process here. `name` is a constant of at most
 * 48 characters.
 */
export function faultPoint(native: Native, name: string): number {
  let bytes = names.get(name);
  if (bytes === undefined) {
    bytes = encoder.encode(name);
    names.set(name, bytes);
  }
  return native.call("hearth_fault_point", bytes, bytes.length);
}

/**
 * True in executables built with `bun run build --faults`. Other builds ignore the environment
 * variable of the same name.
 */
declare const HEARTH_FAULTS: boolean;

let armed: Native | null = null;

/**
 * Loads this thread's library and sets the plan from the environment. Each worker thread of the
 * executable has its own library and its own counts.
 */
function arm(): Native {
  const native = loadNative();
  setFaults(native, process.env.HEARTH_FAULTS ?? "");
  return native;
}

/**
 * Marks a point at which a test may end this process. The plan is in the environment variable
 * HEARTH_FAULTS (format: zig/base/faults.zig). The first point that a thread reaches also activates
 * the plan for the thread's native calls. Does nothing in release builds. `name` is a constant.
 */
export function crashPoint(name: string): void {
  if (typeof HEARTH_FAULTS !== "undefined" && HEARTH_FAULTS) {
    armed ??= arm();
    faultPoint(armed, name);
  }
}
