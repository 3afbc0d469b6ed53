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

function duration(key: string, defaultValue: string, doc: string) {
  const kind = durationKind({ min: 10, max: 24 * HOUR_MS, example: defaultValue });
  return withDefault({ key, kind, defaultValue, reload: false, doc });
}

function count(key: string, defaultValue: number, min: number, max: number, doc: string) {
  return withDefault({ key, kind: integerKind({ min, max }), defaultValue, reload: false, doc });
}

function toggle(key: string, defaultValue: boolean, doc: string) {
  return withDefault({ key, kind: booleanKind, defaultValue, reload: false, doc });
}

const limits = {
  bodyBytesMax: withDefault({
    key: "body_limit",
    kind: sizeKind({ min: 1024, max: 2 ** 30, example: "32MiB" }),
    defaultValue: "32MiB",
    reload: false,
    doc:
      "Maximum bytes of a request body; a longer one is answered 413. Images are part of the " +
      "body.",
  }),
  bodyBudgetBytes: withDefault({
    key: "body_budget",
    kind: sizeKind({ min: 2 ** 20, max: 2 ** 40, example: "512MiB" }),
    defaultValue: "512MiB",
    reload: false,
    doc:
      "Maximum bytes of all request bodies together, from the first byte until a worker " +
      "answers. A request above the limit is answered as if all workers were busy; the slowest " +
      "bodies are aborted first. At least `body_limit`.",
  }),
  bodyTimeoutMs: duration(
    "body_timeout",
    "1m",
    "Timeout for receiving a body; a slower request is answered 408 and its connection is closed.",
  ),
  connectionsMax: count(
    "connections_max",
    16_384,
    8,
    1_000_000,
    "Maximum connections of clients. At the limit, idle connections are closed and further " +
      "requests are answered 503. Each connection needs a file descriptor.",
  ),
  streamsMax: count(
    "streams_max",
    4_096,
    1,
    1_000_000,
    "Maximum concurrent requests. Further requests are answered as if all workers were busy.",
  ),
  heldBytesMax: withDefault({
    key: "held_answer",
    kind: sizeKind({ min: 1, max: 2 ** 30, example: "4MiB" }),
    defaultValue: "4MiB",
    reload: false,
    doc:
      "Maximum bytes of an answer to buffer if it is not a stream, so that the client gets a " +
      "whole answer or an error. A longer answer is passed on as it arrives.",
  }),
};

const waits = {
  connectMs: duration("connect_timeout", "2s", "Timeout of connecting to a worker."),
  firstByteMs: duration(
    "first_byte_timeout",
    "10m",
    "Timeout until the first byte of a worker's answer.",
  ),
  idleMs: duration("idle_timeout", "2m", "Timeout between two parts of an answer."),
  retries: count(
    "retries",
    2,
    0,
    16,
    "Maximum other workers to try if a worker cannot be reached or answers 503.",
  ),
  resend: toggle(
    "resend",
    true,
    "Whether a request is sent to another worker if the first worker accepted it and then dies, " +
      "or fails its health check, before the first byte. Off: a request is retried only if the " +
      "connection failed.",
  ),
  healthCheck: toggle(
    "health_check",
    true,
    "Whether to check each worker's `GET /health`, and to ping the process that publishes its " +
      "KV events. A worker that does not answer gets no requests while other workers are " +
      "available.",
  ),
  healthEveryMs: duration("health_every", "1s", "Interval of health checks of a worker."),
  healthTimeoutMs: duration(
    "health_timeout",
    "3s",
    "Timeout of a health check. With the default of `health_every`, a dead engine is detected " +
      "within 4 s.",
  ),
  retryAfterMs: duration(
    "retry_after",
    "1s",
    "Value of `Retry-After` if all workers are busy, in whole seconds.",
  ),
};

const whoMay = {
  corsOrigins: withDefault({
    key: "cors_origins",
    kind: originsKind,
    defaultValue: "",
    reload: false,
    doc:
      "Origins whose pages may use the proxy from a browser (CORS), separated by commas; " +
      '`"*"`: all. Unset: a page of another origin is answered 403 `origin_refused`.',
    example: "https://chat.example.org",
  }),
  authorization: withDefault({
    key: "authorization",
    kind: choiceKind(["auto", "pass", "drop"]),
    defaultValue: "auto",
    reload: false,
    doc:
      "Whether the client's `Authorization` is passed to workers. `auto`: pass it unless this " +
      "router itself requires tokens.",
  }),
  engineTokenFile: optional({
    key: "engine_token_file",
    kind: pathKind({ bytesMax: 4_000, example: "/etc/hearth/engine.token" }),
    reload: false,
    doc: "A file whose first line is sent to workers as a bearer token instead (`--api-key`).",
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
    "Whether answers name the worker and the request in `x-hearth-worker` and " +
      "`x-hearth-request-id`; `/v1/explain/{id}` takes the latter.",
  ),
};

const tokens = {
  tokenThreads: count(
    "token_threads",
    1,
    0,
    64,
    "Threads that tokenize prompts; 0: tokenize on the event loop, which blocks it.",
  ),
  tokenTimeoutMs: duration(
    "token_timeout",
    "2s",
    "Timeout of tokenization; after it the prompt is routed without tokens.",
  ),
  tokenCache: count(
    "token_cache",
    4 * 2 ** 20,
    0,
    2 ** 30,
    "Maximum tokens that each thread caches, so that only the new part of a conversation is " +
      "tokenized.",
  ),
};

export const proxySection = section(
  "The APIs of OpenAI, Anthropic and vLLM in front of the workers.",
  {
    listen: withDefault({
      key: "listen",
      kind: listenOrOffKind,
      defaultValue: "off",
      reload: false,
      doc:
        "Listen address of `/v1/chat/completions` and the other inference APIs; `off`: not " +
        "served.",
    }),
    drainMs: withDefault({
      key: "drain",
      kind: durationKind({ min: 100, max: HOUR_MS, example: "30s" }),
      defaultValue: "30s",
      reload: false,
      doc: "Timeout for running streams after SIGTERM.",
    }),
    ...limits,
    ...waits,
    ...whoMay,
    ...tokens,
  },
);
