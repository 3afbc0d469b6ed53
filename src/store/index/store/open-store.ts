import { closeSync, existsSync, lstatSync, mkdirSync, openSync, readSync, rmSync } from "node:fs";
import { join } from "node:path";
import { HearthError } from "../../../core/index.ts";
import { crashPoint } from "../../../native/index.ts";
import type { OpenOrder, SetAside } from "../protocol.ts";
import { DamagedIndex, isAboutFile, isBusy, wordsOf } from "./damaged.ts";
import { lockFolder } from "./folder-lock.ts";
import { IndexStore } from "./index-store.ts";
import { COMPANIONS, putAside } from "./set-aside.ts";

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
