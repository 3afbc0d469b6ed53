import { existsSync } from "node:fs";
import { join } from "node:path";
import { ROOT } from "./paths.ts";

/**
 * Commands for the tools in node_modules. Their entries in `.bin` are Node scripts; run by the Bun
 * that runs us, a host without Node will do.
 */
export function biome(...args: string[]): string[] {
  return [process.execPath, join(ROOT, "node_modules/.bin/biome"), ...args];
}

export function tsc(...args: string[]): string[] {
  return [process.execPath, join(ROOT, "node_modules/.bin/tsc"), ...args];
}

/** Milliseconds. A time limit detects hangs: tests must pass while others keep both cores busy. */
const HANG_MS = 120_000;

export function bunTest(...args: string[]): string[] {
  return [process.execPath, "test", `--timeout=${HANG_MS}`, ...args];
}

/** What `zig fmt` looks after. */
export function zigSources(): string[] {
  return ["zig", "build.zig", "build.zig.zon"].filter((path) => existsSync(join(ROOT, path)));
}
