import { closeSync, constants, fchownSync, openSync, statSync } from "node:fs";

const { O_CREAT, O_DIRECTORY, O_EXCL, O_NOFOLLOW, O_RDONLY, O_RDWR } = constants;
const LOCK_MODE = 0o600;

/** Makes an empty file of the folder's owner where there is none. */
export function createForOwner(dir: string, path: string): void {
  let fd: number;
  try {
    fd = openSync(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, LOCK_MODE);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EEXIST") return;
    throw error;
  }
  give(dir, fd);
}

/** A folder that was just made within `dir` becomes that of its owner. */
export function giveFolderToOwner(dir: string, path: string): void {
  give(dir, openSync(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
}

/**
 * What root makes in an agent's folder would keep the agent out. By descriptor, since the owner of
 * the folder may put something else under the name meanwhile. Closes `fd`.
 */
function give(dir: string, fd: number): void {
  try {
    const { uid, gid } = statSync(dir);
    if (process.geteuid?.() === 0 && uid !== 0) fchownSync(fd, uid, gid);
  } finally {
    closeSync(fd);
  }
}
