import type { NamedSection } from "../book.ts";
import { choiceKind, integerKind, type Kind, patternKind } from "../kinds.ts";
import { workerIdKind } from "../sections/node.ts";
import { optional, withDefault } from "../spec.ts";
import { zmqKind } from "../zmq-kind.ts";
import { workerUrlKind } from "./worker-url-kind.ts";

const model = optional({
  key: "model",
  kind: patternKind<string>({
    name: "model name",
    pattern: /^[\x21-\x7e]{1,256}$/,
    words: "1 to 256 printable characters without blanks",
    example: "meta-llama/Llama-3.1-8B-Instruct",
  }),
  reload: true,
  doc:
    "The model this worker serves, as requests name it. Unset, with a `url`: the one that its " +
    "`/v1/models` lists.",
  example: "meta-llama/Llama-3.1-8B-Instruct",
});

const url = optional({
  key: "url",
  kind: workerUrlKind,
  reload: true,
  doc:
    "Where its OpenAI-compatible API listens: needed for requests through the proxy. The router " +
    "also asks a vLLM there for its model, its block size and, without NATS, where it publishes " +
    "KV events.",
  example: "http://10.0.0.2:8000",
});

const anyZmqKind = zmqKind({ mayListen: false, example: "tcp://10.0.0.2:5557" });

/** Of an engine on another host: a socket of this one leads nowhere, and has no port for ranks. */
const engineKind: Kind<string> = {
  ...anyZmqKind,
  range: "tcp://, a host and a port",
  read(raw) {
    const read = anyZmqKind.read(raw);
    if (!read.ok || read.value.startsWith("tcp:")) return read;
    const instead = 'write it as in "tcp://10.0.0.2:5557"';
    return { ok: false, what: "is a socket, which has no ports for ranks", instead };
  },
};

const workerKeys = {
  model,
  role: withDefault({
    key: "role",
    kind: choiceKind(["both", "prefill", "decode"]),
    standard: "both",
    reload: true,
    doc: "`both` serves whole requests; `prefill` and `decode` are the pools of split serving.",
  }),
  url,
  ranks: withDefault({
    key: "ranks",
    kind: integerKind({ min: 1, max: 256 }),
    standard: 1,
    reload: true,
    doc: "Data parallel ranks of this worker; each is chosen, and counted, by itself.",
  }),
  totalBlocks: optional({
    key: "total_blocks",
    kind: integerKind({ min: 1, max: 2 ** 40 }),
    reload: true,
    doc: "KV blocks that one rank's GPU holds. Unset: the worker is never busy by blocks.",
    example: 12_000,
  }),
  batchTokensMax: optional({
    key: "batch_tokens_max",
    kind: integerKind({ min: 1, max: 2 ** 40 }),
    reload: true,
    doc: "Tokens of one step of its engine at most (`--max-num-batched-tokens`).",
    example: 8_192,
  }),
  blockTokens: optional({
    key: "block_tokens",
    kind: integerKind({ min: 1, max: 65_536 }),
    reload: true,
    doc:
      "Tokens in a block of its engine (`--block-size`, `--page-size`). Unset: what the engine's " +
      "events or its API say, 16 until then. If the events say otherwise, their size is used and " +
      "`ROUTER_BLOCK_TOKENS` names both.",
    example: 16,
  }),
  namespace: optional({
    key: "namespace",
    kind: patternKind<string>({
      name: "namespace key",
      pattern: /^[0-9a-f]{64}$/,
      words: "64 hex digits",
      example: "ab".repeat(32),
    }),
    reload: true,
    doc:
      "Key of the namespace whose blocks its agent keeps, as `hearth ctl status` shows it. An " +
      "agent whose events arrive says so itself.",
    example: "ab".repeat(32),
  }),
  events: optional({
    key: "events",
    kind: engineKind,
    reload: true,
    doc:
      "Where its engine publishes KV events over ZMQ, for workers without an agent; rank N at " +
      "the port N above it. A vLLM listens there if its own `endpoint` is `tcp://*:PORT`. Unset, " +
      "with a `url` and without NATS: where the engine says.",
    example: "tcp://10.0.0.2:5557",
  }),
  replay: optional({
    key: "replay",
    kind: engineKind,
    reload: true,
    doc: "Where its engine replays events that were missed (`replay_endpoint`).",
    example: "tcp://10.0.0.2:5558",
  }),
  hashSeed: optional({
    key: "hash_seed",
    kind: patternKind<string>({
      name: "hash seed",
      pattern: /^[\x21-\x7e]{1,128}$/,
      words: "1 to 128 printable characters without blanks",
      example: "42",
    }),
    reload: true,
    doc:
      "PYTHONHASHSEED of its vLLM. With it a router that starts late names the blocks that the " +
      "engine held before. Unset: vLLM's own seed and 0 are tried.",
    example: "42",
  }),
};

export const workerTables = {
  doc:
    "A worker that is known from the start, under its worker id. Workers whose agents publish " +
    "events, or who are registered over HTTP, need not stand here. All keys take effect on SIGHUP.",
  nameKind: workerIdKind,
  nameExample: "gpu-01",
  most: 4_096,
  keys: workerKeys,
} as const satisfies NamedSection;
