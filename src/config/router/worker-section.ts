import {
  booleanKind,
  choiceKind,
  integerKind,
  type Kind,
  nearestWord,
  patternKind,
  type Read,
  refuse,
  sizeKind,
} from "../../core/index.ts";
import { workerUrlKind, zmqKind } from "../address-kinds.ts";
import { clusterNameKind, workerIdKind } from "../sections/node.ts";
import {
  type KeySpec,
  type NamedSection,
  optional,
  optionalPath,
  section,
  withDefault,
} from "../spec.ts";
import type { ListedWorker } from "./schema.ts";

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
    "The model that this worker serves, by the name that requests use. If unset and `url` is " +
    "set, the model that its `/v1/models` lists.",
  example: "meta-llama/Llama-3.1-8B-Instruct",
});

const url = optional({
  key: "url",
  kind: workerUrlKind,
  reload: true,
  doc:
    "URL of its OpenAI-compatible API, required for requests through the proxy. The router also " +
    "queries a vLLM there for its model, its block size and, without NATS, the endpoint of its " +
    "KV events.",
  example: "http://10.0.0.2:8000",
});

const anyZmqKind = zmqKind({ mayListen: false, example: "tcp://10.0.0.2:5557" });

/**
 * Endpoint of an engine on another host. Unix sockets are refused: they are local and have no port
 * for ranks.
 */
const engineKind: Kind<string> = {
  ...anyZmqKind,
  range: "tcp://, a host and a port",
  read(raw) {
    const read = anyZmqKind.read(raw);
    if (!read.ok || read.value.startsWith("tcp:")) return read;
    const instead = 'write it as in "tcp://10.0.0.2:5557"';
    return { ok: false, what: "is a Unix socket, which has no ports for ranks", instead };
  },
};

const workerKeys = {
  model,
  role: withDefault({
    key: "role",
    kind: choiceKind(["both", "prefill", "decode"]),
    defaultValue: "both",
    reload: true,
    doc: "`both` serves whole requests; `prefill` and `decode` are the pools of split serving.",
  }),
  url,
  ranks: withDefault({
    key: "ranks",
    kind: integerKind({ min: 1, max: 256 }),
    defaultValue: 1,
    reload: true,
    doc: "Data parallel ranks of this worker; each is chosen and counted separately.",
  }),
  totalBlocks: optional({
    key: "total_blocks",
    kind: integerKind({ min: 1, max: 2 ** 40 }),
    reload: true,
    doc:
      "KV blocks that the GPU of one rank can hold. If unset, blocks never make the worker " +
      "busy.",
    example: 12_000,
  }),
  batchTokensMax: optional({
    key: "batch_tokens_max",
    kind: integerKind({ min: 1, max: 2 ** 40 }),
    reload: true,
    doc: "Maximum tokens in one step of its engine (`--max-num-batched-tokens`).",
    example: 8_192,
  }),
  blockTokens: optional({
    key: "block_tokens",
    kind: integerKind({ min: 1, max: 65_536 }),
    reload: true,
    doc:
      "Tokens per block of its engine (`--block-size`, `--page-size`). If unset, the size in " +
      "the engine's events or API is used, and 16 until then. If the events differ, their size " +
      "is used and `ROUTER_BLOCK_TOKENS` names both.",
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
      "Key of the namespace whose blocks its agent stores, as `hearth ctl status` shows it. " +
      "Agents that publish events report it themselves.",
    example: "ab".repeat(32),
  }),
  events: optional({
    key: "events",
    kind: engineKind,
    reload: true,
    doc:
      "ZMQ endpoint where its engine publishes KV events, for workers without an agent; rank N " +
      "uses this port plus N. A vLLM listens there if its own `endpoint` is `tcp://*:PORT`. If " +
      "unset, and with `url` but without NATS, the endpoint that the engine reports is used.",
    example: "tcp://10.0.0.2:5557",
  }),
  replay: optional({
    key: "replay",
    kind: engineKind,
    reload: true,
    doc: "ZMQ endpoint where its engine replays missed events (`replay_endpoint`).",
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
      "PYTHONHASHSEED of its vLLM. With it, a router that starts later can identify blocks that " +
      "the engine stored before. If unset, vLLM's default seed and 0 are tried.",
    example: "42",
  }),
};

export const workerTables = {
  doc:
    "A worker that is known from the start, under its worker id. Workers whose agents publish " +
    "events, and workers registered over HTTP, need not be listed. All keys take effect on " +
    "SIGHUP.",
  nameKind: workerIdKind,
  nameExample: "gpu-01",
  most: 4_096,
  keys: workerKeys,
} as const satisfies NamedSection;

const KEYS: Readonly<Record<string, KeySpec<unknown>>> = workerTables.keys;

/**
 * Reads a worker from an object, with the names and rules of the file. `worker` is its id; null
 * counts as absent.
 */
export function readListedWorker(members: Readonly<Record<string, unknown>>): Read<ListedWorker> {
  const { nameKind } = workerTables;
  const name = {
    field: "name",
    key: "worker",
    kind: nameKind as Kind<unknown>,
    default: undefined,
  };
  const fields = [name, ...Object.entries(KEYS).map(fieldOf)];
  const known = fields.map(({ key }) => key);
  const unknown = Object.keys(members).find((member) => !known.includes(member));
  if (unknown !== undefined) {
    const near = nearestWord(unknown, known);
    const instead = near === null ? `there are ${known.join(", ")}` : `did you mean ${near}`;
    return refuse(`unknown member ${unknown.slice(0, 40)}`, instead);
  }
  const worker: Record<string, unknown> = {};
  for (const { field, key, kind, default: defaultValue } of fields) {
    const raw = members[key] ?? defaultValue;
    if (raw === undefined) return refuse(`${key} is missing`, "give it");
    const read = raw === null ? ({ ok: true, value: null } as const) : kind.read(raw);
    if (!read.ok) return refuse(`${key} ${read.what}`, read.instead);
    worker[field] = read.value;
  }
  if (worker.model === null && worker.url === null) {
    return refuse("model is missing", "give it, or a url");
  }
  return { ok: true, value: Object.freeze(worker) as ListedWorker };
}

/** A key with its default as TOML; null if it may be unset. */
function fieldOf([field, { key, kind, defaultValue }]: [string, KeySpec<unknown>]) {
  return { field, key, kind, default: defaultValue.is === "literal" ? defaultValue.literal : null };
}

export const eventsSection = section("Sources of the blocks that workers hold.", {
  cluster: withDefault({
    key: "cluster",
    kind: clusterNameKind,
    defaultValue: "hearth",
    doc:
      "The name that agents and routers of one cluster share. It is part of their NATS " +
      "subjects.",
  }),
  indexBytes: withDefault({
    key: "index_bytes",
    kind: sizeKind({ min: 2 ** 20, max: 2 ** 40, example: "4GiB" }),
    defaultValue: "1GiB",
    doc:
      "Maximum memory of the prefix index. Above it, the least recently requested blocks are " +
      "dropped, and answers state how far they are exact.",
  }),
  stream: withDefault({
    key: "stream",
    kind: booleanKind,
    defaultValue: false,
    doc:
      "Whether events are also read from the JetStream stream that agents with " +
      '`events.mode = "stream"` fill, under the name of `router.id`, so that nothing is missed ' +
      "while this router is down.",
  }),
  stateDir: optionalPath(
    "state_dir",
    "/var/lib/hearth/router",
    "A folder, used by this router only, that stores the index across restarts. If unset, the " +
      "router requests the index from replicas and workers again.",
  ),
});
