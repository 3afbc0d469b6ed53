import { existsSync, mkdirSync, statfsSync } from "node:fs";
import { freemem, homedir } from "node:os";
import { join } from "node:path";

const GIB = 2 ** 30;

/** Free disk space below which nothing is installed. */
const DISK_MIN_BYTES = 15 * GIB;
/** Free memory below which no engine is started. */
const MEMORY_MIN_BYTES = 6 * GIB;

/** A host that cannot run a lane; `REQUIRE_ENGINES=1` makes it a failure. */
export class Skip extends Error {}

/** The folder that holds engines and models; it survives runs. */
export function cacheFolder(): string {
  const named = process.env.HEARTH_ENGINES_CACHE;
  const caches = process.env.XDG_CACHE_HOME || join(homedir(), ".cache");
  const folder = named || join(caches, "hearth", "engines");
  mkdirSync(folder, { recursive: true });
  return folder;
}

export function requireDisk(folder: string): void {
  const { bavail, bsize } = statfsSync(folder);
  const free = bavail * bsize;
  if (free >= DISK_MIN_BYTES) return;
  const found = (free / GIB).toFixed(1);
  throw new Skip(`${folder} has ${found} GiB free, an installation needs ${DISK_MIN_BYTES / GIB}`);
}

/** Memory that programs can take; the page cache counts as free. */
async function availableBytes(): Promise<number> {
  if (!existsSync("/proc/meminfo")) return freemem();
  const kib = /^MemAvailable:\s+(\d+) kB$/m.exec(await Bun.file("/proc/meminfo").text())?.[1];
  return kib === undefined ? freemem() : Number(kib) * 1024;
}

export async function requireMemory(bytesMin = MEMORY_MIN_BYTES): Promise<void> {
  const free = await availableBytes();
  if (free >= bytesMin) return;
  const found = (free / GIB).toFixed(1);
  throw new Skip(`${found} GiB of memory are free, the lane needs ${bytesMin / GIB}`);
}
