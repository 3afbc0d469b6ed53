import { mkdirSync, writeFileSync } from "node:fs";

/** A file system in memory at `path`; null where nobody but root may have one. */
export function mountAt(path: string, options: string): Disposable | null {
  mkdirSync(path, { recursive: true });
  const command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", path];
  if (process.getuid?.() !== 0 || Bun.spawnSync(command).exitCode !== 0) return null;
  return { [Symbol.dispose]: () => void Bun.spawnSync(["umount", "-l", path]) };
}

/** Appends until there is no room for so many bytes more. */
export function fillUp(path: string, bytes: number): void {
  const piece = new Uint8Array(bytes);
  try {
    while (true) writeFileSync(path, piece, { flag: "a" });
  } catch {
    // Full.
  }
}
