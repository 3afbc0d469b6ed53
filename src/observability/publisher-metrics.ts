import type { MetricSpec } from "./catalogue.ts";
import type { MetricRegistry } from "./registry.ts";

/** What becomes of a message with changes. */
export const FEED_OUTCOMES = ["sent", "unsent"] as const;
/** What others ask a rank for, and what they are told. */
export const FEED_ANSWERS = ["range", "snapshot", "evicted", "busy", "refused", "dropped"] as const;

/** Metrics of telling others what this host holds. */
export const FEED_METRICS = {
  feedChanges: {
    name: "hearth_feed_changes_total",
    type: "counter",
    help: "Changes of residency that were given a number, all ranks together",
    labels: {},
  },
  feedMessages: {
    name: "hearth_feed_messages_total",
    type: "counter",
    help: "Messages with changes; unsent: no connection, or no room. Who misses them asks",
    labels: { outcome: FEED_OUTCOMES },
  },
  feedQuestions: {
    name: "hearth_feed_questions_total",
    type: "counter",
    help: "Questions of routers for what they missed, by the answer",
    labels: { answer: FEED_ANSWERS },
  },
  feedSnapshots: {
    name: "hearth_feed_snapshots_total",
    type: "counter",
    help: "Whole pictures that were taken",
    labels: {},
  },
  feedStored: {
    name: "hearth_feed_stored_snapshots_total",
    type: "counter",
    help: "Whole pictures that the object store took",
    labels: {},
  },
  feedRestarts: {
    name: "hearth_feed_restarts_total",
    type: "counter",
    help: "Times more changed at once than may wait, so that all of it was told anew",
    labels: {},
  },
  feedRingBlocks: {
    name: "hearth_feed_ring_blocks",
    type: "gauge",
    help: "Blocks in the changes that are kept for those who missed some",
    labels: {},
  },
  feedEngineBlocks: {
    name: "hearth_feed_engine_blocks",
    type: "gauge",
    help: "Blocks that engines' own events speak of",
    labels: {},
  },
  feedBehind: {
    name: "hearth_feed_stream_behind",
    type: "gauge",
    help: "Changes that wait for the word of the stream's broker",
    labels: {},
  },
  feedHoles: {
    name: "hearth_feed_stream_holes_total",
    type: "counter",
    help: "Times more waited for the stream than is kept: a snapshot closes the hole",
    labels: {},
  },
  feedZmqSubscribers: {
    name: "hearth_feed_zmq_subscribers",
    type: "gauge",
    help: "Connections that listen over ZMQ",
    labels: {},
  },
  feedZmqDropped: {
    name: "hearth_feed_zmq_dropped_total",
    type: "counter",
    help: "Messages that one listener over ZMQ was too slow for",
    labels: {},
  },
} as const satisfies Record<string, MetricSpec>;

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
