import type { WorkerId } from "../core/index.ts";
import type { Region } from "../native/index.ts";
import type { FrameHeader, ItemRefusal, PeerAnswer, PeerRequest, PullItem } from "./messages.ts";
import type { PeerIdentity } from "./trust.ts";

export const TRANSPORTS = ["rdma", "stream", "quic"] as const;
/** Names of the transports, in order of preference. */
export type TransportName = (typeof TRANSPORTS)[number];

export interface TransportCapabilities {
  /** True if payload is encrypted and authenticated on the network. */
  readonly encrypted: boolean;
  /** True if payload moves between the hosts' arenas without passing through JavaScript. */
  readonly direct: boolean;
  /** True if the first packets to a recently used host can carry a request (0-RTT). */
  readonly early: boolean;
  /**
   * True if the client reads the server's memory without involving the server's CPU. The server
   * then keeps a slot reference until the client reports that it has read the block.
   */
  readonly oneSided: boolean;
}

/** Network address of a transport of a host. */
export interface Endpoint {
  readonly host: string;
  readonly port: number;
}

export interface DialTarget extends Endpoint {
  /** Name of the worker to connect to. The peer's certificate must contain it. */
  readonly worker: WorkerId;
}

/**
 * Reasons why a connection or a pull failed. `refused`: one side did not authorize the other;
 * `unreachable`: no connection could be made; `broken`: the connection ended; `protocol`: a message
 * was invalid; `stalled`: no data arrived for too long; `aborted`: the caller cancelled; `closed`:
 * this side closed the connection; `unsupported`: the transport is not available on this host.
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
  /** Message for logs. Never contains key material. */
  readonly why: string;
}

export type Dialled =
  | { readonly ok: true; readonly connection: PeerConnection }
  | { readonly ok: false; readonly fault: ConnectionFault };

export type Called =
  | { readonly ok: true; readonly answer: PeerAnswer }
  | { readonly ok: false; readonly fault: ConnectionFault };

/** A block whose complete payload is in the arena. */
export interface ItemCame {
  readonly kind: "came";
  readonly header: FrameHeader;
  /** XXH3-64 of the payload in the arena, computed after its last byte was written. */
  readonly checksum: bigint;
}

export type ItemResult = ItemCame | ItemRefusal;

export interface Landed extends PullItem {
  /**
   * Byte offset in the registered memory region at which to write the payload. `bytesMax` bytes are
   * reserved there.
   */
  readonly offset: number;
}

export interface OutgoingPull {
  readonly namespace: Uint8Array;
  readonly items: readonly Landed[];
  readonly deadlineMs: number;
  readonly signal: AbortSignal;
  /**
   * Called when `bytes` more bytes of item `index` have arrived in the arena. While data arrives,
   * called at least once a second.
   */
  onBytes(index: number, bytes: number): void;
  /** Called once for each requested block, in any order, with the block or a refusal. */
  onItem(index: number, result: ItemResult): void;
}

/**
 * A connection to one peer with a verified certificate. Any number of requests can run at once.
 * Promises:
 *
 * - After `pull` has resolved, for any reason, nothing writes to the memory reserved for its
 *   blocks.
 * - A block's address, namespace and length are compared with the request before the block counts
 *   as received; if the server follows the protocol, also before the first byte is written. Nothing
 *   is written outside the memory reserved for a block, or beyond its `bytesMax`.
 * - If the signal fires, the server also stops sending and releases its slot references.
 * - Faults are results. No method throws because of the peer's behaviour.
 */
export interface PeerConnection extends AsyncDisposable {
  readonly identity: PeerIdentity;
  readonly transport: TransportName;
  /** True if a TLS session was resumed, so that the first request took one round trip. */
  readonly resumed: boolean;
  /** Smallest measured round trip in milliseconds. Null before the first reply. */
  readonly rttMs: number | null;
  /** Reason why the connection has ended. Null while it is open. */
  readonly fault: ConnectionFault | null;
  /** Resolves with the reason when the connection has ended. */
  readonly ended: Promise<ConnectionFault>;
  /** Sends a request other than a pull. Resolves with its reply. */
  call(
    request: Exclude<PeerRequest, { op: "pull" }>,
    options: { readonly deadlineMs: number; readonly signal?: AbortSignal },
  ): Promise<Called>;
  /**
   * Fetches blocks. Resolves with null when each block was received or refused; otherwise with the
   * fault that ended the pull.
   */
  pull(pull: OutgoingPull): Promise<ConnectionFault | null>;
}

/**
 * A block to be sent. The transport must call `release` exactly once, when it does not read the
 * payload any more.
 */
export interface ServedBlock {
  readonly kind: "block";
  readonly header: FrameHeader;
  /** Byte offset of the payload in the registered memory region. */
  readonly offset: number;
  release(): void;
}

export type Served = { readonly index: number } & (ServedBlock | ItemRefusal);

/**
 * Handles peers' requests. A transport passes on only completely decoded requests of peers with
 * verified certificates.
 */
export interface PeerServer {
  call(
    peer: PeerIdentity,
    request: Exclude<PeerRequest, { op: "pull" }>,
    signal: AbortSignal,
  ): Promise<PeerAnswer>;
  /**
   * Returns one `Served` for each requested block, in the order in which blocks become available.
   * The transport takes the next one when it can send more, and releases each block after its last
   * byte was sent or the pull has ended. It ends the iteration early to abandon the remaining
   * blocks.
   */
  serve(
    peer: PeerIdentity,
    pull: Extract<PeerRequest, { op: "pull" }>,
    signal: AbortSignal,
  ): AsyncIterable<Served>;
}

/** Writes to the log of a transport. Must never be given key material. */
export type TransportLog = (
  level: "debug" | "info" | "warn" | "error",
  text: string,
  fields: Readonly<Record<string, string | number | boolean>>,
) => void;

/**
 * A way to move blocks between hosts. Promises:
 *
 * - No byte of a request is parsed before the peer's certificate was found to name a worker of this
 *   cluster. A peer that this host dialled has exactly the worker name that was dialled.
 * - Numbers of connections, of requests per connection and in total, and bytes waiting to be sent
 *   are bounded.
 * - After `reload`, new connections use the new certificates. Open connections continue, unless
 *   their peer would be refused now. A connection ends when its peer's certificate expires.
 */
export interface Transport extends AsyncDisposable {
  readonly name: TransportName;
  readonly capabilities: TransportCapabilities;
  /** Reason why this transport cannot be used on this host. Null if it can. */
  readonly unsupported: string | null;
  /** Registers the memory region that contains all blocks. Called once, before any other method. */
  register(region: Region): Promise<void>;
  /**
   * Starts to accept connections of peers. Resolves with the bound address. Port 0 selects a free
   * port.
   */
  listen(endpoint: Endpoint, server: PeerServer): Promise<Endpoint>;
  dial(target: DialTarget, signal: AbortSignal): Promise<Dialled>;
  /** Applies changed certificates. */
  reload(): Promise<void>;
  /** Number of open connections that peers have opened. */
  readonly inboundConnections: number;
}
