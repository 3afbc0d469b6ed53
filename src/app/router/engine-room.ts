import { type ListedWorker, zmqOfRank } from "../../config/index.ts";
import type { Clock, Random, WorkerId } from "../../core/index.ts";
import { EngineFeed } from "../../kvevents/index.ts";
import type { Native } from "../../native/index.ts";
import type { RouterUpkeep } from "../../router/index.ts";
import type { EngineListening } from "./worker-book.ts";

export interface EngineRoomParts {
  readonly native: Native;
  readonly clock: Clock;
  readonly random: Random;
  readonly upkeep: Pick<RouterUpkeep, "engine">;
}

/** Listens to the engines of workers without an agent, rank by rank. */
export class EngineRoom implements EngineListening, AsyncDisposable {
  readonly #parts: EngineRoomParts;
  readonly #feeds = new Map<WorkerId, AsyncDisposableStack>();
  /** Feeds that are closing. */
  readonly #ending = new Set<Promise<void>>();

  constructor(parts: EngineRoomParts) {
    this.#parts = parts;
  }

  listen(listed: ListedWorker): void {
    const worker = listed.name as WorkerId;
    this.leave(worker);
    if (listed.events === null) return;
    const feeds = new AsyncDisposableStack();
    for (let rank = 0; rank < listed.ranks; rank++)
      this.#follow(listed, listed.events, rank, feeds);
    this.#feeds.set(worker, feeds);
  }

  leave(worker: WorkerId): void {
    const feeds = this.#feeds.get(worker);
    if (feeds === undefined) return;
    this.#feeds.delete(worker);
    const ending = feeds.disposeAsync().finally(() => this.#ending.delete(ending));
    this.#ending.add(ending);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const worker of [...this.#feeds.keys()]) this.leave(worker);
    await Promise.allSettled(this.#ending);
  }

  #follow(
    { name, blockTokens, replay }: ListedWorker,
    events: string,
    rank: number,
    feeds: AsyncDisposableStack,
  ): void {
    const { native, clock, random, upkeep } = this.#parts;
    // Disposed in the opposite order: nothing comes for a target that is over.
    const target = feeds.use(upkeep.engine(name as WorkerId, rank));
    const endpoint = zmqOfRank(events, rank);
    const replayEndpoint = replay === null ? null : zmqOfRank(replay, rank);
    const options = { native, clock, random, endpoint, replayEndpoint, rank, blockTokens };
    feeds.use(
      new EngineFeed(
        { ...options, topic: "" },
        {
          changes: (changes) => target.apply(changes.map(({ change }) => change)),
          known: (isKnown) => target.setKnown(isKnown),
          heard: (isHeard) => target.setHeard(isHeard),
        },
      ),
    );
  }
}
