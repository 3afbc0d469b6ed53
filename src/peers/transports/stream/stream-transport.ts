import { assert, type Clock, HearthError, messageOf } from "../../../core/index.ts";
import { type Cipher, type Lanes, NativeError, type Region } from "../../../native/index.ts";
import type {
  ConnectionFault,
  Dialled,
  DialTarget,
  Endpoint,
  PeerServer,
  Transport,
  TransportCapabilities,
  TransportLog,
} from "../../transport.ts";
import type { Trust } from "../../trust.ts";
import {
  CHANNEL_LIMITS,
  type ChannelLimits,
  ClientConnection,
  type ConnectionContext,
  ConnectionTable,
  dialChannel,
  ServerConnection,
} from "../control-channel/index.ts";
import { StreamClient } from "./client.ts";
import {
  CONTROL_VERSION,
  type ControlMessage,
  STREAM_CODEC,
  STREAM_PROTOCOL,
  type StreamMessage,
} from "./control.ts";
import { StreamServer } from "./server.ts";

/** Limits of a stream transport. */
export interface StreamLimits extends ChannelLimits {
  /** Maximum places announced to one peer before their headers. */
  readonly announcedMax: number;
}

export const STREAM_LIMITS: StreamLimits = {
  // The lanes support 1,024 connections in both directions: up to 192 own idle ones, and as many in
  // use.
  ...CHANNEL_LIMITS,
  announcedMax: 64,
};

export interface CipherPolicy {
  /**
   * `aes-128-gcm` is required, `aegis-128l` preferred. `none`: payload is sent unencrypted to hosts
   * that agree; only on a trusted network.
   */
  readonly cipher: Cipher;
  /** The operator declared that nothing else listens on the network. */
  readonly trustedNetwork: boolean;
}

/**
 * Ciphers that this side accepts for payload, best first. Both sides must accept the one that is
 * used.
 */
export function acceptedCiphers(policy: CipherPolicy): readonly Cipher[] {
  assert(
    policy.cipher !== "none" || policy.trustedNetwork,
    "unencrypted payload needs a trusted network",
  );
  const sealed: Cipher[] =
    policy.cipher === "aes-128-gcm" ? ["aes-128-gcm"] : ["aegis-128l", "aes-128-gcm"];
  return policy.cipher !== "none" ? sealed : ["none", ...sealed];
}

/** Number of connections and threads for the payload of a host. */
export interface LaneShape {
  /** Connections per peer: enough that blocks rarely wait for each other. */
  readonly lanes: number;
  /** Threads that serve the lanes of all connections. */
  readonly threads: number;
  /**
   * 0: the lanes limit the data in flight to near hosts, and the kernel sizes the sockets' buffers
   * for others. A fixed size would be cut to `net.core.rmem_max`, 208 KiB on most hosts, and would
   * never grow.
   */
  readonly socketBytes: number;
}

const LANES = 4;
const THREADS_MAX = 4;
/** A thread also encrypts, and the engines need the remaining cores. */
const CORES_A_THREAD = 4;

export function laneShape(cores: number): LaneShape {
  const threads = Math.min(THREADS_MAX, Math.max(1, Math.floor(cores / CORES_A_THREAD)));
  return { lanes: LANES, threads, socketBytes: 0 };
}

interface DialOptions {
  readonly trust: Trust;
  readonly lanes: Lanes;
  /** Ciphers that this side accepts, best first. */
  readonly ciphers: readonly Cipher[];
  readonly lanesMax: number;
  readonly clock: Clock;
  readonly limits: StreamLimits;
}

type StreamDialled =
  | {
      readonly ok: true;
      readonly connection: ClientConnection<StreamMessage>;
      readonly der: Uint8Array;
    }
  | { readonly ok: false; readonly fault: ConnectionFault };

type Welcome = Extract<StreamMessage, { kind: "welcome" }>;

/** Certificates, hello, lanes: the connection is returned when all are complete. */
async function dialStream(
  target: DialTarget,
  options: DialOptions,
  signal: AbortSignal,
): Promise<StreamDialled> {
  const { trust, clock, limits, ciphers, lanes, lanesMax } = options;
  const own = { trust, clock, limits, protocol: STREAM_PROTOCOL, codec: STREAM_CODEC };
  const dialled = await dialChannel(target, own, signal);
  if (!dialled.ok) return dialled;
  const { dialling, identity, der } = dialled.value;
  const startMs = clock.monotonicMs();
  const hello = { kind: "hello", version: CONTROL_VERSION, lanes: lanesMax, ciphers } as const;
  const welcome = await dialling.greet(hello, (message) => readWelcome(message, options));
  if (!welcome.ok) return dialling.giveUp(welcome.fault);
  const rttMs = clock.monotonicMs() - startMs;
  const { session, port, requests } = welcome.value;
  const coming = lanes.dial(session, dialling.address, port, limits.setUpMs);
  const opened = await dialling.wait(
    coming,
    (thrown) => `lane set-up failed: ${messageOf(thrown)}`,
  );
  if (!opened.ok) return dialling.giveUp(opened.fault);
  const { channel } = dialling;
  const payload = new StreamClient({ connection: opened.value, channel, clock, limits });
  const parts = { identity, channel, payload, clock, limits, requests, rttMs };
  const connection = new ClientConnection({ transport: "stream", ...parts });
  dialling.handTo(connection);
  opened.value.ended.then((fault) => connection.end("broken", `the lanes ended: ${fault}`));
  return { ok: true, connection, der };
}

/** The welcome's fields, or the reason it is invalid. */
function readWelcome(
  message: ControlMessage,
  { ciphers, lanesMax }: Pick<DialOptions, "ciphers" | "lanesMax">,
): Welcome | string {
  if (message.kind !== "welcome") return "expected a welcome message";
  const { session, version } = message;
  const isFair = ciphers.includes(session.cipher) && session.lanes <= lanesMax;
  return isFair && version <= CONTROL_VERSION ? message : "it chose something that was not offered";
}

export interface StreamOptions {
  readonly trust: Trust;
  readonly clock: Clock;
  readonly log: TransportLog;
  /** Opens the lanes of a region. May throw NativeError. */
  readonly openLanes: (region: Region) => Lanes;
  /**
   * Accepted ciphers, best first; includes `none` only if the operator declared the network
   * trusted.
   */
  readonly ciphers: readonly Cipher[];
  /** Data connections per peer. */
  readonly lanes: number;
  /** Port that accepts lanes; 0: any free port. */
  readonly lanesPort: number;
  readonly limits?: Partial<StreamLimits>;
}

/**
 * Requests over TLS 1.3 with certificates on both sides; payload over TCP connections of the native
 * library (lanes), encrypted with keys exchanged over TLS, from arena to arena.
 */
export class StreamTransport implements Transport {
  readonly name = "stream";
  readonly capabilities: TransportCapabilities;
  unsupported: string | null = null;
  readonly #options: StreamOptions;
  readonly #limits: StreamLimits;
  readonly #connections: ConnectionTable<StreamMessage>;
  #lanes: Lanes | null = null;
  /** Resolves when the transport is closed; null while it is open. */
  #closed: Promise<void> | null = null;

  constructor(options: StreamOptions) {
    this.#options = options;
    this.#limits = { ...STREAM_LIMITS, ...options.limits };
    const { trust, clock, log } = options;
    this.#connections = new ConnectionTable({
      trust,
      clock,
      log,
      limits: this.#limits,
      codec: STREAM_CODEC,
      protocol: STREAM_PROTOCOL,
      key: "listen_stream",
    });
    const encrypted = !options.ciphers.includes("none");
    this.capabilities = { encrypted, direct: true, early: false, oneSided: false };
  }

  get inboundConnections(): number {
    return this.#connections.inbound;
  }

  async register(region: Region): Promise<void> {
    assert(this.#lanes === null, "a region is registered once");
    try {
      this.#lanes = this.#options.openLanes(region);
    } catch (thrown) {
      if (!(thrown instanceof NativeError)) throw thrown;
      this.unsupported = thrown.text;
    }
  }

  async listen(endpoint: Endpoint, server: PeerServer): Promise<Endpoint> {
    const lanes = this.#lanes;
    if (lanes === null) throw new HearthError("UNSUPPORTED", this.unsupported ?? "no region");
    const { ciphers, lanes: lanesMax, lanesPort } = this.#options;
    const { address, port } = await this.#connections.listen(endpoint);
    // The native library needs an address, but the host may be a name.
    const payload = { lanes, ciphers, lanesMax, lanesPort: lanes.listen(address, lanesPort) };
    const host = this.#connections.hostFor(server);
    this.#connections.takeWith((peer, channel, onOver) => {
      const late = "lanes were not connected in time";
      const carry = (room: ConnectionContext<StreamMessage>) => new StreamServer(room, payload);
      return new ServerConnection({ peer, channel, host, payload: carry, late, onOver });
    });
    return { host: endpoint.host, port };
  }

  async dial(target: DialTarget, signal: AbortSignal): Promise<Dialled> {
    if (this.#closed !== null)
      return { ok: false, fault: { kind: "closed", why: "the transport is closed" } };
    const lanes = this.#lanes;
    if (lanes === null) {
      const why = this.unsupported ?? "no region is registered";
      return { ok: false, fault: { kind: "unsupported", why } };
    }
    const { trust, ciphers, lanes: lanesMax, clock } = this.#options;
    const own = { trust, lanes, ciphers, lanesMax, clock, limits: this.#limits };
    const dialled = await dialStream(target, own, signal);
    if (!dialled.ok) return dialled;
    return await this.#connections.adopt(dialled.connection, dialled.der, target.worker);
  }

  async reload(): Promise<void> {
    this.#connections.reload();
  }

  [Symbol.asyncDispose](): Promise<void> {
    this.#closed ??= this.#close();
    return this.#closed;
  }

  async #close(): Promise<void> {
    await this.#connections.close();
    await this.#lanes?.[Symbol.asyncDispose]();
  }
}
