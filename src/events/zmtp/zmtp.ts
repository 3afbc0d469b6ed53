import { type Clock, HearthError, type Random } from "../../core/index.ts";

/** Frames of one message; the first of a PUB's message is its topic. */
export type ZmtpMessage = readonly Uint8Array[];

/**
 * `connecting`: so far, or again, nobody answers; of a socket that listens: nobody is connected.
 * `closed` is the end.
 */
export interface ZmtpState {
  readonly status: "connecting" | "connected" | "closed";
  /** Why it is not connected, in words for people; null while it is. */
  readonly why: string | null;
  /**
   * The other end is there but silent: the last connection ended, or the latest dial waits, without
   * a word from it. False after a refused or a closed connection: then the process itself is gone.
   */
  readonly isHung: boolean;
  /** Connections that were made, the first included: a larger number means something was missed. */
  readonly connections: number;
  readonly received: number;
  /** Connections that were ended for what came: no ZMTP at all, too long, or of a wrong kind. */
  readonly refused: number;
}

/** What of a socket can be held back while its reader is behind. Outlives a broken connection. */
export interface ZmtpFlow {
  /** Reads no more: the peer's own queue fills, then it drops. A few messages may still come. */
  pause(): void;
  resume(): void;
}

/**
 * A socket that subscribes a publisher (SUB). Connects to `tcp://host:port` or `ipc://path`, again
 * and again with growing waits until closed; subscriptions outlive each break. What was published
 * meanwhile is lost: that is for sequence numbers to tell. Where publishers connect, it listens.
 */
export interface ZmtpSubscriber extends AsyncDisposable, ZmtpFlow {
  /** As it listens, its port included; where it connects, where to. */
  readonly endpoint: string;
  readonly state: ZmtpState;
}

/**
 * A socket that asks a ROUTER (DEALER). One message each way is a list of frames, the empty
 * delimiter of the envelope included: nothing is added or taken away.
 */
export interface ZmtpDealer extends AsyncDisposable, ZmtpFlow {
  readonly state: ZmtpState;
  /** False: there is no connection, or more waits already than may; it was not sent. */
  send(frames: ZmtpMessage): boolean;
}

/** A socket that others subscribe (PUB). Whoever reads too slowly misses messages, counted. */
export interface ZmtpPublisher extends AsyncDisposable {
  /** As it listens, its port included. */
  readonly endpoint: string;
  /** Those that have asked for something. */
  readonly subscribers: number;
  /** Messages times subscribers. */
  readonly dropped: number;
  publish(frames: ZmtpMessage): void;
}

/** A socket that answers DEALERs (ROUTER). */
export interface ZmtpRouter extends AsyncDisposable {
  readonly endpoint: string;
}

/** Answers go to whoever asked, for as long as its connection lives; false: it is gone or full. */
export type ZmtpReply = (frames: ZmtpMessage) => boolean;

/** Caps and times of one socket. */
export interface ZmtpLimits {
  readonly frameBytesMax: number;
  readonly messageBytesMax: number;
  readonly framesMax: number;
  /** Of what waits to be sent on one connection. */
  readonly queueBytesMax: number;
  readonly queueMessagesMax: number;
  /** Connections of a socket that listens; further ones are closed at once. */
  readonly peersMax: number;
  readonly subscriptionsMax: number;
  readonly topicBytesMax: number;
  /** From dialling to the end of the handshake. */
  readonly handshakeMs: number;
  /** A peer of ZMTP 3.1 is asked for a sign of life after so long a silence... */
  readonly pingMs: number;
  /** ...and is given up after this one. */
  readonly silenceMs: number;
  /** Between two dials: the first wait, doubled each time up to the last; ±25 %. */
  readonly redialFirstMs: number;
  readonly redialMaxMs: number;
}

export const ZMTP_LIMITS: ZmtpLimits = {
  frameBytesMax: 16 * 1024 * 1024,
  messageBytesMax: 32 * 1024 * 1024,
  framesMax: 64,
  queueBytesMax: 32 * 1024 * 1024,
  queueMessagesMax: 100_000,
  peersMax: 256,
  subscriptionsMax: 1_024,
  topicBytesMax: 1_024,
  handshakeMs: 10_000,
  pingMs: 10_000,
  silenceMs: 30_000,
  redialFirstMs: 100,
  redialMaxMs: 10_000,
};

/** Where a socket binds or connects: `tcp://host:port`, or `ipc://path` for a Unix socket. */
export type ZmtpEndpoint =
  | { readonly kind: "tcp"; readonly host: string; readonly port: number }
  | { readonly kind: "ipc"; readonly path: string };

/** The kernel's limit of a Unix socket's path, less the zero behind it. */
const IPC_PATH_BYTES_MAX = 107;
const TCP =
  /^tcp:\/\/(?:\[(?<v6>[0-9a-fA-F:.]+)\]|(?<host>[^[\]:/\s]+|::)):(?<port>[0-9]{1,5}|\*)$/;

/**
 * Reads an endpoint as engines and ZeroMQ write them. `*` as a host is `0.0.0.0`, as a port 0: any
 * that is free; `[...]` holds IPv6. Null: it is none of these.
 */
export function parseEndpoint(text: string): ZmtpEndpoint | null {
  if (text.startsWith("ipc://")) {
    const path = text.slice("ipc://".length);
    const isPath = path !== "" && !path.includes("\0") && path[0] !== "@" && path !== "*";
    return isPath && Buffer.byteLength(path) <= IPC_PATH_BYTES_MAX ? { kind: "ipc", path } : null;
  }
  const groups = TCP.exec(text)?.groups;
  if (groups === undefined) return null;
  const port = groups.port === "*" ? 0 : Number(groups.port);
  if (port > 65_535) return null;
  const host = groups.v6 ?? groups.host!;
  return { kind: "tcp", host: host === "*" ? "0.0.0.0" : host, port };
}

export function formatEndpoint(endpoint: ZmtpEndpoint): string {
  if (endpoint.kind === "ipc") return `ipc://${endpoint.path}`;
  const { host, port } = endpoint;
  return host.includes(":") ? `tcp://[${host}]:${port}` : `tcp://${host}:${port}`;
}

/**
 * Whether an engine whose publisher has this endpoint binds there; otherwise it connects, and its
 * reader must bind. vLLM looks for `*`, `::`, `ipc://` and `inproc://`, SGLang for `0.0.0.0` too.
 */
export function engineBinds(endpoint: string, engine: "vllm" | "sglang"): boolean {
  if (endpoint.includes("*") || endpoint.includes("::")) return true;
  if (endpoint.startsWith("ipc://") || endpoint.startsWith("inproc://")) return true;
  return engine === "sglang" && endpoint.includes("0.0.0.0");
}

export interface ZmtpOptions {
  /** `tcp://host:port` or `ipc://path`. */
  readonly endpoint: string;
  readonly clock: Clock;
  readonly random: Random;
  /** Those that differ from ZMTP_LIMITS. */
  readonly limits?: Partial<ZmtpLimits>;
}

export function limitsOf(options: ZmtpOptions): ZmtpLimits {
  return { ...ZMTP_LIMITS, ...options.limits };
}

/** Throws ZMTP_UNAVAILABLE where it is no endpoint. */
export function endpointOf({ endpoint }: ZmtpOptions): ZmtpEndpoint {
  const parsed = parseEndpoint(endpoint);
  if (parsed !== null) return parsed;
  throw new HearthError("ZMTP_UNAVAILABLE", `${JSON.stringify(endpoint)} is no endpoint`, {
    fix: "write tcp://host:port or ipc:///path",
  });
}
