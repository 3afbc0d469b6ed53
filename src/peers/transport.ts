import type { WorkerId } from "../core/index.ts";
import type { Region } from "../native/index.ts";
import type { FrameHeader, ItemRefusal, PeerAnswer, PeerRequest, PullItem } from "./messages.ts";
import type { PeerIdentity } from "./trust.ts";

export const TRANSPORTS = ["rdma", "stream", "quic"] as const;
/** How blocks travel; the first that both sides have is tried first. */
export type TransportName = (typeof TRANSPORTS)[number];

export interface TransportCapabilities {
  /** Nobody on the way can read or change what is pulled. */
  readonly encrypted: boolean;
  /** Bytes go from arena to arena without passing through JavaScript. */
  readonly direct: boolean;
  /** A pull may ride in the first flight to a host spoken to shortly before. */
  readonly early: boolean;
  /** The asker reads the other's memory by itself: what it reads must be lent until it says so. */
  readonly oneSided: boolean;
}

/** Where a transport of a peer listens. */
export interface Endpoint {
  readonly host: string;
  readonly port: number;
}

export interface DialTarget extends Endpoint {
  /** Whose certificate it must be. */
  readonly worker: WorkerId;
}

/**
 * Why a link or a pull came to nothing. `refused`: the other side did not accept us, or is not who
 * it should be; `unreachable`: it was not there; `broken`: the link ended; `protocol`: it said what
 * makes no sense; `stalled`: it went on and said nothing; `aborted`: the caller's signal; `closed`:
 * this side closed; `unsupported`: not on this host.
 */
export const LINK_FAULTS = [
  "refused",
  "unreachable",
  "broken",
  "protocol",
  "stalled",
  "aborted",
  "closed",
  "unsupported",
] as const;
export type LinkFaultKind = (typeof LINK_FAULTS)[number];

export interface LinkFault {
  readonly kind: LinkFaultKind;
  /** For people; never key material. */
  readonly why: string;
}

export type Dialled =
  | { readonly ok: true; readonly connection: PeerLink }
  | { readonly ok: false; readonly fault: LinkFault };

export type Called =
  | { readonly ok: true; readonly answer: PeerAnswer }
  | { readonly ok: false; readonly fault: LinkFault };

/** A block that came whole: it lies at its place in the arena. */
export interface ItemCame {
  readonly kind: "came";
  readonly header: FrameHeader;
  /** XXH3-64 of the bytes as they lie in the arena, taken after the last of them was written. */
  readonly checksum: bigint;
}

export type ItemResult = ItemCame | ItemRefusal;

export interface Landed extends PullItem {
  /** Where in the registered region its payload goes; `bytesMax` bytes are its own. */
  readonly offset: number;
}

export interface OutgoingPull {
  readonly namespace: Uint8Array;
  readonly items: readonly Landed[];
  readonly deadlineMs: number;
  readonly signal: AbortSignal;
  /** So many more bytes of item `index` lie in the arena; once a second at least while it moves. */
  onBytes(index: number, bytes: number): void;
  /** Once for each item that is answered, in whatever order. */
  onItem(index: number, result: ItemResult): void;
}

/**
 * A connection to one peer whose certificate was verified. Any number of requests may be under way.
 * Promises:
 *
 * - When `pull` has resolved, whatever the reason, nothing writes to its items' places any more.
 * - A frame's address, namespace and length are compared with the request before its block counts
 *   as come, and where the other side is one of ours before a byte of it is written. Nothing is
 *   ever written outside of an item's own place, nor a length above `bytesMax`.
 * - The signal stops the sender, too: it lets go of what it had lent.
 * - Faults are answers; nothing here throws for what the other side does.
 */
export interface PeerLink extends AsyncDisposable {
  readonly identity: PeerIdentity;
  readonly transport: TransportName;
  /** A ticket of an earlier connection was used, so that the first request took one round trip. */
  readonly resumed: boolean;
  /** Smallest round trip seen, in milliseconds; null before the first answer. */
  readonly rttMs: number | null;
  /** Null as long as it lives. */
  readonly fault: LinkFault | null;
  /** Resolves when the link has ended, with the reason. */
  readonly ended: Promise<LinkFault>;
  /** One request with one answer (not `pull`). */
  call(
    request: Exclude<PeerRequest, { op: "pull" }>,
    options: { readonly deadlineMs: number; readonly signal?: AbortSignal },
  ): Promise<Called>;
  /** Null: all items were answered, one way or another. */
  pull(pull: OutgoingPull): Promise<LinkFault | null>;
}

/** A block that is lent to a transport until `release`, which is called exactly once. */
export interface ServedBlock {
  readonly kind: "block";
  readonly header: FrameHeader;
  /** In the registered region. */
  readonly offset: number;
  release(): void;
}

export type Served = { readonly index: number } & (ServedBlock | ItemRefusal);

/**
 * Answers what peers ask. A transport calls it only for peers whose certificate was verified, with
 * requests that were decoded whole.
 */
export interface PeerServer {
  call(
    peer: PeerIdentity,
    request: Exclude<PeerRequest, { op: "pull" }>,
    signal: AbortSignal,
  ): Promise<PeerAnswer>;
  /**
   * One `Served` for each item, as they are to be had. The transport asks for the next when it can
   * send more, and releases each block after its last byte is out or the pull is over. Ending the
   * iteration early gives up the rest.
   */
  serve(
    peer: PeerIdentity,
    pull: Extract<PeerRequest, { op: "pull" }>,
    signal: AbortSignal,
  ): AsyncIterable<Served>;
}

/** Told of what transports see; for logs. Never key material. */
export type TransportLog = (
  level: "debug" | "info" | "warn" | "error",
  text: string,
  fields: Readonly<Record<string, string | number | boolean>>,
) => void;

/**
 * A way to move blocks between hosts. Promises:
 *
 * - Nobody whose certificate does not name a worker of this cluster gets a byte of his request
 *   parsed; a dialled peer is exactly the worker that was meant.
 * - Open links, requests a link, requests in all, and bytes that wait to be sent are bounded.
 * - `reload`: new links use the new certificates. Links that live go on, but for those whose peer
 *   would be refused now: they end, as they do when the peer's certificate ends.
 */
export interface Transport extends AsyncDisposable {
  readonly name: TransportName;
  readonly capabilities: TransportCapabilities;
  /** Null: it works here; else why not, in words. */
  readonly unsupported: string | null;
  /** Blocks leave from here and arrive here. Once, before all else. */
  register(region: Region): Promise<void>;
  /** Takes peers' links from now on. Resolves with where it listens; port 0 takes a free one. */
  listen(endpoint: Endpoint, server: PeerServer): Promise<Endpoint>;
  dial(target: DialTarget, signal: AbortSignal): Promise<Dialled>;
  /** Certificates have changed. */
  reload(): Promise<void>;
  /** Links of others to us, now. */
  readonly inboundLinks: number;
}
