import { closeSync, fstatSync, openSync, readdirSync, readFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import { join } from "node:path";
import { type Config, type MemoryFacts, readMemoryFacts } from "../config/index.ts";
import {
  type Clock,
  formatBytes,
  HearthError,
  messageOf,
  type Random,
  sleep,
} from "../core/index.ts";
import { hostMemoryNodes } from "../devices/index.ts";
import type { EngineLimits } from "../engine/index.ts";
import {
  type Hashing,
  namespaceSecret,
  SECRET_BYTES_MAX,
  SECRET_BYTES_MIN,
} from "../identity/index.ts";
import { Queue, type Region } from "../native/index.ts";
import type { Health, Logger } from "../observability/index.ts";
import {
  ArenaGrowth,
  type ArenaPart,
  type ClaimLimits,
  createArena,
  type Namespaces,
  planArenaParts,
  TieredStore,
} from "../store/index.ts";
import { DeviceRoom, type DeviceRoomParts } from "./devices-service.ts";

interface GroundParts extends Omit<DeviceRoomParts, "region"> {
  readonly random: Random;
  readonly namespaces: Namespaces;
}

/** What an agent stands on: its memory, the devices that reach it, and the store in it. */
export interface Ground {
  readonly region: Region;
  readonly devices: DeviceRoom;
  readonly queue: Queue;
  readonly store: TieredStore;
  /** Has backed nothing yet. */
  readonly growth: ArenaGrowth;
}

/** Operations in flight: hashing for commits, and one slice of memory. */
const QUEUE_ENTRIES = 4096;
const WATCHES_MAX = 4096;

/**
 * With the memory of the process before where there is one. Throws ARENA_UNAVAILABLE, and
 * UNSUPPORTED where a device is required and cannot be used.
 */
export function layGround(parts: GroundParts, inherited: Region | null): Ground {
  const { config, native, clock, random, namespaces } = parts;
  const { kv } = config;
  const arena = {
    bytes: kv.ramBytes,
    hugePages: kv.hugePages,
    lockMemory: kv.lockMemory,
    sliceBytes: kv.prefaultSliceBytes,
  };
  const region = inherited ?? createArena(native, arena);
  const devices = devicesAt(parts, region);
  const { logger } = parts;
  const { nodes } = devices;
  const places = placeArena(region, { nodes, isNew: inherited === null, logger });
  const queue = new Queue(native, {
    entries: QUEUE_ENTRIES,
    threads: queueThreads(),
    watches: WATCHES_MAX,
  });
  const store = new TieredStore({
    native,
    region,
    queue,
    clock,
    random,
    namespaces,
    macKeys: readNamespaceKeys(config.namespaces.keyDir, native),
    blocksMax: kv.blocksMax,
    gpuWindowBlocks: config.engine.gpuWindowBlocks,
    policy: kv.policy,
    marks: { high: kv.highWater, low: kv.lowWater },
    parts: places,
    claims: claimLimitsOf(config),
  });
  store.sessions.setIdle(config.engine.sessionIdleMs);
  const growth = new ArenaGrowth(region, queue, arena, (bytes) => {
    store.slots.addReady(bytes - store.slots.readyBytes);
    devices.ready(bytes);
  });
  return { region, devices, queue, store, growth };
}

function devicesAt(parts: GroundParts, region: Region): DeviceRoom {
  try {
    return DeviceRoom.open({ ...parts, region });
  } catch (thrown) {
    region[Symbol.dispose]();
    throw thrown;
  }
}

/** One may be taking memory while another hashes. */
const QUEUE_THREADS_MIN = 2;
const MEMORY_TRIES = 20;
const MEMORY_WAIT_MS = 100;
/** About 10 GB/s each: as much as engines can bring. */
const QUEUE_THREADS_MAX = 8;

/** What the engine plane is held to. */
export function limitsOf(config: Config): EngineLimits {
  const { engine } = config;
  return {
    frameBytesMax: engine.frameBytesMax,
    itemsMax: engine.itemsMax,
    handlesMax: engine.handlesMax,
    connectionsMax: engine.clientsMax,
    processConnectionsMax: engine.clientsPerProcess,
    heldShare: engine.heldShare,
    unreadBytesMax: engine.unreadBytesMax,
    unreadMs: engine.drainStallMs,
    leaseMs: engine.leaseMs,
    acquireMs: engine.acquireDeadlineMs,
  };
}

/** What reservations of engines may keep in RAM. */
export function claimLimitsOf({ kv, engine }: Config): ClaimLimits {
  return {
    bytesMax: Math.floor(kv.ramBytes * engine.reservedShare),
    bytesMaxAll: Math.floor(kv.ramBytes * engine.reservedShareAll),
  };
}

/**
 * The kernel would not refuse memory it does not have: it would end the process half-way. Throws
 * ARENA_UNAVAILABLE.
 */
function checkMemory(bytes: number, facts: MemoryFacts): void {
  const free = facts.availableBytes ?? Number.POSITIVE_INFINITY;
  if (bytes <= free) return;
  const text = `the RAM arena of ${formatBytes(bytes)} does not fit: ${formatBytes(free)} are free`;
  throw new HearthError("ARENA_UNAVAILABLE", text, {
    fix: "lower kv.ram, or free memory on this host",
  });
}

/**
 * As `checkMemory`; after a restart some times, since the kernel may still be taking back the
 * memory of the process before.
 */
export async function awaitMemory(bytes: number, clock: Clock, isRestart: boolean): Promise<void> {
  for (let tries = isRestart ? MEMORY_TRIES : 1; ; tries--) {
    try {
      checkMemory(bytes, readMemoryFacts());
      return;
    } catch (error) {
      if (tries === 1) throw error;
      await sleep(clock, MEMORY_WAIT_MS);
    }
  }
}

/** A quarter of the cores: the others are the engines'. */
function queueThreads(): number {
  const quarter = Math.floor(availableParallelism() / 4);
  return Math.min(QUEUE_THREADS_MAX, Math.max(QUEUE_THREADS_MIN, quarter));
}

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

export interface PlaceOptions {
  /** Those of the devices; null where one does not say. */
  readonly nodes: readonly (number | null)[];
  /** Its pages are not there yet; else they stay where they are. */
  readonly isNew: boolean;
  readonly logger: Pick<Logger, "info" | "warn">;
  /** NUMA nodes of the host that have memory. */
  readonly hostNodes?: number;
}

/**
 * Gives each NUMA node that has devices its part of the arena, before the first page of it is
 * there. None on hosts with one node: all memory is as near as any.
 */
export function placeArena(region: Region, options: PlaceOptions): readonly ArenaPart[] {
  const { nodes, isNew, logger, hostNodes = hostMemoryNodes() } = options;
  const parts = planArenaParts(region.bytes, nodes, hostNodes);
  if (!isNew || parts.length === 0) return parts;
  for (const { offset, bytes, node } of parts) {
    if (region.preferNode(offset, bytes, node)) continue;
    logger.warn("the kernel places no memory by node", { node });
    return [];
  }
  const of = parts.map(({ node }) => node).join(" ");
  logger.info("RAM is divided among the nodes of devices", { nodes: of });
  return parts;
}

const LOOK_MS = 5_000;
const RAISED_MS = 60_000;
/** `st_blocks` counts these, whatever the size of a page. */
const BLOCK_BYTES = 512;

/**
 * Raises KV_RAM_HOLES when the arena has less memory than was put into it. Engines write to the
 * arena, so it cannot have F_SEAL_WRITE or F_SEAL_FUTURE_WRITE, and without one of them whoever has
 * the descriptor may punch holes into it (fallocate(2)). A page of a hole reads as zeros, unless
 * it is a huge page and the pool is empty: touching it then ends the process with SIGBUS.
 */
export function watchArena(
  region: Pick<Region, "fd" | "state">,
  clock: Clock,
  health: Pick<Health, "raise">,
): Disposable {
  return clock.every(LOOK_MS, () => {
    const missing = region.state().populatedBytes - fstatSync(region.fd).blocks * BLOCK_BYTES;
    if (missing <= 0) return;
    const details = `${missing} bytes of the arena have no memory`;
    health.raise("KV_RAM_HOLES", details, { forMs: RAISED_MS });
  });
}
