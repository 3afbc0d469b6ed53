import { closeSync, fstatSync, readSync } from "node:fs";
import type { Config } from "../config/index.ts";
import { type Clock, messageOf, sleep } from "../core/index.ts";
import { type Native, nativeBuffer, Region, type Wish } from "../native/index.ts";
import type { Health, Logger } from "../observability/index.ts";
import {
  decodeRamRecord,
  encodeRamRecord,
  type RamRecord,
  RamScrub,
  type TieredStore,
} from "../store/index.ts";
import type { ServiceManager } from "./process.ts";

/** Names under which the service manager stores the descriptors of the arena and its record. */
const ARENA_FD = "hearth-arena";
const RECORD_FD = "hearth-record";
const FIRST_FD = 3;
const PAGE = 4096;
const LENGTH_BYTES = 8;
/** Time to wait so that the service manager receives the descriptors before this process exits. */
const KEEP_MS = 250;

/** The previous process's arena, and the record of its contents. */
export interface InheritedRam {
  readonly region: Region;
  readonly record: RamRecord;
}

export interface ListenEnvironment {
  readonly LISTEN_PID?: string | undefined;
  readonly LISTEN_FDS?: string | undefined;
  readonly LISTEN_FDNAMES?: string | undefined;
}

interface HandoverParts {
  readonly native: Native;
  readonly service: ServiceManager;
  readonly logger: Logger;
}

/**
 * Takes over the RAM that the previous process stored in the service manager. Returns null if there
 * is none or a part is unusable. Then removes the stored descriptors, so that a crash of this
 * process does not hand the same RAM to the next one.
 */
export function inheritRam(
  { native, service, logger }: HandoverParts,
  environment: ListenEnvironment,
  wanted: { readonly arenaBytes: number; readonly lockMemory: Wish },
): InheritedRam | null {
  const kept = keptDescriptors(environment);
  // Ignore descriptors with other names: the previous process did not store them for a handover.
  for (const name of kept.keys()) if (name !== ARENA_FD && name !== RECORD_FD) kept.delete(name);
  const arena = kept.get(ARENA_FD);
  const record = kept.get(RECORD_FD);
  for (const name of kept.keys()) service.forget(name);
  if (arena === undefined && record === undefined) return null;
  const inherited = takeOver(native, arena, record, wanted);
  for (const [name, fd] of kept) {
    if (name !== ARENA_FD || typeof inherited === "string") closeSync(fd);
  }
  if (typeof inherited !== "string") return inherited;
  logger.warn("RAM of the previous process dropped", { why: inherited });
  return null;
}

/** Returns the RAM taken over, or the reason why it cannot be used. */
function takeOver(
  native: Native,
  arena: number | undefined,
  recordFd: number | undefined,
  { arenaBytes, lockMemory }: { readonly arenaBytes: number; readonly lockMemory: Wish },
): InheritedRam | string {
  if (arena === undefined || recordFd === undefined) return "a descriptor is missing";
  const record = readRecord(recordFd);
  if (record === null) return "its record is damaged";
  if (record.arena !== nameOf(arena)) return "its record describes other memory";
  if (fstatSync(arena).size !== arenaBytes) return "kv.ram_gib has changed";
  try {
    return { region: Region.adopt(native, { fd: arena, bytes: arenaBytes, lockMemory }), record };
  } catch (error) {
    return messageOf(error);
  }
}

/** Returns the descriptors passed to this process, by name (sd_listen_fds_with_names(3)). */
function keptDescriptors(environment: ListenEnvironment): Map<string, number> {
  const { LISTEN_PID, LISTEN_FDS, LISTEN_FDNAMES } = environment;
  const kept = new Map<string, number>();
  if (Number(LISTEN_PID) !== process.pid) return kept;
  const names = (LISTEN_FDNAMES ?? "").split(":");
  for (let i = 0; i < Number(LISTEN_FDS); i++) kept.set(names[i] ?? String(i), FIRST_FD + i);
  return kept;
}

/** Returns a name for a memory file that is unique until the machine reboots. */
function nameOf(fd: number): string {
  const { dev, ino } = fstatSync(fd);
  return `${dev}:${ino}`;
}

function readRecord(fd: number): RamRecord | null {
  const { size } = fstatSync(fd);
  if (size < LENGTH_BYTES) return null;
  const bytes = new Uint8Array(size);
  for (let at = 0; at < size; ) {
    const got = readSync(fd, bytes, at, size - at, at);
    if (got === 0) return null;
    at += got;
  }
  const length = Number(new DataView(bytes.buffer).getBigUint64(0, true));
  if (length > size - LENGTH_BYTES) return null;
  return decodeRamRecord(bytes.subarray(LENGTH_BYTES, LENGTH_BYTES + length));
}

/**
 * Stores the arena and its record in the service manager for the next process. `describe` receives
 * the arena's name; it returns the record, or null if the RAM cannot be handed over now.
 */
export async function leaveRam(
  { native, service, logger, clock }: HandoverParts & { readonly clock: Clock },
  region: Region,
  describe: (arena: string) => RamRecord | null,
): Promise<void> {
  if (!service.keeps) return;
  const record = describe(nameOf(region.fd));
  if (record === null) {
    logger.warn("RAM not handed over: part of it is still in use", {});
    return;
  }
  using recordRegion = regionOf(native, encodeRamRecord(record));
  service.keep(ARENA_FD, region.fd);
  service.keep(RECORD_FD, recordRegion.fd);
  await sleep(clock, KEEP_MS);
  logger.info("RAM left for the next process", { blocks: record.count });
}

/** Creates a memory file that contains the length of `bytes`, then `bytes`. */
function regionOf(native: Native, bytes: Uint8Array): Region {
  const length = LENGTH_BYTES + bytes.length;
  const size = Math.ceil(length / PAGE) * PAGE;
  const region = Region.create(native, { bytes: size, hugePages: "off", lockMemory: "off" });
  const buffer = nativeBuffer(length);
  new DataView(buffer.bytes.buffer).setBigUint64(0, BigInt(bytes.length), true);
  buffer.bytes.set(bytes, LENGTH_BYTES);
  region.copyIn(0, buffer, length, false);
  return region;
}

/** Time for which the health code stays raised after a damaged block was found. */
const DAMAGE_MS = 3_600_000;

/** Scrubs RAM for damaged blocks, and reports them. */
export class RamWatch implements AsyncDisposable {
  readonly #scrub: RamScrub;

  constructor(store: TieredStore, health: Health, logger: Logger) {
    this.#scrub = new RamScrub(store);
    store.checks.onDamage = (damage) => {
      const { found, count, digest, offset } = damage;
      logger.error("damaged block in RAM, dropping it", { ...damage });
      const where = offset === null ? "outside the arena" : `at byte ${offset} of the arena`;
      const last = `last block ${digest} ${where}, found by ${found}`;
      health.raise("KV_RAM_CSUM", `${count} since start, ${last}`, { forMs: DAMAGE_MS });
    };
  }

  configure({ kv }: Config): void {
    this.#scrub.setRate(kv.scrubBytesPerSecond);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#scrub[Symbol.asyncDispose]();
  }
}
