import { dlopen, FFIType } from "bun:ffi";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { standInsFolder } from "../../scripts/lib/native-build.ts";
import { hostTarget } from "../../scripts/lib/targets.ts";

/** The library that a test opens in place of a device library. */
export interface StandIn {
  /** To be named as the library. */
  readonly path: string;
  /** Restarts with these devices and faults (zig/testing/NAME/plan.zig lists the words). */
  configure(plan: string): void;
  /** Counters since then: calls by name, and open objects. */
  counters(): Readonly<Record<string, number>>;
}

const COUNTERS_BYTES = 65_536;

type StandInName = "libcuda.so.1" | "libibverbs.so.1";

/** There wherever the native library is: the preload makes both. */
export function standIn(name: StandInName): StandIn {
  return openStandIn(name, standInPath(name));
}

/**
 * A library of its own at `path` that lacks these calls, as an older one does: their names are
 * others there.
 */
export function standInLacking(name: StandInName, calls: readonly string[], path: string): StandIn {
  const bytes = readFileSync(standInPath(name));
  for (const call of calls) {
    const word = Buffer.from(`\0${call}\0`);
    let at = bytes.indexOf(word);
    if (at < 0) throw new Error(`${name} has no ${call}`);
    for (; at >= 0; at = bytes.indexOf(word, at + 1)) bytes[at + 1] = "?".charCodeAt(0);
  }
  writeFileSync(path, bytes);
  return openStandIn(name, path);
}

function standInPath(name: StandInName): string {
  const host = hostTarget();
  if (!host.ok) throw new Error(host.why);
  const path = join(standInsFolder(host.target), name);
  if (!existsSync(path)) throw new Error(`${path} is missing: run \`./dev native --stand-ins\``);
  return path;
}

function openStandIn(name: StandInName, path: string): StandIn {
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
