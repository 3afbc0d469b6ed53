import { existsSync, readdirSync, readFileSync, statSync } from "node:fs";
import { join, relative } from "node:path";
import { ROOT } from "../../scripts/lib/paths.ts";

/** Files by their path from the root of the checkout, with forward slashes. */
export type Tree = ReadonlyMap<string, string>;

const NOT_OURS = new Set([
  ".git",
  ".toolchain",
  ".zig-cache",
  "__pycache__",
  "dist",
  "node_modules",
  "zig-out",
]);

function walk(folder: string): string[] {
  return readdirSync(folder, { withFileTypes: true }).flatMap((entry) => {
    if (NOT_OURS.has(entry.name)) return [];
    const path = join(folder, entry.name);
    return entry.isDirectory() ? walk(path) : [relative(ROOT, path)];
  });
}

/** What git tracks or would track; without git (an unpacked archive), what lies there. */
function listFiles(): string[] {
  const asked = Bun.spawnSync(["git", "ls-files", "-co", "--exclude-standard", "-z"], {
    cwd: ROOT,
  });
  if (!asked.success) return walk(ROOT);
  return asked.stdout.toString().split("\0").filter(Boolean);
}

function isText(bytes: Buffer): boolean {
  return !bytes.subarray(0, 8_000).includes(0);
}

/** Every text file of the checkout. Binary files (compressed traces, frames) are left out. */
export function readTree(): Tree {
  const tree = new Map<string, string>();
  for (const path of new Set(listFiles())) {
    const file = join(ROOT, path);
    if (!existsSync(file) || !statSync(file).isFile()) continue;
    const bytes = readFileSync(file);
    if (isText(bytes)) tree.set(path, bytes.toString("utf8"));
  }
  return tree;
}
