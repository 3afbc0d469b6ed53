import { readdirSync, readFileSync, type Stats, statSync } from "node:fs";
import { join } from "node:path";

/**
 * The host's own files, read below a root folder, so that a test can put a whole machine into a
 * temporary one. What cannot be read is null: most of these files are missing on some host.
 */
export interface HostFiles {
  /** The real path of a path of the host. */
  at(path: string): string;
  /** The file's text without its last line feed. */
  text(path: string): string | null;
  /** Names in a folder, sorted; empty where there is none. */
  list(path: string): string[];
  stat(path: string): Stats | null;
}

function orNull<T>(read: () => T): T | null {
  try {
    return read();
  } catch {
    return null;
  }
}

export function hostFiles(root: string): HostFiles {
  const at = (path: string) => join(root, path);
  return {
    at,
    text: (path) => orNull(() => readFileSync(at(path), "latin1").replace(/\n$/, "")),
    list: (path) => orNull(() => readdirSync(at(path)).sort()) ?? [],
    stat: (path) => orNull(() => statSync(at(path))),
  };
}

/** The chosen word of a file such as `always [madvise] never`; all of it where none is marked. */
export function chosenWord(text: string | null): string | null {
  if (text === null) return null;
  return /\[([^\]]+)\]/.exec(text)?.[1] ?? text.trim();
}

const LIBRARY_FOLDERS = [
  "/usr/lib/x86_64-linux-gnu",
  "/usr/lib/aarch64-linux-gnu",
  "/usr/lib64",
  "/usr/lib",
  "/usr/local/cuda/compat",
  "/usr/local/nvidia/lib64",
];

/** Whether the dynamic linker can find a library: in its cache or in a folder of its own. */
export function hasLibrary(files: HostFiles, name: string): boolean {
  if (files.text("/etc/ld.so.cache")?.includes(`${name}\0`) === true) return true;
  return LIBRARY_FOLDERS.some((folder) => files.stat(`${folder}/${name}`) !== null);
}
