import { type BigIntStats, statSync } from "node:fs";
import { stat } from "node:fs/promises";

/** What tells one folder from another under the same path. */
export interface FolderMark {
  readonly device: bigint;
  readonly inode: bigint;
}

const GONE = new Set(["ENOENT", "ENOTDIR"]);

function markOf({ dev, ino }: BigIntStats): FolderMark {
  return { device: dev, inode: ino };
}

/** Throws where the path leads to nothing. Blocks while the file system does. */
export function folderMark(path: string): FolderMark {
  return markOf(statSync(path, { bigint: true }));
}

/**
 * What became of the folder that had this mark, or null where the path still leads to it. Null also
 * where the file system does not say: a drive that fails has conditions of its own.
 */
export async function whyReplaced(path: string, mark: FolderMark): Promise<string | null> {
  try {
    const now = markOf(await stat(path, { bigint: true }));
    if (now.device !== mark.device) return `another file system is mounted at ${path}`;
    return now.inode === mark.inode ? null : `${path} is another folder, made later`;
  } catch (error) {
    return GONE.has((error as NodeJS.ErrnoException).code ?? "") ? `${path} is gone` : null;
  }
}
