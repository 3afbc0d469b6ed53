import { HearthError } from "../core/index.ts";
import type { Region } from "./region.ts";

/** How a lane's bytes are sealed. `none` only on a network that the operator declared trusted. */
export const CIPHERS = ["aegis-128l", "aes-128-gcm", "none"] as const;
export type Cipher = (typeof CIPHERS)[number];

/** Why a transfer or a lane came to nothing. */
export type LaneFault =
  | "broken"
  | "forged"
  | "too_long"
  | "cancelled"
  | "expired"
  | "closed"
  | "refused"
  | "unreachable"
  | "full";

export interface LaneSession {
  /** Names the session in the clear on each lane: 16 bytes, fresh. */
  readonly id: Uint8Array;
  /** 32 fresh random bytes that both sides got inside TLS; keys are derived from them. */
  readonly secret: Uint8Array;
  readonly cipher: Cipher;
  readonly lanes: number;
}

export type Sent = { readonly ok: true } | { readonly ok: false; readonly fault: LaneFault };

export type Received =
  /** XXH3-64 of the span, taken after its last byte was written. */
  | { readonly ok: true; readonly checksum: bigint }
  | { readonly ok: false; readonly fault: LaneFault };

/**
 * TCP connections that native threads own: they carry payload from arena to arena, sealed record by
 * record. A session is a few of them between two hosts; bytes flow one way, from who sends to who
 * dialled. Promises:
 *
 * - A span belongs to the lanes until its promise has resolved, cancelled or not; then nothing
 *   reads or writes it any more.
 * - A record that was changed, repeated, left out, or moved to another place, lane, transfer or
 *   session ends its session with `forged`; no byte of it is given to anybody (the span's content
 *   is undefined after a fault).
 * - Only bytes of transfers that `receive` announced are written, at most as many as it said.
 */
export interface Lanes extends AsyncDisposable {
  /** Takes lanes of expected sessions. Returns the port; 0 takes a free one. Throws NativeError. */
  listen(host: string, port: number): number;
  /**
   * The side that sends: lanes that prove to know the secret within `expireMs` belong to it. Throws
   * LaneError, as `dial` does.
   */
  expect(session: LaneSession, expireMs: number): Promise<LaneLink>;
  /** The side that receives. */
  dial(session: LaneSession, host: string, port: number, timeoutMs: number): Promise<LaneLink>;
}

export interface LaneLink extends AsyncDisposable {
  /** Resolves when it has ended. */
  readonly ended: Promise<LaneFault>;
  /** Resolves when the kernel has all of it (or will never get it). `transfer` < 2^32, unused. */
  send(transfer: number, offset: number, bytes: number): Promise<Sent>;
  /** Announce it before the other side is asked to send. `bytes` must be exact. */
  receive(transfer: number, offset: number, bytes: number): Promise<Received>;
  /** Bytes of a transfer that have arrived so far; 0 for one that is over. */
  arrived(transfer: number): number;
  /** Its promise resolves as `cancelled` as soon as nothing touches the span. */
  cancel(transfer: number): void;
}

export interface LanesOptions {
  readonly region: Region;
  readonly threads: number;
  /**
   * SO_SNDBUF and SO_RCVBUF of each lane. 0: to a host less than 0.5 ms away a send buffer that
   * stays in the cache, else what the kernel finds. A receive buffer below 4 MiB is slow.
   */
  readonly socketBytes: number;
  /** What one key seals at most, for tests; else what suits the cipher. */
  readonly rekeyBytes?: number;
}

/** A session that never opened. */
export class LaneError extends HearthError {
  readonly fault: LaneFault;

  constructor(fault: LaneFault) {
    super("LANES_FAILED", `lanes to a peer: ${fault.replaceAll("_", " ")}`);
    this.fault = fault;
  }
}
