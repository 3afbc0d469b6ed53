import { dlopen, FFIType } from "bun:ffi";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { standInsFolder } from "../../scripts/lib/native-build.ts";
import { hostTarget } from "../../scripts/lib/targets.ts";

/** What a test opens instead of a library of devices. */
export interface StandIn {
  /** To be named as the library. */
  readonly path: string;
  /** Begins anew with these devices and faults (zig/testing/NAME/plan.zig tells the words). */
  configure(plan: string): void;
  /** What it counted since: calls by name, and what is open. */
  counters(): Readonly<Record<string, number>>;
}

const COUNTERS_BYTES = 65_536;

/** There wherever the native library is: the preload makes both. */
export function standIn(name: "libcuda.so.1" | "libibverbs.so.1"): StandIn {
  const host = hostTarget();
  if (!host.ok) throw new Error(host.why);
  const path = join(standInsFolder(host.target), name);
  if (!existsSync(path)) throw new Error(`${path} is missing: run \`./dev native --stand-ins\``);
  const { symbols } = dlopen(path, {
    standin_configure: { args: [FFIType.ptr], returns: FFIType.i32 },
    standin_counters: { args: [FFIType.ptr, FFIType.u32], returns: FFIType.i32 },
  });
  return {
    path,
    configure(plan) {
      const text = new TextEncoder().encode(`${plan}\0`);
      if (symbols.standin_configure(text) !== 0) throw new Error(`${name}: no plan: ${plan}`);
    },
    counters() {
      const bytes = new Uint8Array(new ArrayBuffer(COUNTERS_BYTES));
      const length = symbols.standin_counters(bytes, bytes.length);
      const lines = new TextDecoder().decode(bytes.subarray(0, length)).split("\n");
      const pairs = lines.map((line) => line.split(" ")).filter((pair) => pair.length === 2);
      return Object.fromEntries(pairs.map(([key, count]) => [key, Number(count)]));
    },
  };
}
