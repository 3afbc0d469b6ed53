import type { WorkerId } from "../core/index.ts";
import type { Region } from "../native/index.ts";
import type { FrameHeader, ItemRefusal, PeerAnswer, PeerRequest, PullItem } from "./messages.ts";
import type { PeerIdentity } from "./trust.ts";

export const TRANSPORTS = ["rdma", "stream", "quic"] as const;
/** The transports, in order of preference. */
export type TransportName = (typeof TRANSPORTS)[number];

export interface TransportCapabilities {
  /** Data in flight is encrypted and authenticated. */
  readonly encrypted: boolean;
  /** Bytes move between arenas without passing through JavaScript. */
  readonly direct: boolean;
  /** The first packets to a recently used host can carry a request (0-RTT). */
  readonly early: boolean;
  /**
   * The client reads the server's memory without the server's CPU; the server keeps a slot
   * reference until the client reports that it is done.
   */
  readonly oneSided: boolean;
}

/** Address of a peer's transport. */
export interface Endpoint {
  readonly host: string;
  readonly port: number;
}

export interface DialTarget extends Endpoint {
  /** The worker that the peer's certificate must name. */
  readonly worker: WorkerId;
}

/**
 * Why a connection or a pull failed. `refused`: authorization failed on either side; `unreachable`:
 * no connection; `broken`: the connection ended; `protocol`: invalid message; `stalled`: no data
 * for too long; `aborted`: the caller's signal; `closed`: closed by this side; `unsupported`: not
 * available on this host.
 */
export const CONNECTION_FAULTS = [
  "refused",
  "unreachable",
  "broken",
  "protocol",
  "stalled",
  "aborted",
  "closed",
  "unsupported",
] as const;
export type ConnectionFaultKind = (typeof CONNECTION_FAULTS)[number];

export interface ConnectionFault {
  readonly kind: ConnectionFaultKind;
  /** Message; never contains key material. */
  readonly why: string;
}

export type Dialled =
  | { readonly ok: true; readonly connection: PeerConnection }
  | { readonly ok: false; readonly fault: ConnectionFault };

export type Called =
  | { readonly ok: true; readonly answer: PeerAnswer }
  | { readonly ok: false; readonly fault: ConnectionFault };

/** A complete block at its place in the arena. */
export interface ItemCame {
  readonly kind: "came";
  readonly header: FrameHeader;
  /** XXH3-64 of the bytes in the arena, computed after the last byte was written. */
  readonly checksum: bigint;
}

export type ItemResult = ItemCame | ItemRefusal;

export interface Landed extends PullItem {
  /** Byte offset in the registered region of the `bytesMax` bytes reserved for the payload. */
  readonly offset: number;
}

export interface OutgoingPull {
  readonly namespace: Uint8Array;
  readonly items: readonly Landed[];
  readonly deadlineMs: number;
  readonly signal: AbortSignal;
  /**
   * `bytes` more of item `index` are in the arena. Called at least once a second while data
   * arrives.
   */
  onBytes(index: number, bytes: number): void;
  /** Called once for each answered item, in any order. */
  onItem(index: number, result: ItemResult): void;
}

/**
 * A connection to one peer with a verified certificate. Any number of requests can run at once.
 * Promises:
 *
 * - After `pull` has resolved, for any reason, nothing writes to its items' places.
 * - A frame's address, namespace and length are compared with the request before the block counts
 *   as received; if the server follows the protocol, also before its first byte is written. Nothing
 *   is written outside of an item's place or beyond `bytesMax`.
 * - The signal also stops the sender, which releases its slot references.
 * - Faults are results; nothing throws because of the peer's behaviour.
 */
export interface PeerConnection extends AsyncDisposable {
  readonly identity: PeerIdentity;
  readonly transport: TransportName;
  /** The TLS session was resumed, so that the first request took one round trip. */
  readonly resumed: boolean;
  /** Smallest measured round trip in milliseconds; null before the first answer. */
  readonly rttMs: number | null;
  /** Null while the connection is open. */
  readonly fault: ConnectionFault | null;
  /** Resolves with the reason when the connection has ended. */
  readonly ended: Promise<ConnectionFault>;
  /** Sends one request with one answer (not `pull`). */
  call(
    request: Exclude<PeerRequest, { op: "pull" }>,
    options: { readonly deadlineMs: number; readonly signal?: AbortSignal },
  ): Promise<Called>;
  /** Null: all items were answered, with blocks or refusals. */
  pull(pull: OutgoingPull): Promise<ConnectionFault | null>;
}

/** A slot reference for a transport, which calls `release` exactly once. */
export interface ServedBlock {
  readonly kind: "block";
  readonly header: FrameHeader;
  /** Byte offset in the registered region. */
  readonly offset: number;
  release(): void;
}

export type Served = { readonly index: number } & (ServedBlock | ItemRefusal);

/**
 * Answers peers' requests. A transport calls it only for peers with verified certificates and with
 * completely decoded requests.
 */
export interface PeerServer {
  call(
    peer: PeerIdentity,
    request: Exclude<PeerRequest, { op: "pull" }>,
    signal: AbortSignal,
  ): Promise<PeerAnswer>;
  /**
   * One `Served` for each item, in order of availability. The transport takes the next one when it
   * can send more, and releases each block after its last byte is sent or the pull has ended.
   * Ending the iteration early gives up the rest.
   */
  serve(
    peer: PeerIdentity,
    pull: Extract<PeerRequest, { op: "pull" }>,
    signal: AbortSignal,
  ): AsyncIterable<Served>;
}

/** Log of a transport. Never contains key material. */
export type TransportLog = (
  level: "debug" | "info" | "warn" | "error",
  text: string,
  fields: Readonly<Record<string, string | number | boolean>>,
) => void;

/**
 * A way to move blocks between hosts. Promises:
 *
 * - No byte of a request is parsed before the peer's certificate was found to name a worker of this
 *   cluster; a dialled peer is exactly the worker that was dialled.
 * - Connections, requests per connection, total requests and bytes waiting to be sent are bounded.
 * - `reload`: new connections use the new certificates. Open connections continue, except those
 *   whose peer would be refused now; a connection also ends when its peer's certificate expires.
 */
export interface Transport extends AsyncDisposable {
  readonly name: TransportName;
  readonly capabilities: TransportCapabilities;
  /** The reason this transport cannot be used on this host; null: it can. */
  readonly unsupported: string | null;
  /** Registers the memory of all blocks. Called once, before any other method. */
  register(region: Region): Promise<void>;
  /** Accepts connections of peers. Resolves with the bound address; port 0 takes a free port. */
  listen(endpoint: Endpoint, server: PeerServer): Promise<Endpoint>;
  dial(target: DialTarget, signal: AbortSignal): Promise<Dialled>;
  /** The certificates have changed. */
  reload(): Promise<void>;
  /** Number of open connections that peers opened. */
  readonly inboundConnections: number;
}
