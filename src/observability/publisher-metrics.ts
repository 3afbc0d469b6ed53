import type { MetricSpec } from "./catalogue.ts";
import type { MetricRegistry } from "./registry.ts";

/** Outcomes of a message with changes. */
export const PUBLISH_OUTCOMES = ["sent", "unsent"] as const;
/** Answers to queries for missed changes. */
export const QUERY_ANSWERS = [
  "range",
  "snapshot",
  "evicted",
  "busy",
  "refused",
  "dropped",
] as const;

/** Metrics of publishing residency changes. */
export const PUBLISHER_METRICS = {
  publisherChanges: {
    name: "hearth_feed_changes_total",
    type: "counter",
    help: "Numbered residency changes, over all ranks",
    labels: {},
  },
  publisherMessages: {
    name: "hearth_feed_messages_total",
    type: "counter",
    help:
      "Messages with changes; unsent: not connected, or the queue was full. Consumers " +
      "request missed changes",
    labels: { outcome: PUBLISH_OUTCOMES },
  },
  publisherQueries: {
    name: "hearth_feed_questions_total",
    type: "counter",
    help: "Queries of routers for missed changes, by answer",
    labels: { answer: QUERY_ANSWERS },
  },
  publisherSnapshots: {
    name: "hearth_feed_snapshots_total",
    type: "counter",
    help: "Snapshots taken",
    labels: {},
  },
  publisherStoredSnapshots: {
    name: "hearth_feed_stored_snapshots_total",
    type: "counter",
    help: "Snapshots stored in the object store",
    labels: {},
  },
  publisherRestarts: {
    name: "hearth_feed_restarts_total",
    type: "counter",
    help: "Overflows of the change queue, each followed by a full republication",
    labels: {},
  },
  publisherRingBlocks: {
    name: "hearth_feed_ring_blocks",
    type: "gauge",
    help: "Blocks in the changes kept for consumers that missed some",
    labels: {},
  },
  publisherEngineBlocks: {
    name: "hearth_feed_engine_blocks",
    type: "gauge",
    help: "Blocks known from engines' own events",
    labels: {},
  },
  publisherBehind: {
    name: "hearth_feed_stream_behind",
    type: "gauge",
    help: "Changes waiting for the acknowledgement of the stream",
    labels: {},
  },
  publisherHoles: {
    name: "hearth_feed_stream_holes_total",
    type: "counter",
    help:
      "Gaps in the stream because more changes waited than are kept; a snapshot closes " +
      "each gap",
    labels: {},
  },
  publisherZmqSubscribers: {
    name: "hearth_feed_zmq_subscribers",
    type: "gauge",
    help: "Connected ZMQ subscribers",
    labels: {},
  },
  publisherZmqDropped: {
    name: "hearth_feed_zmq_dropped_total",
    type: "counter",
    help: "Messages dropped because a ZMQ subscriber was too slow",
    labels: {},
  },
} as const satisfies Record<string, MetricSpec>;

type Counts<Names extends readonly string[]> = Readonly<Record<Names[number], number>>;

/** Publishing of residency changes, over all ranks. Counters since the start. */
export interface PublisherSnapshot {
  readonly changes: number;
  readonly messages: Counts<typeof PUBLISH_OUTCOMES>;
  readonly questions: Counts<typeof QUERY_ANSWERS>;
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

export function writePublisher(registry: MetricRegistry, publisher: PublisherSnapshot): void {
  registry.set("publisherChanges", publisher.changes);
  for (const outcome of PUBLISH_OUTCOMES) {
    registry.set("publisherMessages", publisher.messages[outcome], { outcome });
  }
  for (const answer of QUERY_ANSWERS) {
    registry.set("publisherQueries", publisher.questions[answer], { answer });
  }
  registry.set("publisherSnapshots", publisher.snapshots);
  registry.set("publisherStoredSnapshots", publisher.storedSnapshots);
  registry.set("publisherRestarts", publisher.restarts);
  registry.set("publisherRingBlocks", publisher.ringBlocks);
  registry.set("publisherEngineBlocks", publisher.engineBlocks);
  registry.set("publisherBehind", publisher.streamBehind);
  registry.set("publisherHoles", publisher.streamHoles);
  registry.set("publisherZmqSubscribers", publisher.zmqSubscribers);
  registry.set("publisherZmqDropped", publisher.zmqDropped);
}
