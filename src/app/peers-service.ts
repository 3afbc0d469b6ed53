import type { AgentMetrics, PeerSources } from "../api/index.ts";
import type { Bus } from "../bus/index.ts";
import { type Config, mayUseRdma } from "../config/index.ts";
import type { EventLog, HearthEvent } from "../observability/activity/index.ts";
import {
  Announcer,
  type BlockHolders,
  BlockServer,
  BusLocator,
  type Endpoint,
  type FetchEvent,
  Fetcher,
  type FetchLimits,
  type HardwareReport,
  KnownPeers,
  openTrust,
  type PeerRecord,
  type PeerStatus,
  readHardware,
  SERVE_LIMITS,
  type ServeLimits,
  type StaticPeer,
  Summaries,
  type TransportLog,
  type TransportName,
  type TrustNews,
  type WatchedTrust,
  withDevices,
} from "../peers/index.ts";
import { createAddressBatch, type TieredStore } from "../store/index.ts";
import type { AgentContext } from "./agent-context.ts";
import { activeDevices, PeerTransports } from "./peer-transports.ts";
import { PEERS_STOP_MS } from "./process.ts";

interface PeersServiceParts extends AgentContext {
  readonly metrics: Pick<AgentMetrics, "pulled">;
  readonly events: EventLog;
  /** Bus for announcements to peers. Null without NATS. */
  readonly bus: Bus | null;
}

const DIGEST_BYTES = 32;
const KEY_BYTES = 32;

/** Parts that exist before the service starts listening. */
interface Prerequisites {
  readonly trust: WatchedTrust;
  readonly news: PeerReporter;
  readonly server: BlockServer;
  readonly transports: PeerTransports;
  /** Returns the current state of GPUs and NICs. */
  readonly hardware: () => HardwareReport;
}

/** Fetches blocks from peers and serves blocks to them. */
export class PeersService implements AsyncDisposable {
  readonly members: KnownPeers;
  readonly puller: Fetcher;
  readonly summaries: Summaries | null;
  readonly announcer: Announcer | null;
  readonly #parts: PeersServiceParts;
  readonly #prerequisites: Prerequisites;
  readonly #onTrust: Disposable;

  private constructor(parts: PeersServiceParts, prerequisites: Prerequisites) {
    const { config, clock, store, source } = parts;
    const { trust, transports, news } = prerequisites;
    this.#parts = parts;
    this.#prerequisites = prerequisites;
    this.members = new KnownPeers({ self: config.node.id, clock, log: logOf(parts) });
    this.members.setListed(listedOf(config));
    this.members.onChange(({ kind, peer }) => news.member(kind, peer));
    this.summaries = this.#openSummaries();
    this.puller = this.#openPuller();
    this.announcer = this.#openAnnouncer();
    this.#onTrust = trust.onChange(() => void transports.reload());
    news.watch(() => this.puller.peers());
    store.setPeers(this.puller);
    source.puller = this.puller;
  }

  /**
   * Opens the service. Resolves when it accepts connections, or null if no certificate is
   * configured. Throws CONFIG_INVALID if a certificate file is invalid or an address cannot be
   * listened on.
   */
  static async open(parts: PeersServiceParts): Promise<PeersService | null> {
    const { config, native, region, clock, logger, rdma } = parts;
    const { certFile, keyFile, caFile, cluster, peers } = config.peers;
    if (certFile === null || keyFile === null || caFile === null) {
      if (peers !== null) logger.warn("peers.peers has no effect: peers.cert_file is not set", {});
      return null;
    }
    const log = logOf(parts);
    const news = new PeerReporter(parts);
    const files = { certFile, keyFile, caFile };
    const tell = (told: Parameters<PeerReporter["trust"]>[0]) => news.trust(told);
    const trust = await openTrust({ files, cluster, worker: config.node.id, clock, tell });
    const fixed = readHardware([]);
    const devices = activeDevices(mayUseRdma(config) ? rdma : null, clock);
    const hardware = () => withDevices(fixed, devices());
    const server = serverOf(parts, hardware);
    const { metrics } = parts;
    const own = { native, region, clock, log, trust, metrics, rdma, cores: fixed.cores };
    try {
      const transports = await PeerTransports.open({ ...own, config }, server);
      logger.info("listening for peers", { ...placesOf(transports) });
      return new PeersService(parts, { trust, news, server, transports, hardware });
    } catch (thrown) {
      server[Symbol.dispose]();
      trust[Symbol.dispose]();
      throw thrown;
    }
  }

  /** Returns the state of fetching and serving, for status and metrics. */
  get sources(): PeerSources {
    const { trust, server, transports } = this.#prerequisites;
    return {
      fetcher: this.puller,
      peers: this.puller.peers(),
      server: server.stats,
      summaries: this.summaries?.stats() ?? null,
      announcer: this.announcer?.stats() ?? null,
      credentials: trust.credentials,
      endpoints: this.endpoints,
      inboundConnections: (transport) => transports.inboundConnections(transport),
      recordOf: (worker) => this.members.get(worker),
    };
  }

  /** Address, by transport, that the agent announces to peers. */
  get endpoints(): Readonly<Partial<Record<TransportName, Endpoint>>> {
    const { advertise } = this.#parts.config.peers;
    const places = Object.entries(this.#prerequisites.transports.listening);
    const named = places.map(([name, { host, port }]) => [name, { host: advertise ?? host, port }]);
    return Object.fromEntries(named);
  }

  /** Applies limits and peer addresses of a new configuration. Other settings need a restart. */
  configure(config: Config): void {
    this.puller.configure(pullLimitsOf(config));
    this.#prerequisites.server.configure(serveLimitsOf(config));
    this.members.setListed(listedOf(config));
  }

  /** Rereads the certificates. If they are invalid, the previous ones stay in use. */
  async reload(): Promise<void> {
    await this.#prerequisites.trust.reload();
  }

  /** Stops fetching and serving. When it resolves, no peer accesses the arena. */
  async [Symbol.asyncDispose](): Promise<void> {
    const { trust, server, transports, news } = this.#prerequisites;
    const { store, source, clock, logger } = this.#parts;
    // Wait without limit: memory that a peer may still write to must not be released.
    using _late = clock.after(PEERS_STOP_MS, () =>
      logger.warn("peers still use RAM, waiting before it is released", {
        seconds: PEERS_STOP_MS / 1_000,
      }),
    );
    store.setPeers(null);
    source.puller = null;
    this.announcer?.[Symbol.dispose]();
    this.#onTrust[Symbol.dispose]();
    news[Symbol.dispose]();
    await this.summaries?.[Symbol.asyncDispose]();
    await this.puller[Symbol.asyncDispose]();
    server[Symbol.dispose]();
    await transports[Symbol.asyncDispose]();
    this.members[Symbol.dispose]();
    trust[Symbol.dispose]();
  }

  #openSummaries(): Summaries | null {
    const { config, clock, namespaces } = this.#parts;
    const everyMs = config.peers.summaryMs;
    if (everyMs === 0) return null;
    return new Summaries({
      members: this.members,
      clock,
      log: logOf(this.#parts),
      everyMs,
      mayAsk: (worker) => this.puller.mayAsk(worker),
      call: (worker, request, options) => this.puller.ask(worker, request, options),
      namespaces: () => namespaces.keys(),
    });
  }

  #openPuller(): Fetcher {
    const { config, clock, random, store, namespaces, bus, incarnation } = this.#parts;
    const { transports, news, hardware } = this.#prerequisites;
    const { cluster } = config.peers;
    const self = config.node.id;
    return new Fetcher({
      self: {
        ...{ worker: self, incarnation },
        get hardware() {
          return hardware();
        },
      },
      blocks: store.peerBlocks,
      transports: transports.all,
      members: this.members,
      blockHolders: this.summaries ?? NOWHERE,
      locator: bus === null ? null : new BusLocator({ bus, clock, cluster, self }),
      namespaces,
      deriveKeys: (digests, layer) => deriveKeys(store, digests, layer),
      tokensPerBlock: (namespace) => namespaces.factsOf(namespace)?.blockTokens ?? null,
      clock,
      random,
      log: logOf(this.#parts),
      onEvent: (event) => {
        if (event.kind === "peer_restarted") this.summaries?.forget(event.worker);
        news.pull(event);
      },
      limits: pullLimitsOf(config),
    });
  }

  #openAnnouncer(): Announcer | null {
    const { config, bus, clock, random, namespaces, incarnation } = this.#parts;
    if (bus === null) return null;
    const { cluster } = config.peers;
    const everyMs = ANNOUNCE_MS;
    const worker = config.node.id;
    const { hardware, server } = this.#prerequisites;
    const self = { cluster, worker, incarnation, everyMs, endpoints: this.endpoints };
    return new Announcer({
      bus,
      members: this.members,
      clock,
      random,
      log: logOf(this.#parts),
      cluster,
      everyMs,
      self: () => {
        const served = namespaces.keys().filter((key) => server.isServed(key));
        return { ...self, hardware: hardware(), namespaces: served.map((key) => key.toHex()) };
      },
    });
  }
}

/** Block holders to use if no summaries are exchanged: none. */
const NOWHERE: BlockHolders = { holders: () => [], wasWrong: () => undefined };

function logOf({ logger }: Pick<PeersServiceParts, "logger">): TransportLog {
  return (level, text, fields) => logger.log(level, text, fields);
}

function listedOf({ peers: { peers } }: Config): StaticPeer[] {
  return (peers ?? []).map(({ worker, host, streamPort, quicPort, rdmaPort }) => ({
    worker,
    endpoints: {
      ...(rdmaPort === null ? {} : { rdma: { host, port: rdmaPort } }),
      ...(streamPort === null ? {} : { stream: { host, port: streamPort } }),
      ...(quicPort === null ? {} : { quic: { host, port: quicPort } }),
    },
  }));
}

function serverOf(parts: PeersServiceParts, hardware: () => HardwareReport): BlockServer {
  const { config, clock, random, store, namespaces, incarnation } = parts;
  const modelOf = (key: Uint8Array) => {
    const namespace = namespaces.find(key);
    return namespace === null ? "" : (namespaces.factsOf(namespace)?.model ?? "");
  };
  return new BlockServer({
    blocks: store.peerBlocks,
    namespaceOf: (key) => namespaces.find(key),
    modelOf,
    hello: () => ({ worker: config.node.id, incarnation, hardware: hardware() }),
    limits: serveLimitsOf(config),
    clock,
    random,
    log: logOf(parts),
  });
}

function placesOf({ listening }: PeerTransports): Record<string, string> {
  const places = Object.entries(listening);
  return Object.fromEntries(places.map(([name, { host, port }]) => [name, `${host}:${port}`]));
}

/** Derives the block keys of one namespace layer: 32 bytes for each 32-byte digest. */
function deriveKeys(store: TieredStore, digests: Uint8Array, layer: number): Uint8Array {
  const batch = createAddressBatch(digests.length / DIGEST_BYTES);
  batch.count = batch.capacity;
  batch.layer = layer;
  batch.digests.set(digests);
  store.deriveKeys(batch, false);
  return batch.keyBytes.slice(0, batch.count * KEY_BYTES);
}

/**
 * Interval of this agent's announcements over NATS. Peers forget an agent after three missing
 * announcements.
 */
const ANNOUNCE_MS = 5_000;
/** Maximum share of RAM for blocks being fetched, and for blocks being served. */
const RAM_SHARE = 0.5;
/** Maximum shares of all bytes being fetched: from one peer, and for one namespace. */
const PULL_PEER_SHARE = 0.25;
const PULL_NAMESPACE_SHARE = 0.5;
/** Maximum blocks requested from a peer in one message. */
const PULL_ITEMS_MAX = 64;
/** Time without requests to a peer after its first failure. Later failures lengthen it. */
const PEER_COOLDOWN_MS = 1_000;
/** Maximum share of the bytes being served that one peer may occupy. */
const PEER_SHARE = 0.5;

function pullLimitsOf({ peers, kv }: Config): FetchLimits {
  const most = Math.floor(kv.ramBytes * RAM_SHARE);
  return {
    ...peers,
    bytesMax: Math.min(peers.bytesMax, most),
    peerBytesMax: Math.min(Math.floor(peers.bytesMax * PULL_PEER_SHARE), most),
    namespaceBytesMax: Math.min(Math.floor(peers.bytesMax * PULL_NAMESPACE_SHARE), most),
    itemsMax: PULL_ITEMS_MAX,
    dialMs: peers.progressMs,
    cooldownMs: Math.min(PEER_COOLDOWN_MS, peers.cooldownMaxMs),
    prefillTokensPerS: peers.prefillTokensPerSecond,
    mirrorPulls: kv.mirrorPulls,
  };
}

function serveLimitsOf({ peers, kv }: Config): ServeLimits {
  const bytesMax = Math.min(peers.bytesMax, Math.floor(kv.ramBytes * RAM_SHARE));
  const { serveNamespaces, summaryMs } = peers;
  return {
    ...SERVE_LIMITS,
    bytesMax,
    peerBytesMax: Math.floor(bytesMax * PEER_SHARE),
    namespaces: serveNamespaces === "any" ? null : new Set(serveNamespaces),
    summaryMs: summaryMs === 0 ? SERVE_LIMITS.summaryMs : summaryMs,
  };
}

export interface PeerReporterParts extends Pick<AgentContext, "clock" | "logger" | "health"> {
  readonly events: EventLog;
}

const WATCH_MS = 1_000;
/** Time for which the health code stays raised after a peer sent corrupt data. */
const CORRUPT_MS = 600_000;

/** Reports events of peers and certificates as activity events, log lines and health codes. */
export class PeerReporter implements Disposable {
  readonly #parts: PeerReporterParts;
  #watch: Disposable | null = null;
  #corruptAtMs: number | null = null;

  constructor(parts: PeerReporterParts) {
    this.#parts = parts;
  }

  /** Starts checking the states of peers every second. `peers` returns the current states. */
  watch(peers: () => readonly PeerStatus[]): void {
    this.#watch = this.#parts.clock.every(WATCH_MS, () => this.#look(peers()));
  }

  member(kind: "came" | "changed" | "restarted" | "went", { worker: peer }: PeerRecord): void {
    if (kind === "came" || kind === "went") this.#report({ kind: `peer_${kind}`, peer });
  }

  pull(event: FetchEvent): void {
    if (event.kind === "peer_corrupt") {
      this.#corruptAtMs = this.#parts.clock.monotonicMs();
      this.#parts.health.raise("PEERS_CORRUPT", `${event.worker}: ${event.why}`);
    }
    this.#report(eventOf(event));
  }

  trust(news: TrustNews): void {
    const { health, logger } = this.#parts;
    switch (news.kind) {
      case "loaded":
        health.clear("PEERS_FILES");
        logger.info("peer certificates loaded", { ends: dateOf(news.notAfterMs) });
        return;
      case "refused":
        health.raise("PEERS_FILES", news.why);
        return;
      case "warning":
        logger.warn(news.text, {});
        return;
      case "expiry":
        this.#expiry(news);
        return;
      default:
        news satisfies never;
    }
  }

  [Symbol.dispose](): void {
    this.#watch?.[Symbol.dispose]();
  }

  #expiry({ state, notAfterMs }: Extract<TrustNews, { kind: "expiry" }>): void {
    const { health } = this.#parts;
    const date = dateOf(notAfterMs);
    health.report("PEERS_CERT", state === "soon" ? `it expires ${date}` : null);
    health.report("PEERS_CERT_ENDED", state === "late" ? `it expired ${date}` : null);
  }

  #look(peers: readonly PeerStatus[]): void {
    const { health, clock } = this.#parts;
    const down = peers.filter(({ breaker }) => breaker === "open");
    if (peers.length > 0 && down.length === peers.length) {
      const { worker, lastFault } = down[0];
      health.raise("PEERS_DOWN", `all ${down.length}; for example ${worker}: ${lastFault ?? "-"}`);
    } else if (peers.length === 0 || peers.some(({ breaker }) => breaker === "closed")) {
      // Clear the code only for an established connection, not while one is being attempted.
      health.clear("PEERS_DOWN");
    }
    const sinceMs = clock.monotonicMs() - (this.#corruptAtMs ?? Number.NEGATIVE_INFINITY);
    if (sinceMs > CORRUPT_MS) health.clear("PEERS_CORRUPT");
  }

  #report(event: HearthEvent): void {
    this.#parts.events.emit(event);
    const { kind, ...fields } = event;
    const isBad = kind === "peer_down" || kind === "peer_corrupt" || kind === "peer_transport_down";
    this.#parts.logger.log(isBad ? "warn" : "info", kind.replaceAll("_", " "), { ...fields });
  }
}

function eventOf(event: FetchEvent): HearthEvent {
  const peer = event.worker;
  switch (event.kind) {
    case "breaker_opened":
      return { kind: "peer_down", peer, why: event.why, cooldown_ms: Math.round(event.cooldownMs) };
    case "breaker_closed":
      return { kind: "peer_up", peer };
    case "transport_down": {
      const { transport, why, cooldownMs } = event;
      const cooldown_ms = Math.round(cooldownMs);
      return { kind: "peer_transport_down", peer, transport, why, cooldown_ms };
    }
    case "transport_up":
      return { kind: "peer_transport_up", peer, transport: event.transport };
    case "peer_slow":
      return { kind: "peer_slow", peer, after_ms: Math.round(event.afterMs) };
    case "peer_corrupt":
      return { kind: "peer_corrupt", peer, key: event.key, why: event.why };
    case "peer_restarted":
      return { kind: "peer_restarted", peer };
    default:
      return event satisfies never;
  }
}

function dateOf(ms: number): string {
  return new Date(ms).toISOString();
}
