import type { MetricSpec } from "./catalogue.ts";
import type { MetricRegistry } from "./registry.ts";

/** Outcomes of a message with changes. */
export const FEED_OUTCOMES = ["sent", "unsent"] as const;
/** Answers to queries for missed changes. */
export const FEED_ANSWERS = ["range", "snapshot", "evicted", "busy", "refused", "dropped"] as const;

/** Metrics of publishing residency changes. */
export const FEED_METRICS = {
  feedChanges: {
    name: "hearth_feed_changes_total",
    type: "counter",
    help: "Numbered residency changes, over all ranks",
    labels: {},
  },
  feedMessages: {
    name: "hearth_feed_messages_total",
    type: "counter",
    help: "Messages with changes; unsent: not connected, or the queue was full. Consumers request missed changes",
    labels: { outcome: FEED_OUTCOMES },
  },
  feedQuestions: {
    name: "hearth_feed_questions_total",
    type: "counter",
    help: "Queries of routers for missed changes, by answer",
    labels: { answer: FEED_ANSWERS },
  },
  feedSnapshots: {
    name: "hearth_feed_snapshots_total",
    type: "counter",
    help: "Snapshots taken",
    labels: {},
  },
  feedStored: {
    name: "hearth_feed_stored_snapshots_total",
    type: "counter",
    help: "Snapshots stored in the object store",
    labels: {},
  },
  feedRestarts: {
    name: "hearth_feed_restarts_total",
    type: "counter",
    help: "Overflows of the change queue, each followed by a full republication",
    labels: {},
  },
  feedRingBlocks: {
    name: "hearth_feed_ring_blocks",
    type: "gauge",
    help: "Blocks in the changes kept for consumers that missed some",
    labels: {},
  },
  feedEngineBlocks: {
    name: "hearth_feed_engine_blocks",
    type: "gauge",
    help: "Blocks known from engines' own events",
    labels: {},
  },
  feedBehind: {
    name: "hearth_feed_stream_behind",
    type: "gauge",
    help: "Changes waiting for the acknowledgement of the stream",
    labels: {},
  },
  feedHoles: {
    name: "hearth_feed_stream_holes_total",
    type: "counter",
    help: "Gaps in the stream because more changes waited than are kept; a snapshot closes each gap",
    labels: {},
  },
  feedZmqSubscribers: {
    name: "hearth_feed_zmq_subscribers",
    type: "gauge",
    help: "Connected ZMQ subscribers",
    labels: {},
  },
  feedZmqDropped: {
    name: "hearth_feed_zmq_dropped_total",
    type: "counter",
    help: "Messages dropped because a ZMQ subscriber was too slow",
    labels: {},
  },
} as const satisfies Record<string, MetricSpec>;

type Counts<Names extends readonly string[]> = Readonly<Record<Names[number], number>>;

/** Publishing of residency changes, over all ranks. Counters since the start. */
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
