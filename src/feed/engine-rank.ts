import type { KeySpace } from "../events/index.ts";
import type { Hashing } from "../identity/index.ts";
import { EngineFeed, type EngineFeedOptions, type FeedCounts } from "../kvevents/index.ts";
import type { TieredStore } from "../tiers/index.ts";
import { EngineBatches } from "./engine-batches.ts";
import { EngineMirror } from "./engine-mirror.ts";
import type { HostFeeds } from "./host-feeds.ts";
import { type EngineChange, TokenBook, type TokenBookOptions } from "./token-book.ts";
import type { ZmqPublisher } from "./zmq-publisher.ts";

export interface EngineRankOptions {
  readonly rank: number;
  readonly space: KeySpace & { readonly kind: "tokens" };
  readonly hashing: Hashing;
  readonly store: Pick<TieredStore, "table" | "mirror">;
  readonly feeds: HostFeeds;
  /** Null: nobody is told in the words of engines. */
  readonly zmq: ZmqPublisher | null;
  /** Blocks that are remembered of the engine. */
  readonly blocksMax: number;
  /** Of the engine's model, with blocks of its length. */
  readonly namespaces: TokenBookOptions["namespaces"];
  /** Where its engine publishes events of its own; null: nowhere. */
  readonly engine: EngineEndpoints | null;
}

export interface EngineEndpoints
  extends Pick<EngineFeedOptions, "native" | "clock" | "random" | "endpoint" | "replayEndpoint"> {}

export interface EngineRankState {
  /** Whether its engine can be heard now, and nothing of what it told is missing. */
  readonly isHeard: boolean;
  readonly isKnown: boolean;
  readonly counts: FeedCounts;
}

/** What one rank's engine says of itself, to all who want to know: feed, mirror, ZMQ. */
export class EngineRank implements AsyncDisposable {
  readonly #options: EngineRankOptions;
  readonly #book: TokenBook;
  readonly #mirror: EngineMirror;
  readonly #batches: EngineBatches | null;
  readonly #listening: Disposable;
  readonly #feed: EngineFeed | null;
  #isHeard = false;

  constructor(options: EngineRankOptions) {
    const { hashing, space, blocksMax, namespaces, store, feeds, zmq } = options;
    const { blockTokens } = space;
    this.#options = options;
    this.#book = new TokenBook({ hashing, blockTokens, blocksMax, namespaces });
    this.#mirror = new EngineMirror(store, this.#book, blocksMax);
    this.#batches = zmq === null ? null : new EngineBatches(this.#book, blockTokens, blocksMax);
    this.#listening = feeds.onStore((changes) => {
      this.#mirror.store(changes);
      if (this.#batches !== null) zmq?.publish(this.#batches.store(changes));
    });
    this.#feed = this.#follow();
  }

  /** Null without an engine's own events. */
  get state(): EngineRankState | null {
    const feed = this.#feed;
    return feed && { isHeard: this.#isHeard, isKnown: feed.isKnown, counts: feed.counts };
  }

  get zmq(): ZmqPublisher | null {
    return this.#options.zmq;
  }

  changed(changes: readonly EngineChange[]): void {
    const { feeds, rank, space, zmq } = this.#options;
    const named = changes.flatMap((change) => this.#book.learn(change));
    const plain = changes.map(({ change }) => change);
    feeds.engineChanged(rank, space, plain);
    this.#mirror.engine(changes);
    if (this.#batches !== null) zmq?.publish(this.#batches.engine(changes, named));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#feed?.[Symbol.asyncDispose]();
    this.#listening[Symbol.dispose]();
    this.#mirror[Symbol.dispose]();
    await this.#options.zmq?.[Symbol.asyncDispose]();
  }

  #follow(): EngineFeed | null {
    const { engine, rank, space, blocksMax: knownBlocksMax } = this.#options;
    if (engine === null) return null;
    const { blockTokens } = space;
    return new EngineFeed(
      { ...engine, rank, blockTokens, knownBlocksMax, topic: "" },
      {
        changes: (changes) => this.changed(changes),
        known: () => undefined,
        heard: (isHeard) => {
          this.#isHeard = isHeard;
        },
      },
    );
  }
}
