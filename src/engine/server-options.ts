import type { Clock, TurnSource } from "../core/index.ts";
import type { Hashing } from "../identity/index.ts";
import type { Gpus, Native, Queue } from "../native/index.ts";
import type { Health } from "../observability/index.ts";
import type { BlockStore, Namespaces } from "../store/index.ts";
import type { FrameCounts, LookupOutcome } from "./frame-counts.ts";
import { DEFAULT_LIMITS } from "./protocol/index.ts";

/** Limits of engines. HELLO's reply reports those that a client needs. */
export interface EngineLimits {
  readonly frameBytesMax: number;
  readonly itemsMax: number;
  /** Maximum slots that a connection may hold at the same time. */
  readonly handlesMax: number;
  readonly connectionsMax: number;
  /** Maximum connections of one process. */
  readonly processConnectionsMax: number;
  /** Maximum fraction of RAM whose slots one engine may hold while other engines are connected. */
  readonly heldShare: number;
  /**
   * Maximum bytes of replies that a client has not read. Above it, further requests of the
   * connection wait.
   */
  readonly unreadBytesMax: number;
  /**
   * Maximum ms that unread replies may stay above `unreadBytesMax`. Then the connection is closed.
   */
  readonly unreadMs: number;
  /**
   * Maximum ms without a frame from a connection that holds slots. Then the connection is closed.
   */
  readonly leaseMs: number;
  /** Default deadline of an ACQUIRE in ms. */
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
    /** Connections rejected at connect: wrong user, or over a limit. */
    refusedPeers: 0,
    /**
     * Connections closed by the server: slots held too long without a frame, replies unread, or no
     * HELLO in time.
     */
    cutOff: 0,
    /** Connections that ended while their process could still access slots they held. */
    quarantines: 0,
    /** Internal errors while handling a frame. */
    faults: 0,
    /** Bytes copied from GPU memory of engines to slots, and in the other direction. */
    gpuStoredBytes: 0,
    gpuLoadedBytes: 0,
    /** Copies that failed in a GPU or its driver. */
    gpuFailures: 0,
    /** Slots that a GPU may access until the agent's process ends. They are never reused. */
    gpuLeakedSlots: 0,
  };
}

/** Executes the commands that engines send. */
export interface CommandPort {
  /**
   * Executes a command (JSON as UTF-8) and returns its receipt, at most `bytesMax` bytes. `name` is
   * the client's name. Decoding and encoding run in time slices of `source`.
   */
  submit(
    json: Uint8Array,
    client: { readonly name: string; readonly source: TurnSource },
    bytesMax: number,
  ): Promise<Uint8Array>;
}

export interface EngineServerOptions {
  readonly socketPath: string;
  /**
   * Id of the group whose members may connect, in addition to the agent's own user. Null: the
   * agent's group.
   */
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
   * GPUs for copies between slots and GPU memory of engines. Null or absent: engines make these
   * copies themselves.
   */
  readonly gpus?: Gpus | null;
  /** Executes commands from engines. Null or absent: this agent accepts none. */
  readonly commands?: CommandPort | null;
  readonly frames: FrameCounts;
  /** Receives a report about an engine that holds nearly all of RAM that it may hold. */
  readonly health?: Pick<Health, "raise">;
  /**
   * Called when the blocks of a request have been looked up. `tier` is the slowest tier that
   * supplied a block.
   */
  lookedUp(tier: "ram" | "ssd" | "peer", outcome: LookupOutcome, seconds: number): void;
  /** Called with a log line and its fields. */
  log(level: "info" | "warn" | "error", text: string, fields?: Record<string, unknown>): void;
}
