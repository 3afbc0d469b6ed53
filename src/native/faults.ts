import { nativeBuffer } from "./memory.ts";
import { loadNative, type Native } from "./native.ts";

const COUNTS_BYTES = 16_384;
const encoder = new TextEncoder();
const names = new Map<string, Uint8Array>();

/**
 * Plans failures of the disk's system calls for tests: items `name:nth:action` separated by `;`,
 * as zig/base/faults.zig describes them. An empty plan ends it and lets go what is frozen. Throws
 * NativeError `bad_request` for what is no plan.
 */
export function setFaults(native: Native, plan: string): void {
  const bytes = encoder.encode(plan === "" ? ";" : plan);
  native.check("hearth_faults", native.symbols.hearth_faults(bytes, bytes.length));
}

/** How often each call was hit since the plan was set; `count` is a plan that only counts. */
export function faultCounts(native: Native): Readonly<Record<string, number>> {
  const { bytes } = nativeBuffer(COUNTS_BYTES);
  const code = native.symbols.hearth_fault_counts(bytes, bytes.length);
  const length = native.check("hearth_fault_counts", code);
  const lines = new TextDecoder().decode(bytes.subarray(0, length)).split("\n");
  const counts: Record<string, number> = {};
  for (const line of lines) {
    const [name, count] = line.split(" ");
    if (name && count) counts[name] = Number(count);
  }
  return counts;
}

/**
 * A point of our own in the plan: 0, or the errno with which what follows is to fail. The plan may
 * also end the process here. `name` is fixed in the program, at most 48 characters.
 */
export function faultPoint(native: Native, name: string): number {
  let bytes = names.get(name);
  if (bytes === undefined) {
    bytes = encoder.encode(name);
    names.set(name, bytes);
  }
  return native.check("hearth_fault_point", native.symbols.hearth_fault_point(bytes, bytes.length));
}

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
