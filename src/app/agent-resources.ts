import { closeSync, fstatSync, openSync, readdirSync, readFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import { join } from "node:path";
import {
  type Config,
  deriveGpuWindowBlocks,
  type MemoryFacts,
  readMemoryFacts,
} from "../config/index.ts";
import {
  type Clock,
  formatBytes,
  HearthError,
  messageOf,
  type Random,
  sleep,
} from "../core/index.ts";
import { hostMemoryNodes } from "../devices/index.ts";
import { ENGINE_LIMITS, type EngineLimits } from "../engine/index.ts";
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
import { DevicesService, type DevicesServiceParts } from "./devices-service.ts";

interface AgentResourcesParts extends Omit<DevicesServiceParts, "region"> {
  readonly random: Random;
  readonly namespaces: Namespaces;
}

/** Resources of an agent: the RAM arena, the devices that access it, and the store in it. */
export interface AgentResources {
  readonly region: Region;
  readonly devices: DevicesService;
  readonly queue: Queue;
  readonly store: TieredStore;
  /** Populates the arena's memory in the background. It starts with no memory populated. */
  readonly growth: ArenaGrowth;
}

/** Maximum operations queued for the worker threads: hashing for commits, and populating memory. */
const QUEUE_ENTRIES = 4096;
const WATCHES_MAX = 4096;
/**
 * Bytes of memory to prefault at a time while the arena grows. The agent serves requests meanwhile;
 * prefaulting one slice is the longest delay of a request.
 */
const PREFAULT_SLICE_BYTES = 64 * 2 ** 20;

/**
 * Creates the resources. Uses the previous process's RAM if this process inherited it. Throws
 * ARENA_UNAVAILABLE, or UNSUPPORTED if a required device is unusable.
 */
export function createAgentResources(
  parts: AgentResourcesParts,
  inherited: Region | null,
): AgentResources {
  const { config, native, clock, random, namespaces } = parts;
  const { kv } = config;
  const arena = {
    bytes: kv.ramBytes,
    hugePages: kv.hugePages,
    lockMemory: kv.lockMemory,
    sliceBytes: PREFAULT_SLICE_BYTES,
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
    gpuWindowBlocks: deriveGpuWindowBlocks(kv.blocksMax),
    policy: kv.policy,
    marks: marksOf(kv),
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

function devicesAt(parts: AgentResourcesParts, region: Region): DevicesService {
  try {
    return DevicesService.open({ ...parts, region });
  } catch (thrown) {
    region[Symbol.dispose]();
    throw thrown;
  }
}

/** Minimum worker threads: one may be populating memory while the other hashes. */
const QUEUE_THREADS_MIN = 2;
const MEMORY_TRIES = 20;
const MEMORY_WAIT_MS = 100;
/**
 * Maximum worker threads. Each hashes about 10 GB/s, so eight keep up with the data that engines
 * supply.
 */
const QUEUE_THREADS_MAX = 8;

/**
 * Share of `engine.clientsMax` that one process may use. Applies if it exceeds the default limit.
 */
const PROCESS_CONNECTIONS_SHARE = 1 / 8;
/** Share of RAM that the reservations of one engine may protect from eviction. */
const RESERVED_SHARE = 0.4;
/** The same, for the reservations of all engines. */
const RESERVED_SHARE_ALL = 0.6;
/** Background eviction stops at this share of RAM below `high_water`; writers find it free. */
const MARKS_DISTANCE = 0.05;

/** Shares of RAM in use at which background eviction starts and stops. */
export function marksOf({ highWater }: Config["kv"]): {
  readonly high: number;
  readonly low: number;
} {
  return { high: highWater, low: Math.max(0, highWater - MARKS_DISTANCE) };
}

/** Returns the limits for engine connections, leases and acquires. */
export function limitsOf(config: Config): EngineLimits {
  const { engine } = config;
  return {
    ...ENGINE_LIMITS,
    connectionsMax: engine.clientsMax,
    processConnectionsMax: Math.max(
      ENGINE_LIMITS.processConnectionsMax,
      Math.ceil(engine.clientsMax * PROCESS_CONNECTIONS_SHARE),
    ),
    leaseMs: engine.leaseMs,
    acquireMs: engine.acquireDeadlineMs,
  };
}

/** Limits of the engines' RAM reservations. */
export function claimLimitsOf({ kv }: Config): ClaimLimits {
  return {
    bytesMax: Math.floor(kv.ramBytes * RESERVED_SHARE),
    bytesMaxAll: Math.floor(kv.ramBytes * RESERVED_SHARE_ALL),
  };
}

/**
 * Checks that the arena fits into the available memory. Otherwise the allocation would succeed,
 * because the kernel overcommits, and the kernel would kill the process later. Throws
 * ARENA_UNAVAILABLE.
 */
function checkMemory(bytes: number, facts: MemoryFacts): void {
  const free = facts.availableBytes ?? Number.POSITIVE_INFINITY;
  if (bytes <= free) return;
  const text = `the RAM arena of ${formatBytes(bytes)} does not fit: ${formatBytes(free)} are free`;
  throw new HearthError("ARENA_UNAVAILABLE", text, {
    fix: "lower kv.ram_gib, or free memory on this host",
  });
}

/**
 * Checks that the arena fits into the available memory. After a restart, retries for up to 2 s,
 * because the kernel may still be reclaiming the previous process's memory. Throws
 * ARENA_UNAVAILABLE.
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

/**
 * Returns the number of worker threads: a quarter of the cores, from 2 to 8. Engines need the rest.
 */
function queueThreads(): number {
  const quarter = Math.floor(availableParallelism() / 4);
  return Math.min(QUEUE_THREADS_MAX, Math.max(QUEUE_THREADS_MIN, quarter));
}

const OTHERS = 0o077;
const NEWLINES = /\n+$/;

/**
 * Reads MAC keys from the files of a folder, keyed by key identifier. Returns an empty map if no
 * folder is configured. Throws CONFIG_INVALID if a file is unreadable, not a valid secret, or
 * accessible to other users.
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
    const fix = "make the folder readable for the agent's user";
    throw new HearthError("CONFIG_INVALID", message, { cause, fix });
  }
}

/** Reads a secret from a file and removes newlines at its end. */
function readSecret(path: string): Uint8Array {
  const refuse = (what: string, fix: string, cause?: unknown) =>
    new HearthError("CONFIG_INVALID", `the namespace key ${path} ${what}`, { fix, cause });
  let fd: number;
  try {
    fd = openSync(path, "r");
  } catch (cause) {
    const fix = "make the agent's user its owner, or remove it from namespaces.key_dir";
    throw refuse(`cannot be read: ${messageOf(cause)}`, fix, cause);
  }
  try {
    const { mode, size } = fstatSync(fd);
    // Check the mode of the open descriptor: the path may be replaced at any time.
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
    throw refuse(what, 'create one with "openssl rand -hex 32"');
  } finally {
    closeSync(fd);
  }
}

export interface PlaceOptions {
  /** NUMA node of each device. Null: the device's node is unknown. */
  readonly nodes: readonly (number | null)[];
  /** True if no page of the arena is allocated yet. Binding does not move allocated pages. */
  readonly isNew: boolean;
  readonly logger: Pick<Logger, "info" | "warn">;
  /** Number of NUMA nodes of this host that have memory. */
  readonly hostNodes?: number;
}

/**
 * Binds a part of the arena to each NUMA node that has devices. Returns the parts; empty on hosts
 * with one node. Only pages allocated after the call are placed.
 */
export function placeArena(region: Region, options: PlaceOptions): readonly ArenaPart[] {
  const { nodes, isNew, logger, hostNodes = hostMemoryNodes() } = options;
  const parts = planArenaParts(region.bytes, nodes, hostNodes);
  if (!isNew || parts.length === 0) return parts;
  for (const { offset, bytes, node } of parts) {
    if (region.preferNode(offset, bytes, node)) continue;
    logger.warn("the kernel does not support NUMA placement", { node });
    return [];
  }
  const of = parts.map(({ node }) => node).join(" ");
  logger.info("RAM distributed over the NUMA nodes of devices", { nodes: of });
  return parts;
}

const LOOK_MS = 5_000;
const RAISED_MS = 60_000;
/** Bytes per unit of `st_blocks` (stat(2)). Does not depend on the page size. */
const BLOCK_BYTES = 512;

/**
 * Raises KV_RAM_HOLES while the arena has less memory than the agent populated. Any process with
 * the arena's descriptor can punch holes (fallocate(2)): F_SEAL_WRITE and F_SEAL_FUTURE_WRITE would
 * prevent that, but engines must write to the arena. A page in a hole reads as zeros. If it is a
 * huge page and the pool is empty, access ends the process with SIGBUS.
 */
export function watchArena(
  region: Pick<Region, "fd" | "state">,
  clock: Clock,
  health: Pick<Health, "raise">,
): Disposable {
  return clock.every(LOOK_MS, () => {
    const missing = region.state().populatedBytes - fstatSync(region.fd).blocks * BLOCK_BYTES;
    if (missing <= 0) return;
    const details = `${missing} bytes of the arena are not backed by memory`;
    health.raise("KV_RAM_HOLES", details, { forMs: RAISED_MS });
  });
}
