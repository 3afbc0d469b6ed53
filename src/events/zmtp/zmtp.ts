import { type Clock, HearthError, type Random } from "../../core/index.ts";

/** The frames of one message. The first frame of a message from a PUB is its topic. */
export type ZmtpMessage = readonly Uint8Array[];

/**
 * State of a connection that is redialed. `connecting`: not connected yet, or disconnected.
 * `closed` is final.
 */
export interface ZmtpState {
  readonly status: "connecting" | "connected" | "closed";
  /** Why the socket is not connected. Null while it is connected. */
  readonly why: string | null;
  /**
   * True if the other end is reachable but silent: the last connection timed out, or the current
   * dial got no reply. False if a connection was refused or closed, because then the process is
   * gone.
   */
  readonly isHung: boolean;
  /**
   * Number of connections made, including the first. If it has increased, messages may have been
   * missed.
   */
  readonly connections: number;
  readonly received: number;
  /**
   * Number of connections closed because the peer sent something other than ZMTP or too long a
   * frame, or has an incompatible socket type.
   */
  readonly refused: number;
}

/** A PUB socket. Subscribers that read too slowly miss messages; `dropped` counts those. */
export interface ZmtpPublisher extends AsyncDisposable {
  /** The bound endpoint, with its actual port. */
  readonly endpoint: string;
  /** Number of peers with at least one subscription. */
  readonly subscribers: number;
  /** Number of messages that were not sent, counted once per subscriber. */
  readonly dropped: number;
  publish(frames: ZmtpMessage): void;
}

/** A ROUTER socket, which replies to requests of DEALER sockets. */
export interface ZmtpRouter extends AsyncDisposable {
  readonly endpoint: string;
}

/**
 * Sends a reply to the peer that sent the request. Returns false if that connection is closed or
 * its queue is full.
 */
export type ZmtpReply = (frames: ZmtpMessage) => boolean;

/** Limits and timeouts of one socket and its connections. */
export interface ZmtpLimits {
  readonly frameBytesMax: number;
  readonly messageBytesMax: number;
  readonly framesMax: number;
  /** Maximum bytes queued for one connection. */
  readonly queueBytesMax: number;
  readonly queueMessagesMax: number;
  /** Maximum connections of a listening socket. Further ones are closed immediately. */
  readonly peersMax: number;
  readonly subscriptionsMax: number;
  readonly topicBytesMax: number;
  /** Maximum ms from dialing to the end of the handshake. */
  readonly handshakeMs: number;
  /** Ms without data from a ZMTP 3.1 peer, after which this side sends a PING. */
  readonly pingMs: number;
  /** Ms without data from a peer, after which this side closes the connection. */
  readonly silenceMs: number;
  /**
   * Ms before the first redial. The wait doubles each time up to the maximum, and varies randomly
   * by ±25 %.
   */
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

/** Address to bind or to connect to: `tcp://host:port`, or `ipc://path` for a Unix socket. */
export type ZmtpEndpoint =
  | { readonly kind: "tcp"; readonly host: string; readonly port: number }
  | { readonly kind: "ipc"; readonly path: string };

/** Maximum bytes of a Unix socket's path in the kernel, without the terminating zero. */
const IPC_PATH_BYTES_MAX = 107;
const TCP =
  /^tcp:\/\/(?:\[(?<v6>[0-9a-fA-F:.]+)\]|(?<host>[^[\]:/\s]+|::)):(?<port>[0-9]{1,5}|\*)$/;

/**
 * Parses an endpoint in the syntax of ZeroMQ and the engines. Host `*` is `0.0.0.0`; port `*` is 0,
 * which selects any free port; `[...]` encloses an IPv6 address. Returns null if the text is
 * invalid.
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
 * Returns true if an engine binds its publisher's endpoint, and false if it connects to it, so that
 * its subscriber must bind. vLLM binds endpoints with `*`, `::`, `ipc://` or `inproc://`; SGLang
 * also those with `0.0.0.0`.
 */
export function engineBinds(endpoint: string, engine: "vllm" | "sglang"): boolean {
  if (endpoint.includes("*") || endpoint.includes("::")) return true;
  if (endpoint.startsWith("ipc://") || endpoint.startsWith("inproc://")) return true;
  return engine === "sglang" && endpoint.includes("0.0.0.0");
}

export interface ZmtpOptions {
  /** Endpoint to bind or connect: `tcp://host:port` or `ipc://path`. */
  readonly endpoint: string;
  readonly clock: Clock;
  readonly random: Random;
  /** Limits that differ from ZMTP_LIMITS. */
  readonly limits?: Partial<ZmtpLimits>;
}

export function limitsOf(options: ZmtpOptions): ZmtpLimits {
  return { ...ZMTP_LIMITS, ...options.limits };
}

/** Returns the parsed endpoint of the options. Throws ZMTP_UNAVAILABLE if it is invalid. */
export function endpointOf({ endpoint }: ZmtpOptions): ZmtpEndpoint {
  const parsed = parseEndpoint(endpoint);
  if (parsed !== null) return parsed;
  throw new HearthError("ZMTP_UNAVAILABLE", `${JSON.stringify(endpoint)} is not a valid endpoint`, {
    fix: "write tcp://host:port or ipc:///path",
  });
}
