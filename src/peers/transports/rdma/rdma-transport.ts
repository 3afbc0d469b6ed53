import { messageOf } from "../../../core/index.ts";
import {
  NativeError,
  type Rdma,
  type RdmaQueuePairSettings,
  type RdmaState,
  type Region,
} from "../../../native/index.ts";
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
import { RdmaClient, type RdmaPull } from "./client.ts";
import {
  CONTROL_VERSION,
  RDMA_CODEC,
  RDMA_PROTOCOL,
  type RdmaControl,
  type RdmaMessage,
} from "./control.ts";
import { RailConnections } from "./ports.ts";
import { type RdmaServedPull, RdmaServer } from "./server.ts";

/** Limits of an RDMA transport. */
export interface RdmaLimits extends ChannelLimits {
  /**
   * Milliseconds after which a client cannot read a block any more, even if its read is running.
   */
  readonly lentMs: number;
  /**
   * Milliseconds that a client has to finish reading a block after it cancelled the pull. If the
   * read is still running then, the client ends the connection, and the server ends access to the
   * block.
   */
  readonly graceMs: number;
}

export const RDMA_LIMITS: RdmaLimits = {
  ...CHANNEL_LIMITS,
  // Each connection uses at least one queue pair. Devices support tens of thousands of them, but
  // the native library's table is smaller.
  linksMax: 512,
  // Each block waits for one round trip before the client reads it, and for another one before it
  // is released.
  lentMax: 16,
  lentMs: 30_000,
  graceMs: 1_000,
};

export interface RdmaTransportOptions extends ChannelTransportOptions {
  /** Opens the RDMA devices for a memory region. The caller closes them. May throw NativeError. */
  readonly rdmaOf: (region: Region) => Rdma;
  readonly settings: RdmaQueuePairSettings;
  /** Queue pairs per connection, each on a port of its own: 1 to 8. */
  readonly rails: number;
  readonly limits?: Partial<RdmaLimits>;
}

/** Reason to report why RDMA cannot be used, for each state except `ready`. */
const UNSUPPORTED: Readonly<Record<Exclude<RdmaState, "ready">, string>> = {
  no_library: "libibverbs.so.1 is not installed",
  no_device: "this host has no RDMA device",
  memlock: "the limit on locked memory is too low: raise RLIMIT_MEMLOCK",
  not_permitted: "no permission to open the RDMA devices",
  too_old: "libibverbs.so.1 is too old",
  failed: "the RDMA devices could not be opened",
};

/**
 * Transport that sends requests over TLS 1.3, with certificates on both sides. The client's RDMA
 * device reads blocks from the server's arena, where each block can be read only while a client
 * fetches it. The payload is not encrypted.
 */
export class RdmaTransport extends ChannelTransport<
  RdmaMessage,
  RdmaLimits,
  RdmaPull,
  RdmaServedPull
> {
  readonly capabilities = { encrypted: false, direct: true, early: false, oneSided: true };
  readonly #options: RdmaTransportOptions;
  #rails: RailConnections | null = null;

  constructor(options: RdmaTransportOptions) {
    super(options, {
      name: "rdma",
      codec: RDMA_CODEC,
      protocol: RDMA_PROTOCOL,
      key: "listen_rdma",
      limits: { ...RDMA_LIMITS, ...options.limits },
      late: "queue pairs were not connected in time",
    });
    this.#options = options;
  }

  protected openPayload(region: Region): string | null {
    const { rdmaOf, settings, rails } = this.#options;
    const rdma = rdmaOf(region);
    if (rdma.state !== "ready") return UNSUPPORTED[rdma.state];
    this.#rails = new RailConnections(rdma, settings, rails);
    return null;
  }

  protected serverPayload(context: ConnectionContext<RdmaMessage, RdmaServedPull>): RdmaServer {
    return new RdmaServer(context, this.#rails!, this.limits);
  }

  protected override whyNoDial(): string | null {
    return this.#rails!.offered().length === 0 ? "no RDMA port of this host is active" : null;
  }

  protected async clientPayload(
    dialling: Dialling<RdmaMessage>,
  ): Promise<Step<Outbound<RdmaMessage, RdmaPull>>> {
    const rails = this.#rails!;
    const offered = rails.offered();
    const { wanted } = rails;
    const hello = { kind: "hello", version: CONTROL_VERSION, wanted, rails: offered } as const;
    const welcome = await dialling.greet(hello, (message) =>
      readWelcome(message, offered.length, wanted),
    );
    if (!welcome.ok) return welcome;
    if (dialling.fault !== null) return { ok: false, fault: dialling.fault };
    const { requests, pairs } = welcome.value;
    const { channel } = dialling;
    try {
      const connections = rails.connect(offered, pairs);
      channel.send({ kind: "join", addresses: connections.map(({ address }) => address) });
      const payload = new RdmaClient(connections, channel, this.clock, this.limits.graceMs);
      return { ok: true, value: { payload, requests } };
    } catch (thrown) {
      if (!(thrown instanceof NativeError)) throw thrown;
      const why = `queue pair set-up failed: ${messageOf(thrown)}`;
      return { ok: false, fault: { kind: "broken", why } };
    }
  }

  protected async closePayload(): Promise<void> {
    await this.#rails?.close();
  }
}

/** Returns the server's welcome, or the reason it is invalid. */
function readWelcome(
  message: RdmaControl,
  offered: number,
  wanted: number,
): Extract<RdmaMessage, { kind: "welcome" }> | string {
  if (message.kind !== "welcome") return "expected a welcome message";
  const { version, pairs } = message;
  const isFair = pairs.length <= wanted && pairs.every(({ rail }) => rail < offered);
  return isFair && version <= CONTROL_VERSION ? message : "it chose something that was not offered";
}
