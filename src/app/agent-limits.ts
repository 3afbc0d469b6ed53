import { availableParallelism } from "node:os";
import { type Config, type MemoryFacts, readMemoryFacts } from "../config/index.ts";
import { type Clock, formatBytes, HearthError, sleep } from "../core/index.ts";
import type { EngineLimits } from "../engine/index.ts";
import type { ClaimLimits } from "../store/index.ts";

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
export function queueThreads(): number {
  const quarter = Math.floor(availableParallelism() / 4);
  return Math.min(QUEUE_THREADS_MAX, Math.max(QUEUE_THREADS_MIN, quarter));
}
