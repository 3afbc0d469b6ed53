import { existsSync, readdirSync, renameSync, rmSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { crashPoint } from "../../../native/index.ts";

/** SQLite's companions of a database file. */
export const COMPANIONS = ["-wal", "-shm", "-journal"] as const;
const KEPT = 3;
const MARK = ".broken-";

/** `20260131T235959Z` */
function stamp(wallMs: number): string {
  return new Date(wallMs).toISOString().replace(/[-:]|\.\d+/g, "");
}

/**
 * Renames a database that cannot be used, with its companions, so that somebody may look at it; the
 * newest three are kept. Returns the new path. Throws where the folder cannot be changed.
 */
export function putAside(path: string, wallMs: number): string {
  const base = `${path}${MARK}${stamp(wallMs)}`;
  let target = base;
  for (let again = 1; existsSync(target); again++) target = `${base}-${again}`;
  // The database first: a crash may come between, and a database without its log would be believed,
  // while a log without its database is dropped.
  crashPoint("index.before-set-aside");
  renameSync(path, target);
  crashPoint("index.half-set-aside");
  for (const companion of COMPANIONS) {
    if (existsSync(path + companion)) renameSync(path + companion, target + companion);
  }
  crashPoint("index.set-aside");
  removeOldest(path);
  return target;
}

function removeOldest(path: string): void {
  const folder = dirname(path);
  const prefix = basename(path) + MARK;
  const isCompanion = (name: string) => COMPANIONS.some((companion) => name.endsWith(companion));
  const names = readdirSync(folder).filter((name) => name.startsWith(prefix) && !isCompanion(name));
  for (const name of names.sort().slice(0, -KEPT)) {
    for (const companion of ["", ...COMPANIONS]) {
      rmSync(join(folder, name + companion), { recursive: true, force: true });
    }
  }
}
