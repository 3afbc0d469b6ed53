import { originsKind } from "../address-kinds.ts";
import {
  booleanKind,
  choiceKind,
  durationKind,
  integerKind,
  pathKind,
  sizeKind,
} from "../kinds.ts";
import { listenOrOffKind } from "../peer-kinds.ts";
import { optional, section, withDefault } from "../spec.ts";

const HOUR_MS = 3_600_000;

function duration(key: string, standard: string, doc: string) {
  const kind = durationKind({ min: 10, max: 24 * HOUR_MS, example: standard });
  return withDefault({ key, kind, standard, reload: false, doc });
}

function count(key: string, standard: number, min: number, max: number, doc: string) {
  return withDefault({ key, kind: integerKind({ min, max }), standard, reload: false, doc });
}

function toggle(key: string, standard: boolean, doc: string) {
  return withDefault({ key, kind: booleanKind, standard, reload: false, doc });
}

const limits = {
  bodyBytesMax: withDefault({
    key: "body_limit",
    kind: sizeKind({ min: 1024, max: 2 ** 30, example: "32MiB" }),
    standard: "32MiB",
    reload: false,
    doc: "Requests with a longer body are answered 413: pictures travel in bodies.",
  }),
  bodyBudgetBytes: withDefault({
    key: "body_budget",
    kind: sizeKind({ min: 2 ** 20, max: 2 ** 40, example: "512MiB" }),
    standard: "512MiB",
    reload: false,
    doc:
      "Bytes of all request bodies together, from the first byte until a worker answers. A body " +
      "without room is answered as where all workers are busy; slow ones are ended first. At " +
      "least `body_limit`.",
  }),
  bodyTimeoutMs: duration(
    "body_timeout",
    "1m",
    "How long a body may take to arrive; a slower one is answered 408 and its connection closed.",
  ),
  connectionsMax: count(
    "connections_max",
    16_384,
    8,
    1_000_000,
    "Connections of clients. Beyond it idle ones are closed, and requests that would need more " +
      "are answered 503. Each takes a file descriptor.",
  ),
  streamsMax: count(
    "streams_max",
    4_096,
    1,
    1_000_000,
    "Requests that may be under way at once. More are answered as where all workers are busy.",
  ),
  heldBytesMax: withDefault({
    key: "held_answer",
    kind: sizeKind({ min: 1, max: 2 ** 30, example: "4MiB" }),
    standard: "4MiB",
    reload: false,
    doc:
      "An answer that is no stream is held back up to so many bytes, so that it comes whole or " +
      "is an error. What is longer is passed on as it comes.",
  }),
};

const waits = {
  connectMs: duration("connect_timeout", "2s", "How long a worker may take to be connected to."),
  firstByteMs: duration(
    "first_byte_timeout",
    "10m",
    "How long a worker may compute before the first byte of its answer.",
  ),
  idleMs: duration("idle_timeout", "2m", "How long an answer may pause once it has begun."),
  retries: count(
    "retries",
    2,
    0,
    16,
    "Other workers that are tried if one cannot be connected to, or answers 503.",
  ),
  resend: toggle(
    "resend",
    true,
    "Whether a request that a worker had already taken is sent to one other if the first dies, " +
      "or stops answering health checks, before its first byte. Off: only workers that could not " +
      "be connected to are replaced.",
  ),
  healthCheck: toggle(
    "health_check",
    true,
    "Whether each worker's `GET /health` is asked for, and the process behind it pinged where it " +
      "publishes KV events. A worker that does not answer is left out while others are there.",
  ),
  healthEveryMs: duration("health_every", "1s", "Time between two health checks of a worker."),
  healthTimeoutMs: duration(
    "health_timeout",
    "3s",
    "How long a health check may take. With `health_every`, a dead engine is out within 4 s.",
  ),
  retryAfterMs: duration(
    "retry_after",
    "1s",
    "What `Retry-After` says where all workers are busy, in whole seconds.",
  ),
};

const whoMay = {
  corsOrigins: withDefault({
    key: "cors_origins",
    kind: originsKind,
    standard: "",
    reload: false,
    doc:
      "Origins whose pages may use the proxy from a browser (CORS), with commas between them; " +
      '`"*"`: all. Unset: a page of another origin is answered 403 `origin_refused`.',
    example: "https://chat.example.org",
  }),
  authorization: withDefault({
    key: "authorization",
    kind: choiceKind(["auto", "pass", "drop"]),
    standard: "auto",
    reload: false,
    doc:
      "Whether workers see the client's `Authorization`. `auto`: unless this router asks for " +
      "tokens itself, which are none of the workers' business.",
  }),
  engineTokenFile: optional({
    key: "engine_token_file",
    kind: pathKind({ bytesMax: 4_000, example: "/etc/hearth/engine.token" }),
    reload: false,
    doc: "Its first line is sent to workers as a bearer token instead (`--api-key`).",
    example: "/etc/hearth/engine.token",
  }),
  clientRouting: toggle(
    "client_routing",
    true,
    "Whether clients may name a worker by `x-dynamo-worker-instance-id` and a rank by " +
      "`x-dynamo-dp-rank`.",
  ),
  answerHeaders: toggle(
    "answer_headers",
    true,
    "Whether answers say who gave them, in `x-hearth-worker` and `x-hearth-request-id`; the " +
      "latter is what `/v1/explain/{id}` knows.",
  ),
};

const tokens = {
  tokenThreads: count(
    "token_threads",
    1,
    0,
    64,
    "Threads that turn prompts into tokens; 0: none, everything else waits meanwhile.",
  ),
  tokenTimeoutMs: duration(
    "token_timeout",
    "2s",
    "A prompt that is not in tokens by then is routed without them.",
  ),
  tokenCache: count(
    "token_cache",
    4 * 2 ** 20,
    0,
    2 ** 30,
    "Tokens that each of those threads remembers, so that of a conversation that goes on only " +
      "what is new is turned into tokens.",
  ),
};

export const proxySection = section(
  "The APIs of OpenAI, Anthropic and vLLM in front of the workers.",
  {
    listen: withDefault({
      key: "listen",
      kind: listenOrOffKind,
      standard: "off",
      reload: false,
      doc: "Where `/v1/chat/completions` and the like are served; `off`: nowhere.",
    }),
    drainMs: withDefault({
      key: "drain",
      kind: durationKind({ min: 100, max: HOUR_MS, example: "30s" }),
      standard: "30s",
      reload: false,
      doc: "How long streams that are under way may go on after SIGTERM.",
    }),
    ...limits,
    ...waits,
    ...whoMay,
    ...tokens,
  },
);
