import type { Random } from "../core/index.ts";
import { Queue, type Region } from "../native/index.ts";
import { ArenaGrowth, createArena, type Namespaces, TieredStore } from "../store/index.ts";
import { claimLimitsOf, queueThreads } from "./agent-limits.ts";
import { placeArena } from "./arena-places.ts";
import { DeviceRoom, type DeviceRoomParts } from "./device-room.ts";
import { readNamespaceKeys } from "./namespace-keys.ts";

export interface GroundParts extends Omit<DeviceRoomParts, "region"> {
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
