import { existsSync, lstatSync, mkdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { HearthError } from "../../core/index.ts";
import { crashPoint } from "../../native/index.ts";
import type { OpenOrder, SetAside } from "../protocol.ts";
import { DamagedIndex, isAboutFile, isBusy, wordsOf } from "./damaged.ts";
import { lockFolder } from "./folder-lock.ts";
import { IndexStore } from "./index-store.ts";
import { COMPANIONS, putAside } from "./set-aside.ts";

export const INDEX_FILE = "hearth.sqlite";
const LATE = "it could not be opened when this run of the agent began";

export interface OpenedStore extends Disposable {
  readonly store: IndexStore;
  readonly setAside: SetAside | null;
}

/**
 * Locks the folder and opens the index in it; one that cannot be used is set aside and a new one
 * made. Throws HearthError where it may not be used (INDEX_IN_USE, INDEX_FOREIGN), and what the
 * system threw where the disk does not do it.
 */
export function openStore(order: OpenOrder): OpenedStore {
  const { folder, wallMs } = order;
  mkdirSync(folder, { recursive: true, mode: 0o750 });
  const lock = lockFolder(folder);
  if (lock === null) {
    throw new HearthError("INDEX_IN_USE", `another agent uses the index in ${folder}`, {
      fix: "stop it, or give this one an index_dir of its own",
    });
  }
  crashPoint("index.locked");
  const path = join(folder, INDEX_FILE);
  try {
    const why = whyUnusable(path, order);
    if (typeof why !== "string") return opened(why, null, lock);
    const setAside = { path: putAside(path, wallMs), why };
    return opened(made(path, order), setAside, lock);
  } catch (thrown) {
    lock[Symbol.dispose]();
    throw thrown;
  }
}

function opened(store: IndexStore, setAside: SetAside | null, lock: Disposable): OpenedStore {
  const dispose = () => {
    store.close();
    lock[Symbol.dispose]();
  };
  return { store, setAside, [Symbol.dispose]: dispose };
}

/** The index at `path`, or what keeps it from being one. */
function whyUnusable(path: string, order: OpenOrder): IndexStore | string {
  if (!existsSync(path)) return made(path, order);
  if (order.isLate) return LATE;
  if (!lstatSync(path).isFile()) return "it is not a file";
  try {
    return new IndexStore(path, order.owner, order.busyMs);
  } catch (thrown) {
    if (isBusy(thrown)) return "another program kept it locked";
    if (!isAboutFile(thrown)) throw thrown;
    return thrown instanceof DamagedIndex ? thrown.message : wordsOf(thrown);
  }
}

/** A new index. What comes of a failed try is removed: it never held anything. */
function made(path: string, order: OpenOrder): IndexStore {
  for (const companion of COMPANIONS) rmSync(path + companion, { force: true });
  try {
    return new IndexStore(path, order.owner, order.busyMs);
  } catch (thrown) {
    for (const companion of ["", ...COMPANIONS]) rmSync(path + companion, { force: true });
    throw thrown;
  }
}
