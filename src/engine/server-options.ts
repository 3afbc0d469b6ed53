import type { Clock, TurnSource } from "../core/index.ts";
import type { Hashing } from "../identity/index.ts";
import type { Gpus, Native, Queue } from "../native/index.ts";
import type { Health } from "../observability/index.ts";
import type { BlockStore, Namespaces } from "../store/index.ts";
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
export type EngineStats = ReturnType<typeof emptyEngineStats>;

export function emptyEngineStats() {
  return {
    connected: 0,
    /** Rejected connections: wrong user, or over a limit. */
    refusedPeers: 0,
    /** Connections closed by the server: lease overstayed, answers unread, no HELLO. */
    cutOff: 0,
    /** Connections that ended while their process held slots. */
    quarantines: 0,
    /** Internal errors while handling a frame. */
    faults: 0,
    /** Bytes copied between slots and GPU memory of engines. */
    gpuStoredBytes: 0,
    gpuLoadedBytes: 0,
    /** Copies that a device or its driver failed to make. */
    gpuFailures: 0,
    /** Slots that a device may access until the process ends. They are never reused. */
    gpuLeakedSlots: 0,
  };
}

/** Destination of the engines' commands. */
export interface CommandPort {
  /**
   * Executes a command (JSON as UTF-8) and returns its receipt, at most `bytesMax` bytes. `name` is
   * the client's name. Reading and writing happen in slices of `source`.
   */
  submit(
    json: Uint8Array,
    client: { readonly name: string; readonly source: TurnSource },
    bytesMax: number,
  ): Promise<Uint8Array>;
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
