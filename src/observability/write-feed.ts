import { FEED_ANSWERS, FEED_OUTCOMES } from "./catalogue-feed.ts";
import type { MetricRegistry } from "./registry.ts";

type Counts<Names extends readonly string[]> = Readonly<Record<Names[number], number>>;

/** Telling others what this host holds, all ranks together. Counters since the start. */
export interface FeedSnapshot {
  readonly changes: number;
  readonly messages: Counts<typeof FEED_OUTCOMES>;
  readonly questions: Counts<typeof FEED_ANSWERS>;
  readonly snapshots: number;
  readonly storedSnapshots: number;
  readonly restarts: number;
  readonly ringBlocks: number;
  readonly engineBlocks: number;
  readonly streamBehind: number;
  readonly streamHoles: number;
  readonly zmqSubscribers: number;
  readonly zmqDropped: number;
}

export function writeFeed(registry: MetricRegistry, feed: FeedSnapshot): void {
  registry.set("feedChanges", feed.changes);
  for (const outcome of FEED_OUTCOMES) {
    registry.set("feedMessages", feed.messages[outcome], { outcome });
  }
  for (const answer of FEED_ANSWERS) {
    registry.set("feedQuestions", feed.questions[answer], { answer });
  }
  registry.set("feedSnapshots", feed.snapshots);
  registry.set("feedStored", feed.storedSnapshots);
  registry.set("feedRestarts", feed.restarts);
  registry.set("feedRingBlocks", feed.ringBlocks);
  registry.set("feedEngineBlocks", feed.engineBlocks);
  registry.set("feedBehind", feed.streamBehind);
  registry.set("feedHoles", feed.streamHoles);
  registry.set("feedZmqSubscribers", feed.zmqSubscribers);
  registry.set("feedZmqDropped", feed.zmqDropped);
}
