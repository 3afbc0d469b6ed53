import { mkdirSync, truncateSync, writeFileSync } from "node:fs";
import { join } from "node:path";

/** File systems of their own, where this process may mount: small, read-only, frozen. */

function run(...words: string[]): void {
  const child = Bun.spawnSync(words);
  if (child.exitCode === 0) return;
  throw new Error(`${words.join(" ")}: ${child.stderr.toString().trim()}`);
}

export interface Mount extends Disposable {
  readonly folder: string;
}

/** A file system in memory with room for `kib`. Throws where this process may not mount. */
export function mountTmpfs(below: string, kib: number): Mount {
  const folder = join(below, "tmpfs");
  mkdirSync(folder);
  run("mount", "-t", "tmpfs", "-o", `size=${kib}k`, "none", folder);
  return { folder, [Symbol.dispose]: () => run("umount", "-l", folder) };
}

export function remount(mount: Mount, option: string): void {
  run("mount", "-o", `remount,${option}`, mount.folder);
}

export interface FreezableMount extends Mount {
  /** Every write from now on waits in the kernel. */
  freeze(): void;
  thaw(): void;
}

/** An ext4 in a file, through a loop device. Throws where that cannot be had. */
export function mountExt4(below: string, mib: number): FreezableMount {
  const [image, folder] = [join(below, "ext4.img"), join(below, "ext4")];
  writeFileSync(image, "");
  truncateSync(image, mib * 2 ** 20);
  run("mkfs.ext4", "-q", "-F", image);
  mkdirSync(folder);
  run("mount", "-o", "loop", image, folder);
  let isFrozen = false;
  const thaw = () => {
    if (isFrozen) run("fsfreeze", "-u", folder);
    isFrozen = false;
  };
  return {
    folder,
    freeze() {
      run("fsfreeze", "-f", folder);
      isFrozen = true;
    },
    thaw,
    [Symbol.dispose]() {
      thaw();
      run("umount", "-l", folder);
    },
  };
}
