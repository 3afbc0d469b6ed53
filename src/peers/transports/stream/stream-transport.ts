import { assert, messageOf } from "../../../core/index.ts";
import type { Cipher, Lanes, Region } from "../../../native/index.ts";
import type { TransportCapabilities } from "../../transport.ts";
import {
  CHANNEL_LIMITS,
  type ChannelLimits,
  ChannelTransport,
  type ChannelTransportOptions,
  type ConnectionContext,
  type Dialling,
  type Outbound,
  type Step,
} from "../control-channel/index.ts";
import { StreamClient, type StreamPull } from "./client.ts";
import {
  CONTROL_VERSION,
  type ControlMessage,
  STREAM_CODEC,
  STREAM_PROTOCOL,
  type StreamMessage,
} from "./control.ts";
import { type StreamServedPull, StreamServer } from "./server.ts";

/** Limits of a stream transport. */
export interface StreamLimits extends ChannelLimits {
  /**
   * Maximum blocks from one peer for which memory is announced before their headers have arrived.
   */
  readonly announcedMax: number;
}

export const STREAM_LIMITS: StreamLimits = {
  // The lanes support 1,024 connections in both directions: up to 192 idle ones that this host
  // opened, and as many in use.
  ...CHANNEL_LIMITS,
  announcedMax: 64,
};

export interface CipherPolicy {
  /**
   * Configured cipher for payload. `aes-128-gcm`: only this one. `aegis-128l`: this one, or else
   * `aes-128-gcm`. `none`: no encryption with hosts that agree; requires `trustedNetwork`.
   */
  readonly cipher: Cipher;
  /** True if the operator has declared that nothing else can read or write on the network. */
  readonly trustedNetwork: boolean;
}

/**
 * Returns the ciphers that this host accepts for payload, best first. The cipher in use must be
 * accepted by both hosts.
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

/** Numbers of data connections ("lanes") and of threads that carry payload. */
export interface LaneShape {
  /** Data connections per peer. Chosen so that blocks rarely wait for each other. */
  readonly lanes: number;
  /** Number of threads that serve the data connections of all peers. */
  readonly threads: number;
  /**
   * Bytes of the sockets' buffers. 0: the library limits the data in flight to near hosts, and the
   * kernel chooses the buffers for others. A fixed size would be reduced to `net.core.rmem_max`,
   * 208 KiB on most hosts, and would never grow.
   */
  readonly socketBytes: number;
}

const LANES = 4;
const THREADS_MAX = 4;
/** CPU cores per thread. A thread also encrypts, and the engines need the remaining cores. */
const CORES_A_THREAD = 4;

export function laneShape(cores: number): LaneShape {
  const threads = Math.min(THREADS_MAX, Math.max(1, Math.floor(cores / CORES_A_THREAD)));
  return { lanes: LANES, threads, socketBytes: 0 };
}

export interface StreamOptions extends ChannelTransportOptions {
  /** Creates the threads that carry payload from and to a memory region. May throw NativeError. */
  readonly openLanes: (region: Region) => Lanes;
  /**
   * Accepted ciphers, best first. Includes `none` only if the operator declared the network
   * trusted.
   */
  readonly ciphers: readonly Cipher[];
  /** Number of data connections per peer. */
  readonly lanes: number;
  /** TCP port on which peers' data connections are accepted. 0 selects a free port. */
  readonly lanesPort: number;
  readonly limits?: Partial<StreamLimits>;
}

/**
 * Transport that sends requests over TLS 1.3, with certificates on both sides. Payload moves from
 * arena to arena over TCP connections of the native library ("lanes"), encrypted with keys that the
 * hosts exchange over TLS.
 */
export class StreamTransport extends ChannelTransport<
  StreamMessage,
  StreamLimits,
  StreamPull,
  StreamServedPull
> {
  readonly capabilities: TransportCapabilities;
  readonly #options: StreamOptions;
  #lanes: Lanes | null = null;
  /** Port on which peers' data connections are accepted. 0 before `listen`. */
  #lanesPort = 0;

  constructor(options: StreamOptions) {
    super(options, {
      name: "stream",
      codec: STREAM_CODEC,
      protocol: STREAM_PROTOCOL,
      key: "listen_stream",
      limits: { ...STREAM_LIMITS, ...options.limits },
      late: "lanes were not connected in time",
    });
    this.#options = options;
    const encrypted = !options.ciphers.includes("none");
    this.capabilities = { encrypted, direct: true, early: false, oneSided: false };
  }

  protected openPayload(region: Region): null {
    this.#lanes = this.#options.openLanes(region);
    return null;
  }

  protected override listenPayload(address: string): void {
    this.#lanesPort = this.#lanes!.listen(address, this.#options.lanesPort);
  }

  protected serverPayload(
    context: ConnectionContext<StreamMessage, StreamServedPull>,
  ): StreamServer {
    const { ciphers, lanes: lanesMax } = this.#options;
    const [lanes, lanesPort] = [this.#lanes!, this.#lanesPort];
    return new StreamServer(context, { lanes, ciphers, lanesMax, lanesPort });
  }

  protected async clientPayload(
    dialling: Dialling<StreamMessage>,
  ): Promise<Step<Outbound<StreamMessage, StreamPull>>> {
    const { lanes, ciphers } = this.#options;
    const hello = { kind: "hello", version: CONTROL_VERSION, lanes, ciphers } as const;
    const welcome = await dialling.greet(hello, (message) => this.#readWelcome(message));
    if (!welcome.ok) return welcome;
    const { session, port, requests } = welcome.value;
    const { setUpMs, announcedMax } = this.limits;
    const opened = await dialling.wait(
      this.#lanes!.dial(session, dialling.address, port, setUpMs),
      (thrown) => `lane set-up failed: ${messageOf(thrown)}`,
    );
    if (!opened.ok) return opened;
    const payload = new StreamClient(opened.value, dialling.channel, this.clock, announcedMax);
    return { ok: true, value: { payload, requests } };
  }

  /** Returns the server's welcome, or the reason it is invalid. */
  #readWelcome(message: ControlMessage): Extract<StreamMessage, { kind: "welcome" }> | string {
    if (message.kind !== "welcome") return "expected a welcome message";
    const { session, version } = message;
    const { ciphers, lanes } = this.#options;
    const isFair = ciphers.includes(session.cipher) && session.lanes <= lanes;
    return isFair && version <= CONTROL_VERSION
      ? message
      : "it chose something that was not offered";
  }

  protected async closePayload(): Promise<void> {
    await this.#lanes?.[Symbol.asyncDispose]();
  }
}
