import type { PublishedRank, PublishingSources } from "../api/index.ts";
import type { Bus, BusLog } from "../bus/index.ts";
import { zmqOfRank } from "../config/index.ts";
import type { WorkerId } from "../core/index.ts";
import {
  BusPublisher,
  type EngineEndpoints,
  EngineRank,
  HostResidency,
  type ResidencyLog,
  StreamPublisher,
  ZmqPublisher,
} from "../events/publishing/index.ts";
import type { KeySpace } from "../observability/activity/index.ts";
import type { Namespaces } from "../store/index.ts";
import type { AgentContext } from "./agent-context.ts";

interface PublishingServiceParts extends AgentContext {
  /** Bus on which events are published. Null without NATS. */
  readonly bus: Bus | null;
}

const WATCH_MS = 1_000;
/**
 * Interval of the heartbeat of each rank. Subscribers treat a rank as stale after three missing
 * heartbeats.
 */
const HEARTBEAT_MS = 1_000;
/**
 * Limits, per rank, of the recent changes that subscribers can request again. Each change has up to
 * 1,024 blocks.
 */
const RING_LIMITS = { changesMax: 16_384, blocksMax: 1_048_576 };
/** Maximum blocks tracked from one rank's engine events, at about 200 bytes each. */
const ENGINE_BLOCKS_MAX = 262_144;
/**
 * Interval at which a snapshot is stored if blocks changed. Must be shorter than the stream's
 * `max_age`.
 */
const SNAPSHOT_EVERY_MS = 600_000;

/** Publishes which blocks this host holds, over NATS and ZMQ. */
export class PublishingService implements PublishingSources, AsyncDisposable {
  readonly mode: "ring" | "stream";
  readonly residency: HostResidency;
  readonly #parts: PublishingServiceParts;
  readonly #publishers: readonly BusPublisher[];
  readonly #streams: readonly StreamPublisher[];
  readonly #engines: readonly EngineRank[];
  readonly #watch: Disposable;

  private constructor(
    parts: PublishingServiceParts,
    mode: "ring" | "stream",
    zmq: readonly (ZmqPublisher | null)[],
  ) {
    const { config, clock, store, incarnation, bus } = parts;
    const { engine } = config;
    this.mode = mode;
    this.#parts = parts;
    this.residency = new HostResidency({
      worker: config.node.id as WorkerId,
      incarnation,
      ranks: Array.from({ length: engine.kvRanks }, (_, rank) => rank),
      residency: store.residency,
      ring: RING_LIMITS,
      mode,
      everyMs: HEARTBEAT_MS,
      engineBlocksMax: ENGINE_BLOCKS_MAX,
      hasEngines: engine.kvEvents !== null,
      spaces: () => spacesOf(parts.namespaces),
    });
    this.#publishers = bus === null ? [] : this.residency.logs.map((log) => this.#speak(log, bus));
    this.#streams = bus === null || mode === "ring" ? [] : this.#write(bus);
    this.#engines = zmq.map((publisher, rank) => this.#rank(rank, publisher));
    this.#watch = clock.every(WATCH_MS, () => this.#look());
  }

  /**
   * Opens the publishers. Returns null if the configuration publishes nothing. Throws
   * ZMTP_UNAVAILABLE if a ZMQ address cannot be listened on.
   */
  static async open(parts: PublishingServiceParts): Promise<PublishingService | null> {
    const { events, engine } = parts.config;
    const isAlone = parts.bus === null && events.zmq === null && engine.kvEvents === null;
    if (events.mode === "off" || isAlone) return null;
    return new PublishingService(parts, events.mode, await openZmq(parts));
  }

  get ranks(): readonly PublishedRank[] {
    return this.residency.logs.map((log, at) => ({
      residency: log,
      bus: this.#publishers[at]?.state ?? null,
      stream: this.#streams[at]?.state ?? null,
      zmq: this.#engines[at]?.zmq?.state ?? null,
      engine: this.#engines[at]?.state ?? null,
    }));
  }

  get cluster(): string {
    return this.#parts.config.peers.cluster;
  }

  get engineBlocks(): number {
    return this.residency.engineBlocks.blocks;
  }

  /** Number of blocks in each tier, in the order of RESIDENCY_TIERS, as reported by the store. */
  get heldBlocks(): readonly [number, number, number] {
    const [device, host, disk] = this.#parts.store.residency.digests;
    return [device!.blocks, host!.blocks, disk!.blocks];
  }

  /** Number of times the store discarded its residency events and reported all blocks again. */
  get restarts(): number {
    return this.#parts.store.residency.restarts;
  }

  /** Announces to subscribers that this agent stops publishing, then closes the publishers. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#watch[Symbol.dispose]();
    for (const stream of this.#streams) await stream[Symbol.asyncDispose]();
    for (const publisher of this.#publishers) await publisher[Symbol.asyncDispose]();
    for (const engine of this.#engines) await engine[Symbol.asyncDispose]();
    this.residency[Symbol.dispose]();
    this.#parts.health.clear("FEED_STREAM");
    this.#parts.health.clear("FEED_ENGINE");
    this.#parts.health.clear("FEED_BLOCK_TOKENS");
  }

  #speak(residency: ResidencyLog, bus: Bus): BusPublisher {
    const { clock, config } = this.#parts;
    const { cluster } = config.peers;
    return new BusPublisher({ residency, bus, cluster, clock, sendsBatches: this.mode === "ring" });
  }

  #write(bus: Bus): StreamPublisher[] {
    const { config, clock, logger } = this.#parts;
    const { cluster } = config.peers;
    const { snapshotMessages } = config.events;
    const name = cluster.replaceAll(".", "_");
    const names = { stream: `kv-events-${name}`, bucket: `kv-snapshots-${name}` };
    const log: BusLog = (level, message, fields) => logger.log(level, message, fields);
    const { durable } = bus;
    if (durable === null) return [];
    return this.#publishers.map(
      ({ residency, snapshots }) =>
        new StreamPublisher({
          ...{ residency, snapshots, bus, durable, cluster, ...names, clock, log },
          ...{ snapshotMessages, snapshotEveryMs: SNAPSHOT_EVERY_MS },
        }),
    );
  }

  #rank(rank: number, zmq: ZmqPublisher | null): EngineRank {
    const { config, native, store, namespaces } = this.#parts;
    const engine = this.#engineOf(rank);
    const { kvModel, kvBlockTokens } = config.engine;
    const model = kvModel ?? "";
    return new EngineRank({
      ...{ rank, zmq, engine, store, residency: this.residency, hashing: native, model },
      blockTokens: kvBlockTokens,
      blocksMax: ENGINE_BLOCKS_MAX,
      namespaces: (blockTokens) =>
        namespaces
          .described()
          .filter((one) => one.model === model && one.blockTokens === blockTokens),
    });
  }

  #lookAtEngines(): void {
    const { health, config } = this.#parts;
    const unheard = this.#engines.findIndex(({ state }) => state?.isHeard === false);
    const lost = `rank ${unheard} of ${config.engine.kvEvents}`;
    health.report("FEED_ENGINE", unheard < 0 ? null : lost);
    const { kvBlockTokens: configured } = config.engine;
    const sizes = this.#engines.map(({ state }) => state?.blockTokens ?? configured);
    const rank = sizes.findIndex((size) => configured !== null && size !== configured);
    const found = `rank ${rank}: kv_events_block_tokens is ${configured}`;
    const differs = `${found}, the engine's blocks have ${sizes[rank]}`;
    health.report("FEED_BLOCK_TOKENS", rank < 0 ? null : differs);
  }

  #engineOf(rank: number): EngineEndpoints | null {
    const { config, native, clock, random } = this.#parts;
    const { kvEvents, kvReplay } = config.engine;
    if (kvEvents === null) return null;
    const replayEndpoint = kvReplay === null ? null : zmqOfRank(kvReplay, rank);
    return { native, clock, random, endpoint: zmqOfRank(kvEvents, rank), replayEndpoint };
  }

  #look(): void {
    this.#lookAtEngines();
    const { health, bus } = this.#parts;
    const isConnected = bus?.state.status === "connected";
    const states = this.#streams.map(({ state }) => state);
    const failing = states.find(({ status }) => {
      return status === "refused" || (status === "waiting" && isConnected);
    });
    health.report("FEED_STREAM", failing === undefined ? null : (failing.why ?? "unknown"));
  }
}

/** Returns the key spaces of all namespaces that an engine has described. */
function spacesOf(namespaces: Namespaces): KeySpace[] {
  return namespaces.described().map(({ key, model, blockTokens, chain }) => {
    const space = { kind: "blocks", model, blockTokens, namespaceKey: key } as const;
    return chain === null ? space : { ...space, chain };
  });
}

/** Opens one ZMQ publisher per rank. The elements are null if no ZMQ address is configured. */
async function openZmq(parts: PublishingServiceParts): Promise<(ZmqPublisher | null)[]> {
  const { config, clock, random, logger } = parts;
  const { zmq, zmqReplay, zmqTopic: topic } = config.events;
  const opened: (ZmqPublisher | null)[] = [];
  try {
    for (let rank = 0; rank < config.engine.kvRanks; rank++) {
      const replay = zmqReplay === null ? null : zmqOfRank(zmqReplay, rank);
      const common = { replay, topic, rank, clock, random };
      const publisher =
        zmq === null
          ? null
          : await ZmqPublisher.open({ endpoint: zmqOfRank(zmq, rank), ...common });
      if (publisher !== null)
        logger.info("publishing events over ZMQ", { endpoint: publisher.state.endpoint });
      opened.push(publisher);
    }
  } catch (thrown) {
    for (const one of opened) await one?.[Symbol.asyncDispose]();
    throw thrown;
  }
  return opened;
}
