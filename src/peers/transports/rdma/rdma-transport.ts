import { assert, type Clock, HearthError, messageOf } from "../../../core/index.ts";
import {
  NativeError,
  type Rdma,
  type RdmaQueuePairSettings,
  type RdmaState,
  type Region,
} from "../../../native/index.ts";
import type {
  ConnectionFault,
  ConnectionFaultKind,
  Dialled,
  DialTarget,
  Endpoint,
  PeerServer,
  Transport,
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
import { RdmaClient } from "./client.ts";
import {
  CONTROL_VERSION,
  RDMA_CODEC,
  RDMA_PROTOCOL,
  type RdmaControl,
  type RdmaMessage,
} from "./control.ts";
import { RailConnections } from "./ports.ts";
import { RdmaServer } from "./server.ts";

/** Limits of an RDMA transport. */
export interface RdmaLimits extends ChannelLimits {
  /**
   * Time after which a block that the client has not returned is revoked, even if it is being read.
   */
  readonly lentMs: number;
  /**
   * Time in which a client may finish reading a cancelled block; then it ends the connection, and
   * the server revokes the block.
   */
  readonly graceMs: number;
}

export const RDMA_LIMITS: RdmaLimits = {
  ...CHANNEL_LIMITS,
  // One queue pair each. Devices support tens of thousands, but the native library's table is
  // smaller.
  linksMax: 512,
  // Each waits for one round trip before its read starts, and for another before it is returned.
  lentMax: 16,
  lentMs: 30_000,
  graceMs: 1_000,
};

interface RdmaDialOptions {
  readonly trust: Trust;
  readonly rails: RailConnections;
  readonly clock: Clock;
  readonly limits: RdmaLimits;
}

type RdmaDialled =
  | {
      readonly ok: true;
      readonly connection: ClientConnection<RdmaMessage>;
      readonly der: Uint8Array;
    }
  | { readonly ok: false; readonly fault: ConnectionFault };

type Welcome = Extract<RdmaMessage, { kind: "welcome" }>;

/**
 * Certificates, hello, queue pairs: the connection is returned when this side's queue pairs are
 * connected.
 */
async function dialRdma(
  target: DialTarget,
  options: RdmaDialOptions,
  signal: AbortSignal,
): Promise<RdmaDialled> {
  const { trust, clock, limits, rails } = options;
  const offered = rails.offered();
  if (offered.length === 0) {
    const why = "no RDMA port of this host is active";
    return { ok: false, fault: { kind: "unreachable", why } };
  }
  const own = { trust, clock, limits, protocol: RDMA_PROTOCOL, codec: RDMA_CODEC };
  const dialled = await dialChannel(target, own, signal);
  if (!dialled.ok) return dialled;
  const { dialling, identity, der } = dialled.value;
  const startMs = clock.monotonicMs();
  const { wanted } = rails;
  const hello = { kind: "hello", version: CONTROL_VERSION, wanted, rails: offered } as const;
  const welcome = await dialling.greet(hello, (said) => readWelcome(said, offered.length, wanted));
  if (!welcome.ok) return dialling.giveUp(welcome.fault);
  if (dialling.fault !== null) return dialling.giveUp(dialling.fault);
  const rttMs = clock.monotonicMs() - startMs;
  const { requests, pairs } = welcome.value;
  const { channel } = dialling;
  try {
    const connections = rails.connect(offered, pairs);
    channel.send({ kind: "join", addresses: connections.map(({ address }) => address) });
    let connection: ClientConnection<RdmaMessage> | null = null;
    const end = (kind: ConnectionFaultKind, why: string) => connection?.end(kind, why);
    const payload = new RdmaClient({ connections, channel, clock, limits, end });
    const parts = { identity, channel, payload, clock, limits, requests, rttMs };
    connection = new ClientConnection({ transport: "rdma", ...parts });
    dialling.handTo(connection);
    return { ok: true, connection, der };
  } catch (thrown) {
    if (!(thrown instanceof NativeError)) throw thrown;
    return dialling.giveUp({
      kind: "broken",
      why: `queue pair set-up failed: ${messageOf(thrown)}`,
    });
  }
}

/** The welcome's fields, or the reason it is invalid. */
function readWelcome(message: RdmaControl, offered: number, wanted: number): Welcome | string {
  if (message.kind !== "welcome") return "expected a welcome message";
  const { version, pairs } = message;
  const isFair = pairs.length <= wanted && pairs.every(({ rail }) => rail < offered);
  return isFair && version <= CONTROL_VERSION ? message : "it chose something that was not offered";
}

export interface RdmaTransportOptions {
  readonly trust: Trust;
  readonly clock: Clock;
  readonly log: TransportLog;
  /** Opens the devices for a region; owned by the caller. May throw NativeError. */
  readonly rdmaOf: (region: Region) => Rdma;
  readonly settings: RdmaQueuePairSettings;
  /** Queue pairs per connection, each on its own port: 1 to 8. */
  readonly rails: number;
  readonly limits?: Partial<RdmaLimits>;
}

/** The reason RDMA is unsupported, for each state except `ready`. */
const WORDS: Readonly<Record<Exclude<RdmaState, "ready">, string>> = {
  no_library: "libibverbs.so.1 is not installed",
  no_device: "this host has no RDMA device",
  memlock: "the limit on locked memory is too low: raise RLIMIT_MEMLOCK",
  not_permitted: "no permission to open the RDMA devices",
  too_old: "libibverbs.so.1 is too old",
  failed: "the RDMA devices could not be opened",
};

/**
 * Requests over TLS 1.3 with certificates on both sides. The client's device reads blocks from the
 * server's arena, each span while it is exposed for the read. The payload is not encrypted.
 */
export class RdmaTransport implements Transport {
  readonly name = "rdma";
  readonly capabilities = { encrypted: false, direct: true, early: false, oneSided: true };
  unsupported: string | null = null;
  readonly #options: RdmaTransportOptions;
  readonly #limits: RdmaLimits;
  readonly #connections: ConnectionTable<RdmaMessage>;
  #rails: RailConnections | null = null;
  /** Resolves when the transport is closed; null while it is open. */
  #closed: Promise<void> | null = null;

  constructor(options: RdmaTransportOptions) {
    this.#options = options;
    this.#limits = { ...RDMA_LIMITS, ...options.limits };
    const { trust, clock, log } = options;
    this.#connections = new ConnectionTable({
      trust,
      clock,
      log,
      limits: this.#limits,
      codec: RDMA_CODEC,
      protocol: RDMA_PROTOCOL,
      key: "listen_rdma",
    });
  }

  get inboundConnections(): number {
    return this.#connections.inbound;
  }

  async register(region: Region): Promise<void> {
    assert(this.#rails === null, "a region is registered once");
    const { rdmaOf, settings, rails } = this.#options;
    try {
      const rdma = rdmaOf(region);
      if (rdma.state === "ready") this.#rails = new RailConnections(rdma, settings, rails);
      else this.unsupported = WORDS[rdma.state];
    } catch (thrown) {
      if (!(thrown instanceof NativeError)) throw thrown;
      this.unsupported = thrown.text;
    }
  }

  async listen(endpoint: Endpoint, server: PeerServer): Promise<Endpoint> {
    const rails = this.#rails;
    if (rails === null) throw new HearthError("UNSUPPORTED", this.unsupported ?? "no region");
    const { port } = await this.#connections.listen(endpoint);
    const host = this.#connections.hostFor(server);
    this.#connections.takeWith((peer, channel, onOver) => {
      const late = "queue pairs were not connected in time";
      const carry = (room: ConnectionContext<RdmaMessage>) =>
        new RdmaServer(room, rails, this.#limits);
      return new ServerConnection({ peer, channel, host, payload: carry, late, onOver });
    });
    return { host: endpoint.host, port };
  }

  async dial(target: DialTarget, signal: AbortSignal): Promise<Dialled> {
    if (this.#closed !== null)
      return { ok: false, fault: { kind: "closed", why: "the transport is closed" } };
    const rails = this.#rails;
    if (rails === null) {
      const why = this.unsupported ?? "no region is registered";
      return { ok: false, fault: { kind: "unsupported", why } };
    }
    const { trust, clock } = this.#options;
    const dialled = await dialRdma(target, { trust, rails, clock, limits: this.#limits }, signal);
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
    await this.#rails?.close();
  }
}
