import { lstatSync, readdirSync, readFileSync, readlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const FOLDER = 0o040755;
const FILE = 0o100755;
const LINK = 0o120777;
const CHARACTERS = 0o020600;

/** Major and minor number of /dev/console, without which the first process has no output. */
const CONSOLE = [5, 1] as const;

/**
 * Writes an archive as the kernel unpacks it at its start: cpio in the format `newc`, which has no
 * need of root to hold a device.
 */
export class Archive {
  readonly #chunks: Uint8Array[] = [];
  readonly #names = new Set<string>();

  #entry(name: string, mode: number, data: Uint8Array, device: readonly number[] = [0, 0]): void {
    if (this.#names.has(name)) return;
    this.#names.add(name);
    const path = new TextEncoder().encode(`${name}\0`);
    const inode = this.#names.size;
    const fields = [inode, mode, 0, 0, 1, 0, data.length, 0, 0, ...device, path.length, 0];
    const words = fields.map((field) => field.toString(16).padStart(8, "0")).join("");
    this.#padded(new TextEncoder().encode(`070701${words}`), path);
    this.#padded(data);
  }

  /** To a multiple of four. */
  #padded(...parts: readonly Uint8Array[]): void {
    this.#chunks.push(...parts);
    const bytes = parts.reduce((sum, part) => sum + part.length, 0);
    if (bytes % 4 !== 0) this.#chunks.push(new Uint8Array(4 - (bytes % 4)));
  }

  /** The folder and those above it. */
  folder(path: string): this {
    const names = path.split("/");
    names.forEach((_, at) => {
      this.#entry(names.slice(0, at + 1).join("/"), FOLDER, new Uint8Array());
    });
    return this;
  }

  file(path: string, data: Uint8Array | string): this {
    const bytes = typeof data === "string" ? new TextEncoder().encode(data) : data;
    if (path.includes("/")) this.folder(path.slice(0, path.lastIndexOf("/")));
    this.#entry(path, FILE, bytes);
    return this;
  }

  /** All below a folder of the host for which `wanted` is true. */
  tree(root: string, wanted: (path: string) => boolean): this {
    const names = readdirSync(root, { recursive: true, encoding: "utf8" }).sort();
    for (const name of names) {
      const stat = lstatSync(join(root, name));
      if (stat.isDirectory() || !wanted(name)) continue;
      if (!stat.isSymbolicLink()) {
        this.file(name, readFileSync(join(root, name)));
        continue;
      }
      if (name.includes("/")) this.folder(name.slice(0, name.lastIndexOf("/")));
      this.#entry(name, LINK, new TextEncoder().encode(readlinkSync(join(root, name))));
    }
    return this;
  }

  console(): this {
    this.folder("dev").#entry("dev/console", CHARACTERS, new Uint8Array(), CONSOLE);
    return this;
  }

  write(file: string): void {
    this.#entry("TRAILER!!!", 0, new Uint8Array());
    writeFileSync(file, Buffer.concat(this.#chunks));
  }
}
