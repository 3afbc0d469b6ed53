import { expect, test } from "bun:test";
import { join } from "node:path";
import { loadNative, lockFile, setFaults } from "../../src/native/index.ts";
import { describeNative, withTempDir } from "../support/index.ts";
import { openFiles } from "./disk-kit.ts";

/** Prints whether another process gets the lock. */
const SCRIPT = `
  import { loadNative, lockFile } from "./src/native/index.ts";
  console.log(lockFile(loadNative(), process.argv[1]) === null ? "refused" : "locked");
`;

async function tryElsewhere(path: string): Promise<string> {
  const cwd = `${import.meta.dir}/../..`;
  const child = Bun.spawn([process.execPath, "-e", SCRIPT, path], { cwd });
  return (await new Response(child.stdout).text()).trim();
}

describeNative("a file lock", () => {
  test("excludes a second holder in this and other processes until it is released", () =>
    withTempDir(async (folder) => {
      const native = loadNative();
      const path = join(folder, "lock");
      const lock = lockFile(native, path)!;
      expect(lock.path).toBe(path);
      expect(lockFile(native, path)).toBeNull();
      expect(await tryElsewhere(path)).toBe("refused");
      lock[Symbol.dispose]();
      lock[Symbol.dispose]();
      expect(await tryElsewhere(path)).toBe("locked");
      // The other process is gone, and its lock with it.
      using again = lockFile(native, path)!;
      expect(again.path).toBe(path);
    }));

  test("that cannot be acquired is an error and leaves nothing open", () =>
    withTempDir((folder) => {
      const native = loadNative();
      const before = openFiles();
      expect(() => lockFile(native, join(folder, "none/lock"))).toThrow("missing");
      setFaults(native, "lock.flock:1:EIO");
      expect(() => lockFile(native, join(folder, "lock"))).toThrow("io error");
      setFaults(native, "");
      expect(openFiles()).toBe(before);
    }));
});
