import { loadNative, type Native } from "./native.ts";

const encoder = new TextEncoder();
const names = new Map<string, Uint8Array>();

/**
 * Sets a plan of failing disk system calls, for tests: items `name:nth:action` separated by `;`, as
 * described in zig/base/faults.zig. An empty plan removes the plan and releases frozen calls.
 * Throws NativeError `bad_request` if the plan is invalid.
 */
export function setFaults(native: Native, plan: string): void {
  const bytes = encoder.encode(plan === "" ? ";" : plan);
  native.call("hearth_faults", bytes, bytes.length);
}

/**
 * A fault point outside the library. Returns 0, or the errno with which the following operation
 * must fail. The plan may also end the process here. `name` is a constant of at most 48 characters.
 */
export function faultPoint(native: Native, name: string): number {
  let bytes = names.get(name);
  if (bytes === undefined) {
    bytes = encoder.encode(name);
    names.set(name, bytes);
  }
  return native.call("hearth_fault_point", bytes, bytes.length);
}

/** Set by `bun run build --faults`. A release build ignores a plan in the environment. */
declare const HEARTH_FAULTS: boolean;

let armed: Native | null = null;

/** The library of this thread. A worker of the executable has its own, with its own counts. */
function arm(): Native {
  const native = loadNative();
  setFaults(native, process.env.HEARTH_FAULTS ?? "");
  return native;
}

/**
 * A point at which a test may end this process. The plan is in the environment variable
 * HEARTH_FAULTS (format: zig/base/faults.zig). The first point that a thread reaches also arms the
 * plan for the thread's native calls. A release build does nothing here. Names are constants.
 */
export function crashPoint(name: string): void {
  if (typeof HEARTH_FAULTS !== "undefined" && HEARTH_FAULTS) {
    armed ??= arm();
    faultPoint(armed, name);
  }
}
