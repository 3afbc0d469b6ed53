import { closeSync, fsyncSync, openSync } from "node:fs";

/** So that the names of the log and the database survive a loss of power, too. */
export function syncFolder(folder: string): void {
  const fd = openSync(folder, "r");
  try {
    fsyncSync(fd);
  } finally {
    closeSync(fd);
  }
}
