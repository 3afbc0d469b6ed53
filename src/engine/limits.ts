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
