import {
  closeSync,
  openSync,
  readdirSync,
  readlinkSync,
  readSync,
  statSync,
  writeSync,
} from "node:fs";
import { join } from "node:path";
import type { Prompts } from "./prompts.ts";

const HEADER_BYTES = 4096;

function flipBit(file: number, offset: number, bit: number): void {
  const byte = new Uint8Array(1);
  if (readSync(file, byte, 0, 1, offset) !== 1) return;
  byte[0]! ^= 1 << bit;
  writeSync(file, byte, 0, 1, offset);
}

/** Opens a file for changes; null if the agent has removed it meanwhile. */
function openExisting(path: string): number | null {
  try {
    return openSync(path, "r+");
  } catch (thrown) {
    if ((thrown as NodeJS.ErrnoException).code === "ENOENT") return null;
    throw thrown;
  }
}

/** Flips one bit in the payload of up to `count` block files; returns how many were changed. */
export function damageFiles(folder: string, count: number, chance: Prompts): number {
  const names = readdirSync(folder, { recursive: true, encoding: "utf8" });
  const files = chance.shuffle(names.filter((name) => name.endsWith(".kvb"))).slice(0, count);
  let changed = 0;
  for (const name of files) {
    const file = openExisting(join(folder, name));
    if (file === null) continue;
    const { size } = statSync(`/proc/self/fd/${file}`);
    if (size > HEADER_BYTES) {
      flipBit(file, chance.between(HEADER_BYTES, size - 1), chance.between(0, 7));
      changed += 1;
    }
    closeSync(file);
  }
  return changed;
}

/** The descriptor of the largest memory file of a process: an agent's arena. */
function arenaOf(pid: number): { readonly path: string; readonly bytes: number } | null {
  const folder = `/proc/${pid}/fd`;
  const found = readdirSync(folder).flatMap((name) => {
    const path = join(folder, name);
    try {
      if (!readlinkSync(path).startsWith("/memfd:")) return [];
      return [{ path, bytes: statSync(path).size }];
    } catch (thrown) {
      // The process closed the descriptor after the listing.
      if ((thrown as NodeJS.ErrnoException).code === "ENOENT") return [];
      throw thrown;
    }
  });
  return found.sort((a, b) => b.bytes - a.bytes)[0] ?? null;
}

/** Flips `count` bits at random places of an agent's arena. */
export function damageArena(pid: number, count: number, chance: Prompts): number {
  const arena = arenaOf(pid);
  if (arena === null) throw new Error(`process ${pid} has no memory file`);
  const file = openSync(arena.path, "r+");
  for (let index = 0; index < count; index++) {
    flipBit(file, chance.between(0, arena.bytes - 1), chance.between(0, 7));
  }
  closeSync(file);
  return count;
}
