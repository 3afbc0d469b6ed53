import type { Hashing } from "../../identity/index.ts";
import type { KeySpace } from "../../observability/activity/index.ts";
import type { TieredStore } from "../../store/index.ts";
import { EngineFeed, type EngineFeedOptions, type FeedCounts } from "../index.ts";
import { EngineBatches } from "./engine-batches.ts";
import { EngineMirror } from "./engine-mirror.ts";
import type { HostFeeds } from "./host-feeds.ts";
import { type EngineChange, TokenBook, type TokenBookOptions } from "./token-book.ts";
import type { ZmqPublisher } from "./zmq-publisher.ts";

export interface EngineRankOptions {
  readonly rank: number;
  readonly model: string;
  /** Tokens in a block of the engine, as configured; null: what its events say, 16 until then. */
  readonly blockTokens: number | null;
  readonly hashing: Hashing;
  readonly store: Pick<TieredStore, "table" | "mirror">;
  readonly feeds: HostFeeds;
  /** Null: nobody is told in the words of engines. */
  readonly zmq: ZmqPublisher | null;
  /** Blocks that are remembered of the engine. */
  readonly blocksMax: number;
  /** Of the engine's model, with blocks of that length. */
  readonly namespaces: (blockTokens: number) => ReturnType<TokenBookOptions["namespaces"]>;
  /** Where its engine publishes events of its own; null: nowhere. */
  readonly engine: EngineEndpoints | null;
}

export interface EngineEndpoints
  extends Pick<EngineFeedOptions, "native" | "clock" | "random" | "endpoint" | "replayEndpoint"> {}

export interface EngineRankState {
  /** Whether its engine can be heard now, and nothing of what it told is missing. */
  readonly isHeard: boolean;
  readonly isKnown: boolean;
  /** What its events say; null: nothing so far. */
  readonly blockTokens: number | null;
  readonly counts: FeedCounts;
}

/** Tokens in a block where neither the configuration nor the engine says it. */
const BLOCK_TOKENS = 16;

/** What is kept of blocks of one size. */
interface Sized {
  readonly space: KeySpace;
  readonly book: TokenBook;
  readonly mirror: EngineMirror;
  readonly batches: EngineBatches | null;
}

/** What one rank's engine says of itself, to all who want to know: feed, mirror, ZMQ. */
export class EngineRank implements AsyncDisposable {
  readonly #options: EngineRankOptions;
  #sized: Sized;
  readonly #listening: Disposable;
  readonly #feed: EngineFeed | null;
  #isHeard = false;

  constructor(options: EngineRankOptions) {
    const { feeds, zmq } = options;
    this.#options = options;
    this.#sized = this.#ofSize(options.blockTokens ?? BLOCK_TOKENS);
    this.#listening = feeds.onStore((changes) => {
      const { mirror, batches } = this.#sized;
      mirror.store(changes);
      if (batches !== null) zmq?.publish(batches.store(changes));
    });
    this.#feed = this.#follow();
  }

  /** Null without an engine's own events. */
  get state(): EngineRankState | null {
    const feed = this.#feed;
    if (feed === null) return null;
    const { isKnown, engineBlockTokens: blockTokens, counts } = feed;
    return { isHeard: this.#isHeard, isKnown, blockTokens, counts };
  }

  get zmq(): ZmqPublisher | null {
    return this.#options.zmq;
  }

  changed(changes: readonly EngineChange[]): void {
    const { feeds, rank, zmq } = this.#options;
    const { space, book, mirror, batches } = this.#sized;
    const named = changes.flatMap((change) => book.learn(change));
    const plain = changes.map(({ change }) => change);
    feeds.engineChanged(rank, space, plain);
    mirror.engine(changes);
    if (batches !== null) zmq?.publish(batches.engine(changes, named));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#feed?.[Symbol.asyncDispose]();
    this.#listening[Symbol.dispose]();
    this.#sized.mirror[Symbol.dispose]();
    await this.#options.zmq?.[Symbol.asyncDispose]();
  }

  #ofSize(blockTokens: number): Sized {
    const { hashing, model, blocksMax, store, zmq } = this.#options;
    const namespaces = () => this.#options.namespaces(blockTokens);
    const book = new TokenBook({ hashing, blockTokens, blocksMax, namespaces });
    const mirror = new EngineMirror(store, book, blocksMax);
    const batches = zmq === null ? null : new EngineBatches(book, blockTokens, blocksMax);
    return { space: { kind: "tokens", model, blockTokens }, book, mirror, batches };
  }

  /** The engine's blocks have another size than was thought: nothing was stored of that size. */
  #learned(blockTokens: number): void {
    if (blockTokens === this.#sized.space.blockTokens) return;
    this.changed([{ change: { kind: "cleared", tier: null }, tokens: null, isPlain: true }]);
    const { mirror, batches } = this.#sized;
    mirror[Symbol.dispose]();
    this.#sized = this.#ofSize(blockTokens);
    if (batches !== null) this.#sized.batches?.takeKept(batches.kept);
  }

  #follow(): EngineFeed | null {
    const { engine, rank, blockTokens, blocksMax: knownBlocksMax } = this.#options;
    if (engine === null) return null;
    return new EngineFeed(
      { ...engine, rank, blockTokens, knownBlocksMax, topic: "" },
      {
        changes: (changes) => this.changed(changes),
        known: (isKnown) => this.#options.feeds.engineKnown(rank, isKnown),
        blockTokens: (size) => this.#learned(size),
        heard: (isHeard) => {
          this.#isHeard = isHeard;
        },
      },
    );
  }
}
