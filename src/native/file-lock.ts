import type { Native } from "./native.ts";
import { statusName } from "./status.ts";

/** An exclusive lock; disposing it, or the end of the process, lets go. */
export interface FileLock extends Disposable {
  readonly path: string;
}

/**
 * Locks a file, which is made where there is none, against every other process; null where one has
 * it. Throws NativeError where the file cannot be opened.
 */
export function lockFile(native: Native, path: string): FileLock | null {
  const bytes = new TextEncoder().encode(path);
  const code = native.symbols.hearth_file_lock(bytes, bytes.length);
  if (code < 0 && statusName(code) === "try_again") return null;
  const fd = native.check("hearth_file_lock", code);
  let held = true;
  const release = () => {
    if (held) native.closeFd(fd);
    held = false;
  };
  return { path, [Symbol.dispose]: release };
}
