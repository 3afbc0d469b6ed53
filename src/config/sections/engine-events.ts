import { integerKind, patternKind } from "../kinds.ts";
import { optional, withDefault } from "../spec.ts";
import { zmqKind } from "../zmq-kind.ts";

/** Keys of [engine] on the engine's own KV events. */
export const engineEventKeys = {
  kvEvents: optional({
    key: "kv_events",
    kind: zmqKind({ mayListen: false, example: "tcp://127.0.0.1:5557" }),
    reload: false,
    doc:
      "Where the engine on this host publishes KV events over ZMQ (`--kv-events-config`), rank N " +
      "at the port N above it. What they say of the GPU is mirrored and passed on.",
    example: "tcp://127.0.0.1:5557",
  }),
  kvReplay: optional({
    key: "kv_events_replay",
    kind: zmqKind({ mayListen: false, example: "tcp://127.0.0.1:5558" }),
    reload: false,
    doc:
      "Its `replay_endpoint`. Without one, what was missed is known to be missing, and what the " +
      "engine held before is not known.",
    example: "tcp://127.0.0.1:5558",
  }),
  kvModel: optional({
    key: "kv_events_model",
    kind: patternKind<string>({
      name: "model name",
      pattern: /^[\x21-\x7e]{1,256}$/,
      words: "1 to 256 printable characters without blanks",
      example: "meta-llama/Llama-3.1-8B-Instruct",
    }),
    reload: false,
    doc: "The model the engine serves, as requests name it. Needed with `kv_events`.",
    example: "meta-llama/Llama-3.1-8B-Instruct",
  }),
  kvBlockTokens: optional({
    key: "kv_events_block_tokens",
    kind: integerKind({ min: 1, max: 65_536 }),
    reload: false,
    doc:
      "Tokens in a block of the engine (`--block-size`, `--page-size`). Unset: what its events " +
      "say. If they say otherwise, their size is used and `FEED_BLOCK_TOKENS` names both.",
    example: 16,
  }),
  kvRanks: withDefault({
    key: "kv_events_ranks",
    kind: integerKind({ min: 1, max: 256 }),
    standard: 1,
    reload: false,
    doc:
      "Data parallel ranks of the engine on this host. Each is told of by itself; RAM and SSD of " +
      "the host count for all of them.",
  }),
} as const;
