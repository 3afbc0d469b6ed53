import type { AgentMetrics } from "../api/index.ts";
import { type Config, lanesPortOf, mayUseRdma } from "../config/index.ts";
import { type Clock, HearthError, messageOf } from "../core/index.ts";
import {
  type Native,
  openLanes,
  type Rdma,
  type RdmaQueuePairSettings,
  type Region,
} from "../native/index.ts";
import {
  acceptedCiphers,
  type Endpoint,
  laneShape,
  measured,
  type PeerServer,
  QuicTransport,
  RdmaTransport,
  StreamTransport,
  type Transport,
  type TransportLog,
  type TransportName,
  type TransportObserver,
  type Trust,
} from "../peers/index.ts";

export interface PeerTransportParts {
  readonly config: Pick<Config, "peers" | "rdma">;
  readonly native: Native;
  readonly region: Region;
  readonly clock: Clock;
  readonly log: TransportLog;
  readonly trust: Trust;
  readonly metrics: Pick<AgentMetrics, "pulled">;
  readonly cores: number;
  /** The host's RDMA devices. Null if RDMA is disabled or unusable. */
  readonly rdma: Rdma | null;
}

type Listening = Partial<Record<TransportName, Endpoint>>;

/** Owns the transports to peers and their listeners. */
export class PeerTransports implements AsyncDisposable {
  readonly all: readonly Transport[];
  /** Listening address of each transport, with the actual port. */
  readonly listening: Listening = {};
  readonly #log: TransportLog;

  private constructor(all: readonly Transport[], log: TransportLog) {
    this.all = all;
    this.#log = log;
  }

  /**
   * Opens the transports and starts listening. Throws CONFIG_INVALID, with a fix, if an address
   * cannot be listened on.
   */
  static async open(parts: PeerTransportParts, server: PeerServer): Promise<PeerTransports> {
    const { config, region, log } = parts;
    const { listenStream, listenQuic, listenRdma } = config.peers;
    const wanted = transportsOf(parts);
    const transports = new PeerTransports(wanted, log);
    try {
      for (const transport of wanted) await transport.register(region);
      await transports.#listen("rdma", listenRdma, server);
      await transports.#listen("stream", listenStream, server);
      await transports.#listen("quic", listenQuic, server);
    } catch (thrown) {
      await transports[Symbol.asyncDispose]();
      throw thrown;
    }
    return transports;
  }

  async #listen(
    name: TransportName,
    address: Config["peers"]["listenStream"],
    server: PeerServer,
  ): Promise<void> {
    const transport = this.all.find((one) => one.name === name);
    if (transport === undefined) return;
    if (transport.unsupported !== null) {
      this.#log("warn", "transport unavailable on this host", {
        transport: name,
        why: transport.unsupported,
      });
      return;
    }
    if (address === "off") return;
    const { host, port } = address;
    try {
      this.listening[name] = await transport.listen({ host, port }, server);
    } catch (cause) {
      const what = `peers.listen_${name}: ${host}:${port} cannot be listened on`;
      const fix = "set a free port of this host in [peers], or `off`";
      throw new HearthError("CONFIG_INVALID", `${what}: ${messageOf(cause)}`, { cause, fix });
    }
  }

  inboundConnections(name: TransportName): number {
    return this.all.find((one) => one.name === name)?.inboundConnections ?? 0;
  }

  /** Rereads the certificates and uses them for new connections. Never rejects. */
  async reload(): Promise<void> {
    const renewed = await Promise.allSettled(this.all.map((transport) => transport.reload()));
    for (const [index, one] of renewed.entries()) {
      if (one.status === "fulfilled") continue;
      const fields = { transport: this.all[index].name, why: messageOf(one.reason) };
      this.#log("error", "transport keeps its previous certificates", fields);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.all.map((transport) => transport[Symbol.asyncDispose]()));
  }
}

function transportsOf(parts: PeerTransportParts): Transport[] {
  const { native, clock, log, trust, metrics } = parts;
  const quic = new QuicTransport({ native, clock, log, trust });
  const observer = observerOf(metrics);
  const rdma = rdmaOf(parts);
  const all = [...(rdma === null ? [] : [rdma]), streamOf(parts), quic];
  return all.map((one) => measured(one, clock, observer));
}

/**
 * Creates the RDMA transport. Returns null if RDMA is not allowed or unusable; opening the devices
 * has already logged the reason.
 */
function rdmaOf({ config, clock, log, trust, rdma }: PeerTransportParts): Transport | null {
  if (rdma === null || !mayUseRdma(config)) return null;
  return new RdmaTransport({
    ...{ trust, clock, log, rdmaOf: () => rdma },
    ...{ settings: linkSettingsOf(config.rdma), rails: config.rdma.rails },
  });
}

/**
 * Returns an observer that records transfer times. The fetcher and the server count everything
 * else.
 */
function observerOf(metrics: Pick<AgentMetrics, "pulled">): TransportObserver {
  const ignored = () => undefined;
  return {
    answered(transport, kind, _bytes, seconds) {
      if (kind === "came") metrics.pulled(transport, seconds);
    },
    ...{ dialled: ignored, called: ignored, pulled: ignored, lent: ignored },
  };
}

function streamOf({ config, native, clock, log, trust, cores }: PeerTransportParts): Transport {
  const { lanes, threads, socketBytes } = laneShape(cores);
  const { listenStream } = config.peers;
  return new StreamTransport({
    trust,
    clock,
    log,
    openLanes: (region) => openLanes(native, { region, threads, socketBytes }),
    ciphers: acceptedCiphers(config.peers),
    lanes,
    lanesPort: listenStream === "off" ? 0 : lanesPortOf(listenStream),
  });
}

/**
 * Constants of RDMA queue pairs. A packet without acknowledgement is resent after 4.096 us *
 * 2^`timeout` (67 ms). `pieceBytes`: maximum bytes of one RDMA READ.
 */
const RDMA_LINK = { timeout: 14, retries: 6, serviceLevel: 0, pieceBytes: 256 * 1024 };

/** Returns the settings of RDMA queue pairs: the constants and the configured traffic class. */
function linkSettingsOf({ trafficClass }: Config["rdma"]): RdmaQueuePairSettings {
  return { ...RDMA_LINK, trafficClass };
}

/** Time for which the port state is cached. Each request to a peer reads it. */
const LOOK_MS = 250;

/**
 * Returns a function that lists the RDMA devices with an active port. The list is empty without
 * RDMA.
 */
export function activeDevices(
  rdma: Rdma | null,
  clock: Pick<Clock, "monotonicMs">,
): () => readonly string[] {
  let names: readonly string[] = [];
  let lookedMs = Number.NEGATIVE_INFINITY;
  return () => {
    const nowMs = clock.monotonicMs();
    if (rdma === null || nowMs - lookedMs < LOOK_MS) return names;
    lookedMs = nowMs;
    const active = rdma.ports().filter(({ state }) => state === "active");
    names = [...new Set(active.map(({ device }) => device))];
    return names;
  };
}
