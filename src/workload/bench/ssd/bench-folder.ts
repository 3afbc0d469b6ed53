import { mkdtempSync, rmSync, statfsSync } from "node:fs";
import { join } from "node:path";
import { formatBytes, HearthError, messageOf } from "../../../core/index.ts";

/** Left free beside what the benchmark writes: a full file system measures itself. */
const SPARE_BYTES = 2 ** 28;

/** A folder of the benchmark's own inside `dir`, gone with everything in it when disposed. */
export interface BenchFolder extends Disposable {
  readonly path: string;
}

/** Throws SSD_UNAVAILABLE where it cannot be made, or has no room for so many bytes. */
export function makeBenchFolder(dir: string, bytes: number): BenchFolder {
  let path: string;
  try {
    const { bavail, bsize } = statfsSync(dir);
    const free = bavail * bsize;
    if (free < bytes + SPARE_BYTES) {
      const text = `${dir} has ${formatBytes(free)} free, this takes ${formatBytes(bytes)}`;
      const fix = "give --dir a folder with more room, or measure less";
      throw new HearthError("SSD_UNAVAILABLE", text, { fix });
    }
    path = mkdtempSync(join(dir, "hearth-bench-"));
  } catch (thrown) {
    if (thrown instanceof HearthError) throw thrown;
    throw new HearthError("SSD_UNAVAILABLE", `${dir} cannot be used: ${messageOf(thrown)}`, {
      cause: thrown,
      fix: "give --dir a folder that is there and yours",
    });
  }
  return { path, [Symbol.dispose]: () => rmSync(path, { recursive: true, force: true }) };
}
