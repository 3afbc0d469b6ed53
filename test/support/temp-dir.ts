import { afterAll } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** Short on purpose: a Unix socket's path holds 107 bytes. */
function makeTempDir(): string {
  return mkdtempSync(join(tmpdir(), "hearth-"));
}

function remove(path: string): void {
  rmSync(path, { recursive: true, force: true });
}

/** Runs `use` with a folder of its own and removes it afterwards, whatever happened. */
export async function withTempDir<T>(use: (path: string) => T | Promise<T>): Promise<T> {
  const path = makeTempDir();
  try {
    return await use(path);
  } finally {
    remove(path);
  }
}

/** A folder that lives until the tests of the calling file or `describe` are over. */
export function tempDir(): string {
  const path = makeTempDir();
  afterAll(() => remove(path));
  return path;
}
