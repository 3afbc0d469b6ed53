import { type Clock, HearthError, type Random } from "../../core/index.ts";

/** Frames of one message. The first frame of a PUB's message is its topic. */
export type ZmtpMessage = readonly Uint8Array[];

/** `connecting`: not connected yet, or disconnected. `closed` is final. */
export interface ZmtpState {
  readonly status: "connecting" | "connected" | "closed";
  /** Why it is not connected; null while it is. */
  readonly why: string | null;
  /**
   * The other end is reachable but silent: the last connection timed out, or the current dial got
   * no answer. False after a refused or closed connection, because the process is then gone.
   */
  readonly isHung: boolean;
  /**
   * Connections made, including the first. An increase means that messages may have been missed.
   */
  readonly connections: number;
  readonly received: number;
  /**
   * Connections closed because of their input: not ZMTP, too long, or an incompatible socket type.
   */
  readonly refused: number;
}

/** A publisher (PUB). Subscribers that read too slowly miss messages, which are counted. */
export interface ZmtpPublisher extends AsyncDisposable {
  /** The bound endpoint with its port. */
  readonly endpoint: string;
  /** Peers with at least one subscription. */
  readonly subscribers: number;
  /** Dropped messages times subscribers. */
  readonly dropped: number;
  publish(frames: ZmtpMessage): void;
}

/** A replier to DEALERs (ROUTER). */
export interface ZmtpRouter extends AsyncDisposable {
  readonly endpoint: string;
}

/**
 * Sends an answer to the requester while its connection exists. Returns false if it is closed or
 * its queue is full.
 */
export type ZmtpReply = (frames: ZmtpMessage) => boolean;

/** Limits and timeouts of one socket. */
export interface ZmtpLimits {
  readonly frameBytesMax: number;
  readonly messageBytesMax: number;
  readonly framesMax: number;
  /** Maximum bytes queued for one connection. */
  readonly queueBytesMax: number;
  readonly queueMessagesMax: number;
  /** Maximum connections of a listening socket; further ones are closed at once. */
  readonly peersMax: number;
  readonly subscriptionsMax: number;
  readonly topicBytesMax: number;
  /** From dialing to the end of the handshake. */
  readonly handshakeMs: number;
  /** Silence after which a ZMTP 3.1 peer gets a PING. */
  readonly pingMs: number;
  /** Silence after which the peer is disconnected. */
  readonly silenceMs: number;
  /** Wait before the first redial, doubled each time up to the maximum, ±25 %. */
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

/** Address to bind or connect: `tcp://host:port`, or `ipc://path` for a Unix socket. */
export type ZmtpEndpoint =
  | { readonly kind: "tcp"; readonly host: string; readonly port: number }
  | { readonly kind: "ipc"; readonly path: string };

/** The kernel's limit of a Unix socket path, without the terminating zero. */
const IPC_PATH_BYTES_MAX = 107;
const TCP =
  /^tcp:\/\/(?:\[(?<v6>[0-9a-fA-F:.]+)\]|(?<host>[^[\]:/\s]+|::)):(?<port>[0-9]{1,5}|\*)$/;

/**
 * Parses an endpoint in the syntax of ZeroMQ and the engines. Host `*` is `0.0.0.0`, port `*` is 0:
 * any free port; `[...]` encloses IPv6. Returns null if it is invalid.
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
 * Whether an engine binds its publisher's endpoint; otherwise it connects, and its subscriber must
 * bind. vLLM checks for `*`, `::`, `ipc://` and `inproc://`, SGLang also for `0.0.0.0`.
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
  /** Overrides of ZMTP_LIMITS. */
  readonly limits?: Partial<ZmtpLimits>;
}

export function limitsOf(options: ZmtpOptions): ZmtpLimits {
  return { ...ZMTP_LIMITS, ...options.limits };
}

/** Throws ZMTP_UNAVAILABLE if it is not a valid endpoint. */
export function endpointOf({ endpoint }: ZmtpOptions): ZmtpEndpoint {
  const parsed = parseEndpoint(endpoint);
  if (parsed !== null) return parsed;
  throw new HearthError("ZMTP_UNAVAILABLE", `${JSON.stringify(endpoint)} is not a valid endpoint`, {
    fix: "write tcp://host:port or ipc:///path",
  });
}
