import type { Bus, BusLog } from "../bus/index.ts";
import type { Config } from "../config/index.ts";
import type { Clock, Random, WorkerId } from "../core/index.ts";
import type { KeySpace } from "../events/index.ts";
import {
  BusPublisher,
  type BusPublisherState,
  HostFeeds,
  type ResidencyFeed,
  StreamPublisher,
  type StreamPublisherState,
} from "../feed/index.ts";
import type { Health, Logger } from "../observability/index.ts";
import type { Namespaces, TieredStore } from "../tiers/index.ts";

export interface FeedRoomParts {
  readonly config: Config;
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

/** One rank: what it says, and how far that came. */
export interface SpokenRank {
  readonly feed: ResidencyFeed;
  /** Null without NATS. */
  readonly bus: BusPublisherState | null;
  /** Null but in stream mode. */
  readonly stream: StreamPublisherState | null;
}

const WATCH_MS = 1_000;

/** Telling others what this host holds, from the first block to the last word. */
export class FeedRoom implements AsyncDisposable {
  readonly mode: "ring" | "stream";
  readonly feeds: HostFeeds;
  readonly #parts: FeedRoomParts;
  readonly #publishers: readonly BusPublisher[];
  readonly #streams: readonly StreamPublisher[];
  readonly #watch: Disposable;

  private constructor(parts: FeedRoomParts, mode: "ring" | "stream") {
    const { config, clock, store, incarnation, bus } = parts;
    const { events, engine } = config;
    this.mode = mode;
    this.#parts = parts;
    this.feeds = new HostFeeds({
      worker: config.node.id as WorkerId,
      incarnation,
      ranks: Array.from({ length: engine.kvRanks }, (_, rank) => rank),
      residency: store.residency,
      ring: { changesMax: events.ringChanges, blocksMax: events.ringBlocks },
      mode,
      everyMs: events.heartbeatMs,
      engineBlocksMax: events.engineBlocks,
      spaces: () => spacesOf(parts.namespaces),
    });
    this.#publishers = bus === null ? [] : this.feeds.feeds.map((feed) => this.#speak(feed, bus));
    this.#streams = bus === null || mode === "ring" ? [] : this.#write(bus);
    this.#watch = clock.every(WATCH_MS, () => this.#look());
  }

  /** Null where nobody is told anything. */
  static open(parts: FeedRoomParts): FeedRoom | null {
    const { mode } = parts.config.events;
    if (mode === "off" || parts.bus === null) return null;
    return new FeedRoom(parts, mode);
  }

  get ranks(): readonly SpokenRank[] {
    return this.feeds.feeds.map((feed, at) => ({
      feed,
      bus: this.#publishers[at]?.state ?? null,
      stream: this.#streams[at]?.state ?? null,
    }));
  }

  get cluster(): string {
    return this.#parts.config.events.cluster;
  }

  /** Blocks on the tiers of RESIDENCY_TIERS, as this host's store has told them. */
  get heldBlocks(): readonly [number, number, number] {
    const [device, host, disk] = this.#parts.store.residency.digests;
    return [device!.blocks, host!.blocks, disk!.blocks];
  }

  /** Times that the store had to begin anew. */
  get restarts(): number {
    return this.#parts.store.residency.restarts;
  }

  /** Says a last word; nothing more is told. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#watch[Symbol.dispose]();
    for (const stream of this.#streams) await stream[Symbol.asyncDispose]();
    for (const publisher of this.#publishers) await publisher[Symbol.asyncDispose]();
    this.feeds[Symbol.dispose]();
    this.#parts.health.clear("FEED_STREAM");
  }

  #speak(feed: ResidencyFeed, bus: Bus): BusPublisher {
    const { clock, config } = this.#parts;
    const { cluster } = config.events;
    return new BusPublisher({ feed, bus, cluster, clock, sendsBatches: this.mode === "ring" });
  }

  #write(bus: Bus): StreamPublisher[] {
    const { config, clock, logger } = this.#parts;
    const { cluster, stream, bucket, snapshotMessages, snapshotEveryMs } = config.events;
    const log: BusLog = (level, message, fields) => logger.log(level, message, fields);
    const { durable } = bus;
    if (durable === null) return [];
    return this.#publishers.map(
      ({ feed, snapshots }) =>
        new StreamPublisher({
          ...{ feed, snapshots, bus, durable, cluster, stream, bucket, clock, log },
          ...{ snapshotMessages, snapshotEveryMs },
        }),
    );
  }

  #look(): void {
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

/** Namespaces of which an engine has said what they are. */
function spacesOf(namespaces: Namespaces): KeySpace[] {
  return namespaces.described().map(({ key, model, blockTokens }) => {
    return { kind: "blocks", model, blockTokens, namespaceKey: key };
  });
}
