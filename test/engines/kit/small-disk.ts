import { mkdirSync, rmSync, statfsSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const MIB = 2 ** 20;

function unmount(folder: string): void {
  Bun.spawnSync(["umount", "-l", folder]);
}

/** A file system of a few MiB that can be filled: a tmpfs, which needs the right to mount. */
export class SmallDisk implements Disposable {
  readonly folder: string;
  readonly #unmount: () => void;

  private constructor(folder: string) {
    this.folder = folder;
    this.#unmount = () => unmount(folder);
    process.on("exit", this.#unmount);
  }

  /** Null, with a reason, on a host that does not let this process mount. */
  static mount(folder: string, mib: number): SmallDisk | string {
    mkdirSync(folder, { recursive: true });
    const command = ["mount", "-t", "tmpfs", "-o", `size=${mib}m`, "hearth-engines", folder];
    const { exitCode, stderr } = Bun.spawnSync(command);
    if (exitCode !== 0) return `no small file system: ${stderr.toString().trim()}`;
    return new SmallDisk(folder);
  }

  get #ballast(): string {
    return join(this.folder, "ballast");
  }

  /** Takes all space that is left. */
  fill(): void {
    const { bavail, bsize } = statfsSync(this.folder);
    for (let left = bavail * bsize; left > 0; left -= MIB) {
      try {
        writeFileSync(this.#ballast, new Uint8Array(Math.min(left, MIB)), { flag: "a" });
      } catch (thrown) {
        if ((thrown as NodeJS.ErrnoException).code === "ENOSPC") return;
        throw thrown;
      }
    }
  }

  free(): void {
    rmSync(this.#ballast, { force: true });
  }

  [Symbol.dispose](): void {
    process.off("exit", this.#unmount);
    this.#unmount();
  }
}
