import { Database } from "bun:sqlite";
import {
  closeSync,
  existsSync,
  lstatSync,
  mkdirSync,
  openSync,
  readdirSync,
  readSync,
  renameSync,
  rmSync,
} from "node:fs";
import { basename, dirname, join } from "node:path";
import { HearthError } from "../../../core/index.ts";
import { crashPoint } from "../../../native/index.ts";
import type { OpenOrder, SetAside } from "../index-worker-client.ts";
import { DamagedIndex, isAboutFile, isBusy, sqliteMessage } from "./open-database.ts";

/** SQLite's smallest page size. No database file is shorter. */
const PAGE_BYTES_MIN = 512;
/**
 * First bytes of a database file, and the offset of its format versions (sqlite.org/fileformat2,
 * section 1.3).
 */
const MAGIC = "SQLite format 3\0";
const FORMAT_VERSIONS_AT = 18;
const LATE = "could not be opened at the start of this run";

interface Closable {
  close(): void;
}

export interface OpenedStore<Store extends Closable> extends Disposable {
  readonly store: Store;
  readonly setAside: SetAside | null;
}

/**
 * Class that opens one kind of database file in a folder. Only one agent at a time may use the
 * folder.
 */
interface StoreClass<Store extends Closable> {
  readonly file: string;
  readonly lock: string;
  /** Name of the file in the error message "another agent uses ...". */
  readonly what: string;
  /** Opens or creates the file. Throws DamagedIndex or the error of SQLite if it cannot be used. */
  new (path: string, order: OpenOrder): Store;
}

/**
 * Locks the folder and opens the file in it. Sets an unusable file aside and replaces it by a new
 * one. Throws INDEX_IN_USE, INDEX_FOREIGN, or the system's error if the disk refuses.
 */
export function openLocked<Store extends Closable>(
  order: OpenOrder,
  kind: StoreClass<Store>,
): OpenedStore<Store> {
  const { folder, wallMs } = order;
  const open = (path: string) => new kind(path, order);
  mkdirSync(folder, { recursive: true, mode: 0o750 });
  const lock = lockFolder(folder, kind.lock);
  if (lock === null) {
    throw new HearthError("INDEX_IN_USE", `another agent uses ${kind.what} in ${folder}`, {
      fix: "stop it, or give this one an index_dir of its own",
    });
  }
  crashPoint("index.locked");
  const path = join(folder, kind.file);
  try {
    const why = whyUnusable(path, order.isLate, open);
    if (typeof why !== "string") return opened(why, null, lock);
    const setAside = { path: putAside(path, wallMs), why };
    return opened(made(path, open), setAside, lock);
  } catch (thrown) {
    lock[Symbol.dispose]();
    throw thrown;
  }
}

function opened<Store extends Closable>(
  store: Store,
  setAside: SetAside | null,
  lock: Disposable,
): OpenedStore<Store> {
  const dispose = () => {
    store.close();
    lock[Symbol.dispose]();
  };
  return { store, setAside, [Symbol.dispose]: dispose };
}

/** Opens the file at `path`. Returns the reason if it is unusable. */
function whyUnusable<Store>(
  path: string,
  isLate: boolean,
  open: (path: string) => Store,
): Store | string {
  if (!existsSync(path)) return made(path, open);
  if (isLate) return LATE;
  const found = lstatSync(path);
  if (!found.isFile()) return "not a regular file";
  // SQLite would treat a file of one byte as a new database.
  if (found.size > 0 && found.size < PAGE_BYTES_MIN) return "file is truncated";
  if (found.size > 0 && !isWritable(path)) return "header forbids writing";
  try {
    return open(path);
  } catch (thrown) {
    if (isBusy(thrown)) return "locked by another program";
    if (!isAboutFile(thrown)) throw thrown;
    return thrown instanceof DamagedIndex ? thrown.message : sqliteMessage(thrown);
  }
}

/**
 * Returns whether the header allows writing. SQLite opens a file with a later write version
 * read-only. In Hearth's files, bytes 18 and 19 are 1 (rollback journal) or 2 (write-ahead log). A
 * file that is not a database returns true; SQLite reports it.
 */
function isWritable(path: string): boolean {
  const header = new Uint8Array(FORMAT_VERSIONS_AT + 2);
  const fd = openSync(path, "r");
  try {
    readSync(fd, header, 0, header.length, 0);
  } finally {
    closeSync(fd);
  }
  const isDatabase = MAGIC === new TextDecoder("latin1").decode(header.subarray(0, MAGIC.length));
  const versions = header.subarray(FORMAT_VERSIONS_AT);
  return !isDatabase || versions.every((version) => version === 1 || version === 2);
}

/** Creates the file. Removes it if that fails, because it never contained data. */
function made<Store>(path: string, open: (path: string) => Store): Store {
  for (const companion of COMPANIONS) rmSync(path + companion, { force: true });
  try {
    return open(path);
  } catch (thrown) {
    for (const companion of ["", ...COMPANIONS]) rmSync(path + companion, { force: true });
    throw thrown;
  }
}

/**
 * Locks the folder against other agents for the lifetime of the process, by an exclusive
 * transaction on an empty SQLite database. The lock has a file of its own, so that a lock on the
 * index itself must come from another program, which does not stop the agent. Returns null if
 * another agent has the lock. Throws the error of SQLite if the lock file cannot be created.
 */
export function lockFolder(folder: string, name = "hearth.lock"): Disposable | null {
  const db = new Database(join(folder, name), { create: true, readwrite: true });
  try {
    db.run("BEGIN EXCLUSIVE");
  } catch (thrown) {
    db.close(true);
    if (isBusy(thrown)) return null;
    throw thrown;
  }
  return { [Symbol.dispose]: () => db.close(true) };
}

/** Suffixes of the files that SQLite creates beside a database. */
const COMPANIONS = ["-wal", "-shm", "-journal"] as const;
const KEPT = 3;
const MARK = ".broken-";

/** Formats a time for a file name, for example `20260131T235959Z`. */
function stamp(wallMs: number): string {
  return new Date(wallMs).toISOString().replace(/[-:]|\.\d+/g, "");
}

/**
 * Renames an unusable database and the files beside it, so that they can be examined. Keeps the
 * newest three. Returns the new path. Throws if the folder cannot be changed.
 */
function putAside(path: string, wallMs: number): string {
  const base = `${path}${MARK}${stamp(wallMs)}`;
  let target = base;
  for (let again = 1; existsSync(target); again++) target = `${base}-${again}`;
  // Rename the database before its log. If a crash happens in between, SQLite ignores a log without
  // a database, but would accept a database without its log.
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
