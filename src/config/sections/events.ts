import { choiceKind, integerKind, patternKind } from "../../core/index.ts";
import { zmqKind } from "../address-kinds.ts";
import { optional, section, withDefault } from "../spec.ts";

export const eventsSection = section(
  "Publishing of this host's residency to routers and other subscribers.",
  {
    mode: withDefault({
      key: "mode",
      kind: choiceKind(["off", "ring", "stream"]),
      defaultValue: "ring",
      doc:
        "How residency changes are published over `nats.url`. `ring`: on NATS core; the agent keeps " +
        "the latest changes for subscribers that missed some, and sends snapshots on demand. " +
        "`stream`: to the JetStream stream `kv-events-CLUSTER` with snapshots in the object store " +
        "`kv-snapshots-CLUSTER` (`peers.cluster`, with _ for its dots), both made by the operator. " +
        "`off`: neither over NATS nor over ZMQ.",
    }),
    snapshotMessages: withDefault({
      key: "snapshot_messages",
      kind: integerKind({ min: 1, max: 100_000_000 }),
      defaultValue: 10_000,
      doc:
        "Number of messages of a rank in the stream after which a snapshot of the rank is stored " +
        "and the covered messages are purged.",
    }),
    zmq: optional({
      key: "zmq",
      kind: zmqKind({ mayListen: true, example: "tcp://*:5567" }),
      doc:
        "ZMQ endpoint where changes are published in vLLM's format, for routers without support for " +
        "Hearth; rank N uses this port plus N. There is no authentication: every client that can " +
        "connect can read the events.",
      example: "tcp://127.0.0.1:5567",
    }),
    zmqReplay: optional({
      key: "zmq_replay",
      kind: zmqKind({ mayListen: true, example: "tcp://*:5667" }),
      doc: "ZMQ endpoint where subscribers request missed events, as vLLM's `replay_endpoint`.",
      example: "tcp://127.0.0.1:5667",
    }),
    zmqTopic: withDefault({
      key: "zmq_topic",
      kind: patternKind<string>({
        name: "topic",
        pattern: /^[\x21-\x7e]{0,256}$/,
        words: "up to 256 printable characters without blanks",
        example: "kv@gpu-01@llama",
      }),
      defaultValue: "",
      doc: "Topic of the ZMQ messages. llm-d expects `kv@`, the pod, `@` and the model.",
    }),
  },
);
