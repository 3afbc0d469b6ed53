import type { Clock } from "../core/index.ts";
import type { Hashing } from "../identity/index.ts";
import type { Gpus, Native, Queue } from "../native/index.ts";
import type { FrameCounts, Health, LookupOutcome } from "../observability/index.ts";
import type { BlockStore, Namespaces } from "../store/index.ts";
import type { CommandPort } from "./engine-handlers.ts";
import { DEFAULT_LIMITS } from "./protocol/index.ts";

/**
 * What one engine may ask of the agent. Told to the client in the hello's answer where it matters
 * to it.
 */
export interface EngineLimits {
  readonly frameBytesMax: number;
  readonly itemsMax: number;
  /** Slots one connection may hold at the same time. */
  readonly handlesMax: number;
  readonly connectionsMax: number;
  /** Connections of one process. */
  readonly processConnectionsMax: number;
  /** Part of RAM whose slots one engine may hold while there are others. */
  readonly heldShare: number;
  /** Answers a connection may leave unread before its requests wait. */
  readonly unreadBytesMax: number;
  /** How long it may leave them so before it is cut off. */
  readonly unreadMs: number;
  /** How long a connection that holds slots may be silent before it is cut off. */
  readonly leaseMs: number;
  /** Deadline of an acquire that names none. */
  readonly acquireMs: number;
}

export const ENGINE_LIMITS: EngineLimits = {
  ...DEFAULT_LIMITS,
  processConnectionsMax: 32,
  heldShare: 0.5,
  acquireMs: 2_000,
};

/** What the server counted since it started. */
export interface EngineStats {
  connected: number;
  /** Not let in: wrong user, or one too many. */
  refusedPeers: number;
  /** Lease overstayed, answers unread, no hello. */
  cutOff: number;
  /** Connections that ended while their process held slots. */
  quarantines: number;
  /** Failures of our own while a frame was handled. */
  faults: number;
  /** Copied between slots and engines' GPU memory. */
  gpuStoredBytes: number;
  gpuLoadedBytes: number;
  /** Copies that a device, or its driver, did not make. */
  gpuFailures: number;
  /** Slots that a device may touch until the process ends: they are never used again. */
  gpuLeakedSlots: number;
}

export function emptyEngineStats(): EngineStats {
  return {
    connected: 0,
    refusedPeers: 0,
    cutOff: 0,
    quarantines: 0,
    faults: 0,
    gpuStoredBytes: 0,
    gpuLoadedBytes: 0,
    gpuFailures: 0,
    gpuLeakedSlots: 0,
  };
}

export interface EngineServerOptions {
  readonly socketPath: string;
  /** Group that may connect beside the agent's own; null = the agent's. */
  readonly socketGroup: number | null;
  readonly limits: EngineLimits;
  readonly store: BlockStore;
  readonly namespaces: Namespaces;
  readonly native: Native;
  readonly hashing: Hashing;
  readonly queue: Queue;
  readonly clock: Clock;
  readonly incarnation: bigint;
  /** Copies between slots and engines' GPU memory; null, or none: engines do so by themselves. */
  readonly gpus?: Gpus | null;
  /** Where engines' commands go; null, or none: this agent takes none from them. */
  readonly commands?: CommandPort | null;
  readonly frames: FrameCounts;
  /** Where an engine that holds nearly everything is reported. */
  readonly health?: Pick<Health, "raise">;
  /** One request's blocks were looked up in RAM. */
  lookedUp(tier: "ram" | "ssd" | "peer", outcome: LookupOutcome, seconds: number): void;
  /** Called with one line and fields for what an operator should see. */
  log(level: "info" | "warn" | "error", text: string, fields?: Record<string, unknown>): void;
}
