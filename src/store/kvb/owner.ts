import {
  closeSync,
  fsyncSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  writeSync,
} from "node:fs";
import { join } from "node:path";
import { crashPoint } from "../../native/index.ts";
import { isShard, OWNER_FILE } from "./folder.ts";

/** Whose an SSD folder is, as its `owner.json` says. */
export interface FolderOwner {
  readonly worker: string;
  /** Of /etc/machine-id; null where the host had none. */
  readonly machine: string | null;
  /** When the folder was first used: ISO 8601, UTC. */
  readonly created: string;
}

export type OwnerFile =
  | { readonly kind: "owned"; readonly owner: FolderOwner }
  | { readonly kind: "none" }
  | { readonly kind: "damaged"; readonly why: string };

const OWNER_FORMAT = 1;
const MACHINE = /^[0-9a-f]{32}$/;

/** The machine's id; null where it has none, or none yet. */
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
    return damaged("is no JSON");
  }
  if (typeof found !== "object" || found === null) return damaged("is no JSON object");
  const { format, worker, machine, created } = found as Record<string, unknown>;
  if (format !== OWNER_FORMAT) return damaged(`has format ${format}, this program knows 1`);
  if (typeof worker !== "string" || worker === "") return damaged("names no worker");
  if (machine !== null && typeof machine !== "string") return damaged("names no machine");
  if (typeof created !== "string") return damaged("has no time of creation");
  return { kind: "owned", owner: { worker, machine, created } };
}

/** Throws the system's error where the file is there and cannot be read. */
export function readOwner(dir: string): OwnerFile {
  try {
    return parseOwner(readFileSync(join(dir, OWNER_FILE), "utf8"));
  } catch (thrown) {
    if ((thrown as NodeJS.ErrnoException).code === "ENOENT") return { kind: "none" };
    throw thrown;
  }
}

/** Whether Hearth has ever used the folder: it has an owner, or a shard. */
export function isSsdFolder(dir: string): boolean {
  return readOwner(dir).kind !== "none" || readdirSync(dir).some(isShard);
}

/** Writes the file so that a reader sees all of it or none, also after a loss of power. */
export function writeOwner(dir: string, owner: FolderOwner): void {
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
