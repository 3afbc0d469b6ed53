import { CLUSTER_NAME } from "../../core/index.ts";
import { zmqKind } from "../address-kinds.ts";
import { choiceKind, durationKind, integerKind, patternKind } from "../kinds.ts";
import { type KeySpec, optional, section, withDefault } from "../spec.ts";

const MINUTE_MS = 60_000;
const DAY_MS = 24 * 60 * MINUTE_MS;

const mode = withDefault({
  key: "mode",
  kind: choiceKind(["off", "ring", "stream"]),
  standard: "ring",
  reload: false,
  doc:
    "How changes of residency are published over `nats.url`. `ring`: on NATS core, with the " +
    "latest ones kept here for whoever missed some, and snapshots on demand. `stream`: into a " +
    "JetStream stream, with snapshots in an object store. `off`: neither there nor over ZMQ.",
});

const cluster: KeySpec<string> = {
  key: "cluster",
  kind: patternKind<string>({
    name: "cluster name",
    pattern: CLUSTER_NAME,
    words: "1 to 64 small letters, digits, . - and _, the first a letter or digit",
    example: "hearth",
  }),
  standard: {
    is: "derived",
    words: "`peers.cluster`",
    needs: ["peers.cluster"],
    from: ({ value }) => value<string>("peers.cluster"),
  },
  reload: false,
  doc: "The name that agents and routers of one cluster share; it is in the subjects they use.",
  example: "hearth",
};

const heartbeatMs = withDefault({
  key: "heartbeat",
  kind: durationKind({ min: 50, max: 5 * MINUTE_MS, example: "1s" }),
  standard: "1s",
  reload: false,
  doc:
    "How often each rank says that it is there, how many changes there were, and what all of it " +
    "comes to. Who hears nothing for three times as long counts it as stale.",
});

const ringChanges = withDefault({
  key: "ring_changes",
  kind: integerKind({ min: 64, max: 10_000_000 }),
  standard: 16_384,
  reload: false,
  doc:
    "Changes that are kept for those who missed some, each of up to 1,024 blocks. Who missed " +
    "more takes a snapshot.",
});

const ringBlocks = withDefault({
  key: "ring_blocks",
  kind: integerKind({ min: 4_096, max: 100_000_000 }),
  standard: 1_048_576,
  reload: false,
  doc: "Blocks in those changes, at most: 8 bytes each.",
});

const engineBlocks = withDefault({
  key: "engine_blocks",
  kind: integerKind({ min: 1_024, max: 10_000_000 }),
  standard: 262_144,
  reload: false,
  doc:
    "Blocks that are remembered of what one rank's engine publishes (`engine.kv_events`), about " +
    "200 bytes each. Beyond it the oldest are told to be gone.",
});

/** Where nothing is written a name follows from the cluster's. */
function named(key: string, prefix: string, example: string, doc: string): KeySpec<string> {
  const pattern = /^[A-Za-z0-9_-]{1,80}$/;
  const words = "1 to 80 letters, digits, - and _";
  return {
    key,
    kind: patternKind<string>({ name: "name", pattern, words, example }),
    standard: {
      is: "derived",
      words: `\`${prefix}-\` and the cluster's name, with _ for its dots`,
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
  standard: 10_000,
  reload: false,
  doc:
    "After so many messages of a rank in the stream a snapshot of it is stored, and the stream " +
    "forgets what that covers.",
});

const snapshotEveryMs = withDefault({
  key: "snapshot_every",
  kind: durationKind({ min: 1_000, max: 30 * DAY_MS, example: "10m" }),
  standard: "10m",
  reload: false,
  doc:
    "After so long a snapshot is stored in any case, if anything changed. Less than the stream's " +
    "own time to live (`max_age`).",
});

const zmq = optional({
  key: "zmq",
  kind: zmqKind({ mayListen: true, example: "tcp://*:5567" }),
  reload: false,
  doc:
    "Where changes are published over ZMQ in vLLM's format, for routers that know nothing of " +
    "Hearth; rank N at the port N above it. Whoever can connect can listen: there are no " +
    "passwords on it.",
  example: "tcp://127.0.0.1:5567",
});

const zmqReplay = optional({
  key: "zmq_replay",
  kind: zmqKind({ mayListen: true, example: "tcp://*:5667" }),
  reload: false,
  doc: "Where those who missed some ask for them again, as vLLM's `replay_endpoint`.",
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
  standard: "",
  reload: false,
  doc: "Topic of the messages over ZMQ. llm-d wants `kv@`, the pod, `@` and the model.",
});

export const eventsSection = section("What this host holds, told to routers and others.", {
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
});
