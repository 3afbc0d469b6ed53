import type { StatusReport } from "../api/index.ts";
import type { Bus, BusLog } from "../bus/index.ts";
import { type Config, zmqOfRank } from "../config/index.ts";
import type { Clock, Random, WorkerId } from "../core/index.ts";
import { DROP_REASONS, type FeedCounts } from "../events/index.ts";
import {
  BusPublisher,
  type BusPublisherState,
  type EngineEndpoints,
  EngineRank,
  type EngineRankState,
  HostResidency,
  type ResidencyLog,
  StreamPublisher,
  type StreamPublisherState,
  ZmqPublisher,
  type ZmqPublisherState,
} from "../events/publishing/index.ts";
import type { Native } from "../native/index.ts";
import type { KeySpace } from "../observability/activity/index.ts";
import type { Health, Logger, PublisherSnapshot } from "../observability/index.ts";
import type { Namespaces, TieredStore } from "../store/index.ts";

interface PublishingServiceParts {
  readonly config: Config;
  readonly native: Native;
  readonly clock: Clock;
  readonly random: Random;
  readonly logger: Logger;
  readonly health: Health;
  readonly store: TieredStore;
  readonly namespaces: Namespaces;
  readonly incarnation: bigint;
  /** Null without NATS. */
  readonly bus: Bus | null;
}

/** One rank: its publishers and their progress. */
interface SpokenRank {
  readonly feed: ResidencyLog;
  /** Null without NATS. */
  readonly bus: BusPublisherState | null;
  /** Null unless in stream mode. */
  readonly stream: StreamPublisherState | null;
  /** Null without ZMQ. */
  readonly zmq: ZmqPublisherState | null;
  /** Null without events of an engine. */
  readonly engine: EngineRankState | null;
}

const WATCH_MS = 1_000;
/** Interval of the heartbeat of each rank. Subscribers count a rank as stale after three. */
const HEARTBEAT_MS = 1_000;
/** Changes, of up to 1,024 blocks each, to keep for subscribers that missed some, and their blocks. */
const RING_LIMITS = { changesMax: 16_384, blocksMax: 1_048_576 };
/** Maximum blocks to remember of one rank's engine events, about 200 bytes each. */
const ENGINE_BLOCKS_MAX = 262_144;
/** A snapshot is stored after this time if anything changed; shorter than a stream's `max_age`. */
const SNAPSHOT_EVERY_MS = 600_000;

/** Publishes which blocks this host holds. */
export class PublishingService implements AsyncDisposable {
  readonly mode: "ring" | "stream";
  readonly feeds: HostResidency;
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
    this.feeds = new HostResidency({
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
    this.#publishers = bus === null ? [] : this.feeds.feeds.map((feed) => this.#speak(feed, bus));
    this.#streams = bus === null || mode === "ring" ? [] : this.#write(bus);
    this.#engines = zmq.map((publisher, rank) => this.#rank(rank, publisher));
    this.#watch = clock.every(WATCH_MS, () => this.#look());
  }

  /**
   * Null if nothing is published. Throws ZMTP_UNAVAILABLE if a ZMQ address cannot be listened on.
   */
  static async open(parts: PublishingServiceParts): Promise<PublishingService | null> {
    const { events, engine } = parts.config;
    const isAlone = parts.bus === null && events.zmq === null && engine.kvEvents === null;
    if (events.mode === "off" || isAlone) return null;
    return new PublishingService(parts, events.mode, await openZmq(parts));
  }

  get ranks(): readonly SpokenRank[] {
    return this.feeds.feeds.map((feed, at) => ({
      feed,
      bus: this.#publishers[at]?.state ?? null,
      stream: this.#streams[at]?.state ?? null,
      zmq: this.#engines[at]?.zmq?.state ?? null,
      engine: this.#engines[at]?.state ?? null,
    }));
  }

  get cluster(): string {
    return this.#parts.config.peers.cluster;
  }

  /** Blocks per tier of RESIDENCY_TIERS, as reported by the store. */
  get heldBlocks(): readonly [number, number, number] {
    const [device, host, disk] = this.#parts.store.residency.digests;
    return [device!.blocks, host!.blocks, disk!.blocks];
  }

  /** Number of times the store's events restarted from the beginning. */
  get restarts(): number {
    return this.#parts.store.residency.restarts;
  }

  /** Publishes the end of this source, then stops. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#watch[Symbol.dispose]();
    for (const stream of this.#streams) await stream[Symbol.asyncDispose]();
    for (const publisher of this.#publishers) await publisher[Symbol.asyncDispose]();
    for (const engine of this.#engines) await engine[Symbol.asyncDispose]();
    this.feeds[Symbol.dispose]();
    this.#parts.health.clear("FEED_STREAM");
    this.#parts.health.clear("FEED_ENGINE");
    this.#parts.health.clear("FEED_BLOCK_TOKENS");
  }

  #speak(feed: ResidencyLog, bus: Bus): BusPublisher {
    const { clock, config } = this.#parts;
    const { cluster } = config.peers;
    return new BusPublisher({ feed, bus, cluster, clock, sendsBatches: this.mode === "ring" });
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
      ({ feed, snapshots }) =>
        new StreamPublisher({
          ...{ feed, snapshots, bus, durable, cluster, ...names, clock, log },
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
      ...{ rank, zmq, engine, store, feeds: this.feeds, hashing: native, model },
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
    if (unheard < 0) health.clear("FEED_ENGINE");
    else health.raise("FEED_ENGINE", `rank ${unheard} of ${config.engine.kvEvents}`);
    const { kvBlockTokens: configured } = config.engine;
    const sizes = this.#engines.map(({ state }) => state?.blockTokens ?? configured);
    const rank = sizes.findIndex((size) => configured !== null && size !== configured);
    if (rank < 0) health.clear("FEED_BLOCK_TOKENS");
    else {
      const found = `rank ${rank}: kv_events_block_tokens is ${configured}`;
      health.raise("FEED_BLOCK_TOKENS", `${found}, the engine's blocks have ${sizes[rank]}`);
    }
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
    if (failing === undefined) health.clear("FEED_STREAM");
    else health.raise("FEED_STREAM", failing.why ?? "unknown");
  }
}

/** Namespaces that an engine has described. */
function spacesOf(namespaces: Namespaces): KeySpace[] {
  return namespaces.described().map(({ key, model, blockTokens, chain }) => {
    const space = { kind: "blocks", model, blockTokens, namespaceKey: key } as const;
    return chain === null ? space : { ...space, chain };
  });
}

/** One publisher per rank. Null without ZMQ. */
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

/** Status and metrics of publishing. */
export function feedStatus(service: PublishingService | null): StatusReport["feed"] {
  if (service === null) return null;
  const snapshot = feedSnapshot(service);
  const [device, host, disk] = service.heldBlocks;
  const streams = service.ranks.flatMap(({ stream }) => (stream === null ? [] : [stream]));
  const worst = streams.find(({ status }) => status !== "publishing") ?? streams[0] ?? null;
  return {
    mode: service.mode,
    cluster: service.cluster,
    ranks: service.ranks.length,
    changes: snapshot.changes,
    device_blocks: device,
    host_blocks: host,
    disk_blocks: disk,
    ring_blocks: snapshot.ringBlocks,
    sent: snapshot.messages.sent,
    unsent: snapshot.messages.unsent,
    snapshots: snapshot.snapshots,
    engine: engineOf(service),
    stream:
      worst === null
        ? null
        : {
            status: worst.status,
            why: worst.why,
            behind: snapshot.streamBehind,
            stored_snapshots: snapshot.storedSnapshots,
          },
  };
}

type EngineStatus = NonNullable<StatusReport["feed"]>["engine"];

function engineOf({ ranks, feeds }: PublishingService): EngineStatus {
  const states = ranks.flatMap(({ engine }) => (engine === null ? [] : [engine]));
  if (states.length === 0) return null;
  const dropped = states.flatMap(({ counts }) => Object.values(counts.dropped));
  return {
    heard: states.filter(({ isHeard }) => isHeard).length,
    known: states.filter(({ isKnown }) => isKnown).length,
    blocks: feeds.engineBlocks.blocks,
    events: states.reduce((sum, { counts }) => sum + counts.events, 0),
    dropped: dropped.reduce((sum, count) => sum + count, 0),
    dropped_by: droppedBy(states.map(({ counts }) => counts)),
    block_tokens: states.find(({ blockTokens }) => blockTokens !== null)?.blockTokens ?? null,
    gaps: states.reduce((sum, { counts }) => sum + counts.gaps, 0),
  };
}

/** Drop counts by reason, without zeros. */
function droppedBy(all: readonly FeedCounts[]): Record<string, number> {
  const sums = DROP_REASONS.map((reason) => {
    return [reason, all.reduce((sum, { dropped }) => sum + dropped[reason], 0)] as const;
  });
  return Object.fromEntries(sums.filter(([, sum]) => sum > 0));
}

export function feedSnapshot(service: PublishingService): PublisherSnapshot {
  const { ranks } = service;
  const sum = (pick: (rank: (typeof ranks)[number]) => number | undefined) =>
    ranks.reduce((total, rank) => total + (pick(rank) ?? 0), 0);
  return {
    changes: sum(({ feed }) => feed.lastSequence),
    messages: {
      sent: sum(({ bus, stream }) => stream?.acknowledged ?? bus?.sent),
      unsent: sum(({ bus }) => bus?.unsent),
    },
    questions: {
      range: sum(({ bus }) => bus?.questions.ranges),
      snapshot: sum(({ bus }) => bus?.questions.snapshotParts),
      evicted: sum(({ bus }) => bus?.questions.evicted),
      busy: sum(({ bus }) => bus?.questions.busy),
      refused: sum(({ bus }) => bus?.questions.refused),
      dropped: sum(({ bus }) => bus?.questions.dropped),
    },
    snapshots: sum(({ bus }) => bus?.snapshots),
    storedSnapshots: sum(({ stream }) => stream?.storedSnapshots),
    restarts: service.restarts,
    ringBlocks: sum(({ feed }) => feed.ring.blocks),
    engineBlocks: service.feeds.engineBlocks.blocks,
    streamBehind: sum(({ stream }) => stream?.behind),
    streamHoles: sum(({ stream }) => stream?.holes),
    zmqSubscribers: sum(({ zmq }) => zmq?.subscribers),
    zmqDropped: sum(({ zmq }) => zmq?.dropped),
  };
}
