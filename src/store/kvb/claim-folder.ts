import {
  chmodSync,
  closeSync,
  constants,
  existsSync,
  fchownSync,
  fsyncSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  statSync,
  writeSync,
} from "node:fs";
import { join } from "node:path";
import { type Clock, HearthError, messageOf, type WorkerId } from "../../core/index.ts";
import { crashPoint, type FileLock, lockFile, type Native } from "../../native/index.ts";
import {
  INDEX_FOLDER,
  isLeftover,
  isShard,
  LOCK_FILE,
  OWNER_FILE,
  QUARANTINE_FOLDER,
  SHARDS,
} from "./folder-layout.ts";

export interface FolderClaim {
  readonly native: Native;
  readonly dir: string;
  readonly worker: WorkerId;
  /** Id of this machine; see `readMachineId`. */
  readonly machine: string | null;
  readonly clock: Clock;
}

/** An SSD folder that this worker owns and that is locked until disposed. */
export interface ClaimedFolder extends Disposable {
  readonly owner: FolderOwner;
}

const FOLDER_MODE = 0o700;
/** Names allowed in a folder that has no owner yet: those of the file system and of Hearth. */
const OURS = new Set(["lost+found", LOCK_FILE, INDEX_FOLDER, QUARANTINE_FOLDER]);

/**
 * Claims the folder for this worker on this machine, and locks it. Creates it and its subfolders if
 * necessary. Throws SSD_FOREIGN, SSD_IN_USE, or SSD_UNAVAILABLE for errors of the system. A refused
 * folder is not changed.
 */
export function claimFolder(claim: FolderClaim): ClaimedFolder {
  const { dir, native } = claim;
  try {
    const made = mkdirSync(dir, { recursive: true, mode: FOLDER_MODE });
    // mkdir applies its mode to new parent folders too, and the umask to all of them.
    if (made !== undefined) chmodSync(dir, FOLDER_MODE);
    mayTake(claim, readOwner(dir));
    const lock = lockFolder(native, dir);
    try {
      return { owner: takeOver(claim), [Symbol.dispose]: () => lock[Symbol.dispose]() };
    } catch (thrown) {
      lock[Symbol.dispose]();
      throw thrown;
    }
  } catch (thrown) {
    if (thrown instanceof HearthError && thrown.code.startsWith("SSD_")) throw thrown;
    throw new HearthError("SSD_UNAVAILABLE", `${dir} cannot be used: ${messageOf(thrown)}`, {
      cause: thrown,
      fix: "give this user a folder it may write to, as ssd_dir below [kv]",
    });
  }
}

/**
 * Locks the folder against all other processes. A new lock file gets the owner of the folder, even
 * if root creates it. Throws SSD_IN_USE if another process has the lock.
 */
export function lockFolder(native: Native, dir: string): FileLock {
  const path = join(dir, LOCK_FILE);
  if (isRoot() && !existsSync(path)) createForOwner(dir, path);
  const lock = lockFile(native, path);
  if (lock !== null) return lock;
  throw new HearthError("SSD_IN_USE", `${dir} is used by another process`, {
    fix: "stop the other agent (or hearth fsck), or use a folder of its own for each",
  });
}

function isRoot(): boolean {
  return process.geteuid?.() === 0;
}

/**
 * Reads the owner again and creates missing folders and the owner file. Call while the folder is
 * locked.
 */
function takeOver(claim: FolderClaim): FolderOwner {
  const { dir, worker, machine, clock } = claim;
  const there = new Set(readdirSync(dir));
  for (const name of [...SHARDS, QUARANTINE_FOLDER]) {
    if (!there.has(name)) mkdirSync(join(dir, name), { mode: FOLDER_MODE });
  }
  crashPoint("owner.folders-made");
  const found = readOwner(dir);
  mayTake(claim, found);
  if (found.kind === "owned") return found.owner;
  const owner = { worker, machine, created: new Date(clock.wallMs()).toISOString() };
  writeOwner(dir, owner);
  return owner;
}

function foreign(message: string, fix: string): HearthError {
  return new HearthError("SSD_FOREIGN", message, { fix });
}

/** Throws SSD_FOREIGN if the folder has another owner or may have one. */
function mayTake({ dir, worker, machine }: FolderClaim, found: OwnerFile): void {
  const file = join(dir, OWNER_FILE);
  const takeOver = `to take it over with its blocks remove ${file}, else use another folder`;
  if (found.kind === "damaged") {
    throw foreign(`the owner of ${dir} is unknown: ${file} ${found.why}`, takeOver);
  }
  if (found.kind === "none") {
    const stranger = readdirSync(dir).find((name) => !isOurs(name));
    if (stranger === undefined) return;
    throw foreign(
      `${dir} is not an SSD folder of Hearth: it has no ${OWNER_FILE} and contains ${stranger}`,
      "use a folder that is empty or does not exist",
    );
  }
  const { owner } = found;
  if (owner.worker !== worker) {
    throw foreign(`${dir} belongs to worker ${owner.worker}, this is ${worker}`, takeOver);
  }
  // If either machine id is unknown, as in some containers, only the worker name identifies the
  // owner.
  if (owner.machine !== null && machine !== null && owner.machine !== machine) {
    throw foreign(
      `${dir} belongs to worker ${worker} of machine ${owner.machine}, this is ${machine}`,
      takeOver,
    );
  }
}

function isOurs(name: string): boolean {
  return OURS.has(name) || isShard(name) || isLeftover(name);
}

/** Owner of an SSD folder, as recorded in its `owner.json`. */
export interface FolderOwner {
  readonly worker: string;
  /** Content of /etc/machine-id; null if the host had none. */
  readonly machine: string | null;
  /** Time of the first use of the folder, ISO 8601 in UTC. */
  readonly created: string;
}

export type OwnerFile =
  | { readonly kind: "owned"; readonly owner: FolderOwner }
  | { readonly kind: "none" }
  | { readonly kind: "damaged"; readonly why: string };

const OWNER_FORMAT = 1;
const MACHINE = /^[0-9a-f]{32}$/;

/** Returns the id of this machine, or null if it has none. */
export function readMachineId(path = "/etc/machine-id"): string | null {
  try {
    const text = readFileSync(path, "latin1").trim();
    return MACHINE.test(text) ? text : null;
  } catch {
    return null;
  }
}

function parseOwner(text: string): OwnerFile {
  const damaged = (why: string): OwnerFile => ({ kind: "damaged", why });
  let found: unknown;
  try {
    found = JSON.parse(text);
  } catch {
    return damaged("is not JSON");
  }
  if (typeof found !== "object" || found === null) return damaged("is not a JSON object");
  const { format, worker, machine, created } = found as Record<string, unknown>;
  if (format !== OWNER_FORMAT) return damaged(`has format ${format}, this program supports 1`);
  if (typeof worker !== "string" || worker === "") return damaged("names no worker");
  if (machine !== null && typeof machine !== "string") return damaged("names no machine");
  if (typeof created !== "string") return damaged("has no time of creation");
  return { kind: "owned", owner: { worker, machine, created } };
}

/**
 * Reads the owner file of a folder. Throws the system's error if the file exists and cannot be
 * read.
 */
export function readOwner(dir: string): OwnerFile {
  try {
    return parseOwner(readFileSync(join(dir, OWNER_FILE), "utf8"));
  } catch (thrown) {
    if ((thrown as NodeJS.ErrnoException).code === "ENOENT") return { kind: "none" };
    throw thrown;
  }
}

/** Returns whether Hearth has used the folder: it has an owner file or a shard folder. */
export function isSsdFolder(dir: string): boolean {
  return readOwner(dir).kind !== "none" || readdirSync(dir).some(isShard);
}

/** Writes the owner file atomically and durably. */
function writeOwner(dir: string, owner: FolderOwner): void {
  const path = join(dir, OWNER_FILE);
  const { worker, machine, created } = owner;
  const text = `${JSON.stringify({ format: OWNER_FORMAT, worker, machine, created }, null, 2)}\n`;
  const draft = join(dir, `.${OWNER_FILE}.tmp`);
  withFile(draft, "w", (fd) => {
    writeSync(fd, text);
    fsyncSync(fd);
  });
  crashPoint("owner.drafted");
  renameSync(draft, path);
  crashPoint("owner.renamed");
  withFile(dir, "r", fsyncSync);
}

function withFile(path: string, flags: "r" | "w", use: (fd: number) => void): void {
  const fd = openSync(path, flags, 0o600);
  try {
    use(fd);
  } finally {
    closeSync(fd);
  }
}

const { O_CREAT, O_DIRECTORY, O_EXCL, O_NOFOLLOW, O_RDONLY, O_RDWR } = constants;
const LOCK_MODE = 0o600;

/** Creates an empty file with the owner of the folder, unless the file exists. */
function createForOwner(dir: string, path: string): void {
  let fd: number;
  try {
    fd = openSync(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, LOCK_MODE);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EEXIST") return;
    throw error;
  }
  give(dir, fd);
}

/** Gives a new folder within `dir` the same owner as `dir`. */
export function giveFolderToOwner(dir: string, path: string): void {
  give(dir, openSync(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
}

/**
 * Gives an open file or folder the owner of `dir`, because a file that root leaves in an agent's
 * folder would lock the agent out. Uses the descriptor, because the folder's owner may replace the
 * file of that name meanwhile. Closes `fd`.
 */
function give(dir: string, fd: number): void {
  try {
    const { uid, gid } = statSync(dir);
    if (process.geteuid?.() === 0 && uid !== 0) fchownSync(fd, uid, gid);
  } finally {
    closeSync(fd);
  }
}
