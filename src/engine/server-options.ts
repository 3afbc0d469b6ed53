import type { Clock } from "../core/index.ts";
import type { Hashing } from "../identity/index.ts";
import type { Gpus, Native, Queue } from "../native/index.ts";
import type { Health } from "../observability/index.ts";
import type { BlockStore, Namespaces } from "../store/index.ts";
import type { CommandPort } from "./engine-handlers.ts";
import type { FrameCounts, LookupOutcome } from "./frame-counts.ts";
import { DEFAULT_LIMITS } from "./protocol/index.ts";

/** Limits of engines. The answer to HELLO reports those that a client needs. */
export interface EngineLimits {
  readonly frameBytesMax: number;
  readonly itemsMax: number;
  /** Maximum slots that a connection holds at the same time. */
  readonly handlesMax: number;
  readonly connectionsMax: number;
  /** Maximum connections of a process. */
  readonly processConnectionsMax: number;
  /** Part of RAM whose slots one engine may hold while there are other engines. */
  readonly heldShare: number;
  /** Maximum unread answers of a connection before its requests wait. */
  readonly unreadBytesMax: number;
  /** How long answers may exceed that before the connection is closed. */
  readonly unreadMs: number;
  /** How long a connection that holds slots may be silent before it is closed. */
  readonly leaseMs: number;
  /** Default deadline of an acquire. */
  readonly acquireMs: number;
}

export const ENGINE_LIMITS: EngineLimits = {
  ...DEFAULT_LIMITS,
  processConnectionsMax: 32,
  heldShare: 0.5,
  acquireMs: 2_000,
};

/** Counters of the server since its start. */
export interface EngineStats {
  connected: number;
  /** Rejected connections: wrong user, or over a limit. */
  refusedPeers: number;
  /** Connections closed by the server: lease overstayed, answers unread, no HELLO. */
  cutOff: number;
  /** Connections that ended while their process held slots. */
  quarantines: number;
  /** Internal errors while handling a frame. */
  faults: number;
  /** Bytes copied between slots and GPU memory of engines. */
  gpuStoredBytes: number;
  gpuLoadedBytes: number;
  /** Copies that a device or its driver failed to make. */
  gpuFailures: number;
  /** Slots that a device may access until the process ends. They are never reused. */
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
  /** Group that may connect in addition to the agent's own user; null = the agent's group. */
  readonly socketGroup: number | null;
  readonly limits: EngineLimits;
  readonly store: BlockStore;
  readonly namespaces: Namespaces;
  readonly native: Native;
  readonly hashing: Hashing;
  readonly queue: Queue;
  readonly clock: Clock;
  readonly incarnation: bigint;
  /**
   * For copies between slots and GPU memory of engines. Null or absent: engines copy themselves.
   */
  readonly gpus?: Gpus | null;
  /** Destination of commands from engines. Null or absent: this agent accepts none. */
  readonly commands?: CommandPort | null;
  readonly frames: FrameCounts;
  /** Receives a report about an engine that holds nearly everything. */
  readonly health?: Pick<Health, "raise">;
  /** Called when the blocks of a request were looked up. */
  lookedUp(tier: "ram" | "ssd" | "peer", outcome: LookupOutcome, seconds: number): void;
  /** Called with one line and fields for an operator. */
  log(level: "info" | "warn" | "error", text: string, fields?: Record<string, unknown>): void;
}
