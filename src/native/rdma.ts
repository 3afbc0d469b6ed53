import type { Region } from "./region.ts";

export type RdmaState =
  | "ready"
  | "no_library"
  | "no_device"
  | "memlock"
  | "not_permitted"
  | "too_old"
  | "failed";

export type RdmaPortState = "active" | "down" | "no_address" | "fatal";

/** A port of a NIC: what queue pairs go out of. */
export interface RdmaPort {
  readonly index: number;
  readonly device: string;
  readonly number: number;
  readonly state: RdmaPortState;
  /** 16 bytes. */
  readonly gid: Uint8Array;
  readonly gidIndex: number;
  readonly isRoceV2: boolean;
  readonly lid: number;
  readonly linkLayer: "infiniband" | "ethernet";
  /** Path MTU in bytes. */
  readonly mtu: number;
  /** READs in flight that a queue pair may begin, and those it may answer. */
  readonly readsOut: number;
  readonly readsIn: number;
  readonly messageBytesMax: number;
  /** Mbit/s; 0: unknown. */
  readonly speed: number;
  readonly numaNode: number | null;
  readonly hasRelaxedOrdering: boolean;
  readonly hasDmaBuf: boolean;
}

/** What one side of a queue pair has to know of the other. */
export interface RdmaAddress {
  readonly gid: Uint8Array;
  readonly queuePair: number;
  readonly psn: number;
  readonly lid: number;
  readonly mtu: number;
  readonly readsOut: number;
  readonly readsIn: number;
}

/** Why a link, a loan or a read came to nothing. */
export type RdmaFault = "broken" | "cancelled" | "full" | "unregistered" | "port";

/** How the other side reaches a span that is lent. */
export interface RdmaWindow {
  readonly address: bigint;
  readonly key: number;
}

export type Lent =
  | { readonly ok: true; readonly window: RdmaWindow }
  | { readonly ok: false; readonly fault: RdmaFault };

export type RdmaRead =
  /** XXH3-64 of the span, taken after its last byte was written. */
  | { readonly ok: true; readonly checksum: bigint }
  | { readonly ok: false; readonly fault: RdmaFault };

export interface RdmaLinkSettings {
  /** A packet is sent again after 4.096 us * 2^timeout without an answer, `retries` times. */
  readonly timeout: number;
  /** 1 to 6. */
  readonly retries: number;
  readonly trafficClass: number;
  readonly serviceLevel: number;
  /** One READ reads so many bytes at most. */
  readonly pieceBytes: number;
}

export interface RdmaOptions {
  readonly region: Region;
  /** Path of the verbs' library; null for `libibverbs.so.1` as the dynamic linker finds it. */
  readonly library: string | null;
  /** Names of devices that may be used; null: all. */
  readonly devices: readonly string[] | null;
  /** Null: chosen by rule (RoCE v2 before others, no link-local address). */
  readonly gidIndex: number | null;
  /** Bytes and spans that others can read at the same time, at most. */
  readonly windowBytes: number;
  readonly windowSpans: number;
  readonly linksMax: number;
  readonly readsMax: number;
  onPort(port: RdmaPort): void;
}

/**
 * The RDMA devices of this host, opened at run time. Promises:
 *
 * - Without a library, a device, or enough memory that may be locked it opens all the same and says
 *   so in `state`; then `link` throws NativeError `unsupported`.
 * - Others read exactly the spans that are lent to them, for as long as they are lent. Nobody
 *   writes to the region from outside.
 * - A span of a loan or a read belongs to the device until its promise has resolved.
 * - Any error ends the link with all that is under way on it; nothing is left half alive.
 */
export interface Rdma extends AsyncDisposable {
  readonly state: RdmaState;
  /** Behind the state, or 0. */
  readonly errno: number;
  /** As they are now. */
  ports(): readonly RdmaPort[];
  /** A queue pair out of a port. Throws NativeError: `full`, `unsupported`, `device_failed`. */
  link(port: number, settings: RdmaLinkSettings): RdmaLink;
}

/** States: made → connected → ended. */
export interface RdmaLink extends AsyncDisposable {
  /** What the other side has to know of it. */
  readonly address: RdmaAddress;
  /** Resolves when it has ended and nothing of it touches the region any more. */
  readonly ended: Promise<RdmaFault>;
  /**
   * Throws NativeError where the address is none. It does not wait: what is read meanwhile begins
   * when the device is ready, a device that refuses ends the link with `broken`.
   */
  connect(other: RdmaAddress): void;
  /** Lets the other side read the span until `takeBack`. */
  lend(offset: number, bytes: number): { readonly token: number; readonly lent: Promise<Lent> };
  /** Resolves when nobody can read it any more. */
  takeBack(token: number): Promise<void>;
  /** Reads what the other side lent into the region. */
  read(
    window: RdmaWindow,
    offset: number,
    bytes: number,
  ): { readonly token: number; readonly done: Promise<RdmaRead> };
  /** Begins no more of it; `done` resolves with `cancelled` when what was begun is over. */
  cancel(token: number): void;
  /** Bytes of a read that have arrived; 0 for one that is over. */
  arrived(token: number): number;
}
