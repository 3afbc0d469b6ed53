import { closeSync, fstatSync, openSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { HearthError, messageOf } from "../core/index.ts";
import {
  type Hashing,
  namespaceSecret,
  SECRET_BYTES_MAX,
  SECRET_BYTES_MIN,
} from "../identity/index.ts";

const OTHERS = 0o077;
const NEWLINES = /\n+$/;

/**
 * MAC keys by their identifiers, from the files of a folder; none without a folder. Throws
 * CONFIG_INVALID for a file that cannot be read, is no secret, or that others may read.
 */
export function readNamespaceKeys(
  folder: string | null,
  hashing: Hashing,
): ReadonlyMap<string, Uint8Array> {
  const keys = new Map<string, Uint8Array>();
  if (folder === null) return keys;
  for (const path of filesIn(folder)) {
    const { key, id } = namespaceSecret(hashing, readSecret(path));
    keys.set(id, key);
  }
  return keys;
}

function filesIn(folder: string): string[] {
  try {
    return readdirSync(folder, { withFileTypes: true })
      .filter((entry) => !entry.name.startsWith(".") && !entry.isDirectory())
      .map(({ name }) => join(folder, name));
  } catch (cause) {
    const message = `namespaces.key_dir ${folder} cannot be read: ${messageOf(cause)}`;
    const fix = "make the folder readable for the user the agent runs as";
    throw new HearthError("CONFIG_INVALID", message, { cause, fix });
  }
}

/** A secret without the newlines at its end. */
function readSecret(path: string): Uint8Array {
  const refuse = (what: string, fix: string, cause?: unknown) =>
    new HearthError("CONFIG_INVALID", `the namespace key ${path} ${what}`, { fix, cause });
  let fd: number;
  try {
    fd = openSync(path, "r");
  } catch (cause) {
    const fix = "make the agent's user its owner, or take it out of namespaces.key_dir";
    throw refuse(`cannot be read: ${messageOf(cause)}`, fix, cause);
  }
  try {
    const { mode, size } = fstatSync(fd);
    // The mode of what was opened: the name may lead elsewhere a moment later.
    if ((mode & OTHERS) !== 0) {
      throw refuse(`has mode ${(mode & 0o777).toString(8)}`, `run "chmod 600 ${path}"`);
    }
    const text = size > SECRET_BYTES_MAX + 1 ? null : readFileSync(fd).toString("latin1");
    const secret = Buffer.from((text ?? "").replace(NEWLINES, ""), "latin1");
    if (secret.length >= SECRET_BYTES_MIN && secret.length <= SECRET_BYTES_MAX) {
      return new Uint8Array(secret);
    }
    const found = text === null ? size : secret.length;
    const what = `has ${found} bytes, not ${SECRET_BYTES_MIN} to ${SECRET_BYTES_MAX}`;
    throw refuse(what, 'make one with "openssl rand -hex 32"');
  } finally {
    closeSync(fd);
  }
}
