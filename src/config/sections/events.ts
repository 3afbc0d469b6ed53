import { CLUSTER_NAME } from "../../core/index.ts";
import { zmqKind } from "../address-kinds.ts";
import { choiceKind, durationKind, integerKind, patternKind } from "../kinds.ts";
import { type KeySpec, optional, section, withDefault } from "../spec.ts";

const MINUTE_MS = 60_000;
const DAY_MS = 24 * 60 * MINUTE_MS;

const mode = withDefault({
  key: "mode",
  kind: choiceKind(["off", "ring", "stream"]),
  defaultValue: "ring",
  reload: false,
  doc:
    "How residency changes are published over `nats.url`. `ring`: on NATS core; the agent keeps " +
    "the latest changes for subscribers that missed some, and sends snapshots on demand. " +
    "`stream`: to a JetStream stream, with snapshots in an object store. `off`: neither over " +
    "NATS nor over ZMQ.",
});

const cluster: KeySpec<string> = {
  key: "cluster",
  kind: patternKind<string>({
    name: "cluster name",
    pattern: CLUSTER_NAME,
    words: "1 to 64 small letters, digits, . - and _, the first a letter or digit",
    example: "hearth",
  }),
  defaultValue: {
    is: "derived",
    words: "`peers.cluster`",
    needs: ["peers.cluster"],
    from: ({ value }) => value<string>("peers.cluster"),
  },
  reload: false,
  doc: "The name that agents and routers of one cluster share. It is part of their NATS subjects.",
  example: "hearth",
};

const heartbeatMs = withDefault({
  key: "heartbeat",
  kind: durationKind({ min: 50, max: 5 * MINUTE_MS, example: "1s" }),
  defaultValue: "1s",
  reload: false,
  doc:
    "Interval of the heartbeat of each rank, which carries the number of changes and a checksum " +
    "of the state. Subscribers count a rank as stale after three missed heartbeats.",
});

const ringChanges = withDefault({
  key: "ring_changes",
  kind: integerKind({ min: 64, max: 10_000_000 }),
  defaultValue: 16_384,
  reload: false,
  doc:
    "Number of changes to keep for subscribers that missed some, each of up to 1,024 blocks. A " +
    "subscriber that missed more requests a snapshot.",
});

const ringBlocks = withDefault({
  key: "ring_blocks",
  kind: integerKind({ min: 4_096, max: 100_000_000 }),
  defaultValue: 1_048_576,
  reload: false,
  doc: "Maximum blocks in the kept changes, 8 bytes each.",
});

const engineBlocks = withDefault({
  key: "engine_blocks",
  kind: integerKind({ min: 1_024, max: 10_000_000 }),
  defaultValue: 262_144,
  reload: false,
  doc:
    "Maximum blocks to remember of one rank's engine events (`engine.kv_events`), about 200 " +
    "bytes each. At the limit the oldest blocks are published as removed.",
});

/** A name that defaults to one derived from the cluster's name. */
function named(key: string, prefix: string, example: string, doc: string): KeySpec<string> {
  const pattern = /^[A-Za-z0-9_-]{1,80}$/;
  const words = "1 to 80 letters, digits, - and _";
  return {
    key,
    kind: patternKind<string>({ name: "name", pattern, words, example }),
    defaultValue: {
      is: "derived",
      words: `\`${prefix}-\` and the cluster's name, with its dots replaced by _`,
      needs: ["events.cluster"],
      from: ({ value }) => `${prefix}-${value<string>("events.cluster").replaceAll(".", "_")}`,
    },
    reload: false,
    doc,
    example,
  };
}

const stream = named(
  "stream",
  "kv-events",
  "kv-events-hearth",
  'The JetStream stream of `mode = "stream"`, made by the operator, that keeps the cluster\'s ' +
    "events.",
);

const bucket = named(
  "bucket",
  "kv-snapshots",
  "kv-snapshots-hearth",
  "The object store for snapshots, made by the operator.",
);

const snapshotMessages = withDefault({
  key: "snapshot_messages",
  kind: integerKind({ min: 1, max: 100_000_000 }),
  defaultValue: 10_000,
  reload: false,
  doc:
    "Number of messages of a rank in the stream after which a snapshot of the rank is stored " +
    "and the covered messages are purged.",
});

const snapshotEveryMs = withDefault({
  key: "snapshot_every",
  kind: durationKind({ min: 1_000, max: 30 * DAY_MS, example: "10m" }),
  defaultValue: "10m",
  reload: false,
  doc:
    "Interval after which a snapshot is stored if anything changed. Shorter than the stream's " +
    "`max_age`.",
});

const zmq = optional({
  key: "zmq",
  kind: zmqKind({ mayListen: true, example: "tcp://*:5567" }),
  reload: false,
  doc:
    "ZMQ endpoint where changes are published in vLLM's format, for routers without support for " +
    "Hearth; rank N uses this port plus N. There is no authentication: every client that can " +
    "connect can read the events.",
  example: "tcp://127.0.0.1:5567",
});

const zmqReplay = optional({
  key: "zmq_replay",
  kind: zmqKind({ mayListen: true, example: "tcp://*:5667" }),
  reload: false,
  doc: "ZMQ endpoint where subscribers request missed events, as vLLM's `replay_endpoint`.",
  example: "tcp://127.0.0.1:5667",
});

const zmqTopic = withDefault({
  key: "zmq_topic",
  kind: patternKind<string>({
    name: "topic",
    pattern: /^[\x21-\x7e]{0,256}$/,
    words: "up to 256 printable characters without blanks",
    example: "kv@gpu-01@llama",
  }),
  defaultValue: "",
  reload: false,
  doc: "Topic of the ZMQ messages. llm-d expects `kv@`, the pod, `@` and the model.",
});

export const eventsSection = section(
  "Publishing of this host's residency to routers and other subscribers.",
  {
    mode,
    cluster,
    heartbeatMs,
    ringChanges,
    ringBlocks,
    engineBlocks,
    stream,
    bucket,
    snapshotMessages,
    snapshotEveryMs,
    zmq,
    zmqReplay,
    zmqTopic,
  },
);
