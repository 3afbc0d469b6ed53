import { CLUSTER_NAME } from "../../core/index.ts";
import { workerUrlKind, zmqKind } from "../address-kinds.ts";
import {
  booleanKind,
  choiceKind,
  durationKind,
  integerKind,
  type Kind,
  pathKind,
  patternKind,
  type Read,
  sizeKind,
  typeName,
} from "../kinds.ts";
import { nearestWord } from "../problems.ts";
import { workerIdKind } from "../sections/node.ts";
import { type KeySpec, type NamedSection, optional, section, withDefault } from "../spec.ts";
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

const KEYS: Readonly<Record<string, KeySpec<unknown>>> = workerTables.keys;

/**
 * A worker as an object has it, by the names and rules of a file: `worker` is its id, null is as
 * good as absent.
 */
export function readListedWorker(members: Readonly<Record<string, unknown>>): Read<ListedWorker> {
  const known = ["worker", ...Object.values(KEYS).map(({ key }) => key)];
  const unknown = Object.keys(members).find((name) => !known.includes(name));
  if (unknown !== undefined) {
    const near = nearestWord(unknown, known);
    const instead = near === null ? `there are ${known.join(", ")}` : `did you mean ${near}`;
    return { ok: false, what: `unknown member ${unknown.slice(0, 40)}`, instead };
  }
  const worker: Record<string, unknown> = {};
  const fields: [string, string, Kind<unknown>, unknown][] = [
    ["name", "worker", workerTables.nameKind, undefined],
    ...Object.entries(KEYS).map(
      ([field, { key, kind, standard }]): [string, string, Kind<unknown>, unknown] => [
        field,
        key,
        kind,
        standard.is === "literal" ? standard.literal : standard.is === "unset" ? null : undefined,
      ],
    ),
  ];
  for (const [field, key, kind, standard] of fields) {
    const raw = members[key] ?? standard;
    if (raw === undefined) return { ok: false, what: `${key} is missing`, instead: "give it" };
    if (raw === null) worker[field] = null;
    else {
      const read = kind.read(raw);
      if (!read.ok) return { ...read, what: `${key} ${read.what || typeName(raw)}` };
      worker[field] = read.value;
    }
  }
  if (worker.model === null && worker.url === null) {
    return { ok: false, what: "model is missing", instead: "give it, or a url" };
  }
  return { ok: true, value: Object.freeze(worker) as ListedWorker };
}

const DAY_MS = 86_400_000;

/** Heartbeats that may be missing. */
function beats(key: string, standard: number, doc: string) {
  const kind = integerKind({ min: 2, max: 10_000 });
  return withDefault({ key, kind, standard, reload: false, doc });
}

export const eventsSection = section("Where what workers hold is known from.", {
  cluster: withDefault({
    key: "cluster",
    kind: patternKind<string>({
      name: "cluster name",
      pattern: CLUSTER_NAME,
      words: "1 to 64 small letters, digits, . - and _, the first a letter or digit",
      example: "hearth",
    }),
    standard: "hearth",
    reload: false,
    doc: "The name that agents and routers of one cluster share; it is in the subjects they use.",
  }),
  indexBytes: withDefault({
    key: "index_bytes",
    kind: sizeKind({ min: 2 ** 20, max: 2 ** 40, example: "4GiB" }),
    standard: "1GiB",
    reload: false,
    doc:
      "Memory of the picture of who holds what. Beyond it, what nobody asked for the longest is " +
      "forgotten, and answers say up to where they are exact.",
  }),
  workersMax: withDefault({
    key: "workers_max",
    kind: integerKind({ min: 1, max: 65_535 }),
    standard: 4_096,
    reload: false,
    doc: "Workers, each data parallel rank for itself, that are known at a time.",
  }),
  staleBeats: beats(
    "stale_beats",
    3,
    "A worker whose heartbeats are missing so often is chosen only where nothing else is left. " +
      "It says itself how far apart they are.",
  ),
  goneBeats: beats("gone_beats", 15, "After so many it is forgotten with all it held."),
  completeWithinMs: withDefault({
    key: "complete_within",
    kind: durationKind({ min: 50, max: DAY_MS, example: "10s" }),
    standard: "10s",
    reload: false,
    doc:
      "`/readyz` says yes once all workers that are heard of have told what they hold, and after " +
      "so long in any case.",
  }),
  stream: withDefault({
    key: "stream",
    kind: booleanKind,
    standard: false,
    reload: false,
    doc:
      "Whether events are also read from the JetStream stream that agents with " +
      '`events.mode = "stream"` fill, under the name of `router.id`, so that nothing is missed ' +
      "while this router is down.",
  }),
  stateDir: optional({
    key: "state_dir",
    kind: pathKind({ bytesMax: 4_000, example: "/var/lib/hearth/router" }),
    reload: false,
    doc:
      "A folder of this router alone in which the picture is kept over a restart. Unset: it is " +
      "asked for from replicas and workers again.",
    example: "/var/lib/hearth/router",
  }),
  stateEveryMs: withDefault({
    key: "state_every",
    kind: durationKind({ min: 100, max: DAY_MS, example: "30s" }),
    standard: "30s",
    reload: false,
    doc: "How often it is written there, and once more at the end.",
  }),
});
