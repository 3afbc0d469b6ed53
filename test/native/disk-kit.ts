import { afterEach, describe, expect } from "bun:test";
import { readdirSync, readlinkSync } from "node:fs";
import { join } from "node:path";
import {
  type BlockDisk,
  type BlockTransfer,
  type DiskOptions,
  loadNative,
  openDisk,
  Region,
  setFaults,
} from "../../src/native/index.ts";
import { describeNative, noteSkip, waitFor, withTempDir } from "../support/index.ts";

export const PAGE = 4096;
export const MIB = 2 ** 20;
export const DEPTH = 64;

/** For tests that depend on the speed of the disk, which other processes may be using. */
export const SLOW_MS = 60_000;

export type Method = "io_uring" | "threads";

/** One suite per method. A host that denies io_uring is reported. */
export function describeMethods(name: string, suite: (method: Method) => void): void {
  describeNative(name, () => {
    afterEach(() => setFaults(loadNative(), ""));
    describe("threads", () => suite("threads"));
    const probe = loadNative().probeIoUring();
    if (!probe.ok) noteSkip(`${name}: io_uring`, `io_uring_setup: errno ${probe.errno}`);
    describe.skipIf(!probe.ok)("io_uring", () => suite("io_uring"));
  });
}

export interface Kit {
  readonly folder: string;
  readonly disk: BlockDisk;
  readonly arena: Region;
}

export async function withDisk<T>(
  options: Partial<DiskOptions> & { readonly arenaBytes?: number },
  use: (kit: Kit) => Promise<T>,
): Promise<T> {
  return withTempDir(async (folder) => {
    const bytes = options.arenaBytes ?? 16 * MIB;
    const native = loadNative();
    using arena = Region.create(native, { bytes, hugePages: "off", lockMemory: "off" });
    const fixed = { folder, arena, depth: DEPTH, method: "auto" } as const;
    await using disk = await openDisk(native, { ...fixed, ...options });
    await registrationOver(disk);
    return await use({ folder, disk, arena });
  });
}

/** Resolves when registration of the arena has ended; from then on the ring moves the bytes. */
export async function registrationOver(disk: BlockDisk): Promise<void> {
  await waitFor(() => !disk.registering, 5_000, "the end of the arena's registration");
}

/** A transfer with a claimed header. Payload and header are filled from `seed`. */
export function filled(kit: Kit, path: string, offset: number, bytes: number, seed: number) {
  const header = kit.disk.claimHeader()!;
  header.bytes.fill(seed);
  kit.arena.fill(offset, bytes, BigInt(seed));
  const { arena: region } = kit;
  return { path, header, region, offset, bytes } satisfies BlockTransfer;
}

/** Stores one block and returns its header. */
export async function storeOne(kit: Kit, path: string, bytes: number, seed: number) {
  const transfer = filled(kit, path, 0, bytes, seed);
  const stored = await kit.disk.store(transfer);
  transfer.header[Symbol.dispose]();
  return stored;
}

/**
 * Loads a block to a span with other content. `right`: header, payload and checksum match `seed`.
 */
export async function loadOne(kit: Kit, path: string, bytes: number, seed: number) {
  const transfer = filled(kit, path, 8 * MIB, bytes, 255);
  using header = transfer.header;
  const loaded = await kit.disk.load(transfer);
  if (!loaded.ok) return { ...loaded, right: false };
  const right =
    header.bytes.every((byte) => byte === seed) &&
    kit.arena.firstWrong(transfer.offset, bytes, BigInt(seed)) === null &&
    loaded.checksum === kit.arena.checksum(transfer.offset, bytes);
  return { ...loaded, right };
}

/**
 * Open descriptors of this process for arenas, rings, eventfds and temporary files. Descriptors
 * that the runtime opens and closes on its own are excluded.
 */
export function openFiles(): number {
  const links = readdirSync("/proc/self/fd").map((fd) => {
    try {
      return readlinkSync(`/proc/self/fd/${fd}`);
    } catch {
      return "the descriptor that looking took";
    }
  });
  return links.filter((link) => /\/hearth-|memfd:hearth|io_uring|eventfd/.test(link)).length;
}

/**
 * Waits until at most `count` of these descriptors are open: the runtime closes an eventfd only
 * after it has stopped reading it.
 */
export async function expectOpenFiles(count: number, what: string): Promise<void> {
  await waitFor(() => openFiles() <= count, SLOW_MS / 4, `${what}: ${count} files open`);
  expect(openFiles()).toBeLessThanOrEqual(count);
}

/** All files below a folder. */
export function filesBelow(folder: string): string[] {
  return readdirSync(folder, { withFileTypes: true, recursive: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name).slice(folder.length + 1));
}
