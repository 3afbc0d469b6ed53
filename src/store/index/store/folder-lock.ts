import { Database } from "bun:sqlite";
import { join } from "node:path";
import { isBusy } from "./damaged.ts";

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
