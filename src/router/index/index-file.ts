import { type FileHandle, open, rename, rm } from "node:fs/promises";
import { dirname } from "node:path";
import type { PrefixTable } from "../../native/index.ts";

const PAGE_BYTES = 2 ** 20;

/**
 * Writes the index as it is now to a file of another name, syncs it, and gives it its name. The
 * index may change meanwhile.
 */
export async function saveTable(table: PrefixTable, path: string): Promise<void> {
  const unfinished = `${path}.new`;
  table.beginSave();
  try {
    await using file = await open(unfinished, "w", 0o600);
    await writePages(table, file);
    await file.sync();
  } catch (error) {
    await rm(unfinished, { force: true });
    throw error;
  } finally {
    table.endSave();
  }
  await rename(unfinished, path);
  await using folder = await open(dirname(path), "r");
  await folder.sync();
}

async function writePages(table: PrefixTable, file: FileHandle): Promise<void> {
  const page = new Uint8Array(new ArrayBuffer(PAGE_BYTES));
  while (true) {
    const filled = table.saveNext(page);
    if (filled === 0) return;
    let at = 0;
    while (at < filled) at += (await file.write(page, at, filled - at)).bytesWritten;
  }
}

/** False: there is no such file, or it is not what was saved; the index is as empty as before. */
export async function loadTable(table: PrefixTable, path: string): Promise<boolean> {
  const file = await open(path, "r").catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") return null;
    throw error;
  });
  if (file === null) return false;
  await using opened = file;
  const page = new Uint8Array(new ArrayBuffer(PAGE_BYTES));
  let bytesRead = 0;
  do {
    ({ bytesRead } = await opened.read(page, 0, PAGE_BYTES));
    if (!table.load(page.subarray(0, bytesRead))) return false;
  } while (bytesRead > 0);
  return table.endLoad();
}
