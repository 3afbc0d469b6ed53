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
import { IndexStore } from "./index-store.ts";
import { DamagedIndex, isAboutFile, isBusy, wordsOf } from "./open-database.ts";

export const INDEX_FILE = "hearth.sqlite";
/** SQLite's smallest page: no database is shorter. */
const PAGE_BYTES_MIN = 512;
/** A database's first bytes; where its format versions are (sqlite.org/fileformat2, 1.3). */
const MAGIC = "SQLite format 3\0";
const FORMAT_VERSIONS_AT = 18;
const LATE = "it could not be opened when this run of the agent began";

interface Closable {
  close(): void;
}

export interface OpenedStore<Store extends Closable = IndexStore> extends Disposable {
  readonly store: Store;
  readonly setAside: SetAside | null;
}

/** A file in the folder that one agent at a time has, and how it is opened or made. */
export interface LockedFile<Store extends Closable> {
  readonly folder: string;
  readonly lock: string;
  readonly file: string;
  /** What it is, in "another agent uses ...". */
  readonly what: string;
  readonly wallMs: number;
  readonly isLate: boolean;
  /** Throws DamagedIndex or what SQLite throws where the file cannot be used. */
  open(path: string): Store;
}

/** Opens the index of blocks; as `openLocked`. */
export function openStore(order: OpenOrder): OpenedStore {
  const open = (path: string) => new IndexStore(path, order.owner, order.busyMs);
  return openLocked({ ...order, lock: "hearth.lock", file: INDEX_FILE, what: "the index", open });
}

/**
 * Locks the folder and opens the file in it; one that cannot be used is set aside and a new one
 * made. Throws HearthError where it may not be used (INDEX_IN_USE, INDEX_FOREIGN), and what the
 * system threw where the disk does not do it.
 */
export function openLocked<Store extends Closable>(from: LockedFile<Store>): OpenedStore<Store> {
  const { folder, wallMs } = from;
  mkdirSync(folder, { recursive: true, mode: 0o750 });
  const lock = lockFolder(folder, from.lock);
  if (lock === null) {
    throw new HearthError("INDEX_IN_USE", `another agent uses ${from.what} in ${folder}`, {
      fix: "stop it, or give this one an index_dir of its own",
    });
  }
  crashPoint("index.locked");
  const path = join(folder, from.file);
  try {
    const why = whyUnusable(path, from);
    if (typeof why !== "string") return opened(why, null, lock);
    const setAside = { path: putAside(path, wallMs), why };
    return opened(made(path, from), setAside, lock);
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

/** What lies at `path`, or what keeps it from being of use. */
function whyUnusable<Store extends Closable>(
  path: string,
  from: LockedFile<Store>,
): Store | string {
  if (!existsSync(path)) return made(path, from);
  if (from.isLate) return LATE;
  const found = lstatSync(path);
  if (!found.isFile()) return "it is not a file";
  // SQLite takes a file of one byte for a new one.
  if (found.size > 0 && found.size < PAGE_BYTES_MIN) return "it was cut short";
  if (found.size > 0 && !isWritable(path)) return "its header says that it may not be written";
  try {
    return from.open(path);
  } catch (thrown) {
    if (isBusy(thrown)) return "another program kept it locked";
    if (!isAboutFile(thrown)) throw thrown;
    return thrown instanceof DamagedIndex ? thrown.message : wordsOf(thrown);
  }
}

/**
 * SQLite reads a file whose header names a later format for writing, and refuses to write it: bytes
 * 18 and 19 are 1 (rollback journal) or 2 (write-ahead log) in ours. What is no database at all is
 * for SQLite to say.
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

/** A new file. What comes of a failed try is removed: it never held anything. */
function made<Store extends Closable>(path: string, from: LockedFile<Store>): Store {
  for (const companion of COMPANIONS) rmSync(path + companion, { force: true });
  try {
    return from.open(path);
  } catch (thrown) {
    for (const companion of ["", ...COMPANIONS]) rmSync(path + companion, { force: true });
    throw thrown;
  }
}

/**
 * Keeps a second agent out of the folder, for as long as the process lives: an empty SQLite
 * database in an exclusive transaction. A file of its own, so that what locks the index itself is
 * known to be some other program, whose hold does not stop an agent. Null where an agent has it;
 * throws what SQLite throws where the file cannot be made.
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

/** SQLite's companions of a database file. */
const COMPANIONS = ["-wal", "-shm", "-journal"] as const;
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
function putAside(path: string, wallMs: number): string {
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
