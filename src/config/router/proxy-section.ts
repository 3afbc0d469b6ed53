import { booleanKind, choiceKind, durationKind, integerKind, sizeKind } from "../../core/index.ts";
import { originsKind } from "../address-kinds.ts";
import { listenOrOffKind } from "../peer-kinds.ts";
import { optionalPath, section, withDefault } from "../spec.ts";

const HOUR_MS = 3_600_000;

function duration(key: string, defaultValue: string, doc: string) {
  const kind = durationKind({ min: 10, max: 24 * HOUR_MS, example: defaultValue });
  return withDefault({ key, kind, defaultValue, doc });
}

function count(key: string, defaultValue: number, min: number, max: number, doc: string) {
  return withDefault({ key, kind: integerKind({ min, max }), defaultValue, doc });
}

function toggle(key: string, defaultValue: boolean, doc: string) {
  return withDefault({ key, kind: booleanKind, defaultValue, doc });
}

const limits = {
  bodyBytesMax: withDefault({
    key: "body_limit",
    kind: sizeKind({ min: 1024, max: 2 ** 30, example: "32MiB" }),
    defaultValue: "32MiB",
    doc:
      "Maximum bytes of a request body; a longer one is answered 413. Images are part of the " +
      "body.",
  }),
  streamsMax: count(
    "streams_max",
    4_096,
    1,
    1_000_000,
    "Maximum concurrent requests. Further requests are answered as if all workers were busy.",
  ),
};

const waits = {
  firstByteMs: duration(
    "first_byte_timeout",
    "10m",
    "Timeout until the first byte of a worker's answer.",
  ),
  idleMs: duration("idle_timeout", "2m", "Timeout between two parts of an answer."),
  healthCheck: toggle(
    "health_check",
    true,
    "Whether to check each worker's `GET /health`, and to ping the process that publishes its " +
      "KV events. A worker that does not answer gets no requests while other workers are " +
      "available.",
  ),
};

const whoMay = {
  corsOrigins: withDefault({
    key: "cors_origins",
    kind: originsKind,
    defaultValue: "",
    doc:
      "Origins whose pages may use the proxy from a browser (CORS), separated by commas; " +
      '`"*"`: all. Unset: a page of another origin is answered 403 `origin_refused`.',
    example: "https://chat.example.org",
  }),
  authorization: withDefault({
    key: "authorization",
    kind: choiceKind(["auto", "pass", "drop"]),
    defaultValue: "auto",
    doc:
      "Whether the client's `Authorization` is passed to workers. `auto`: pass it unless this " +
      "router itself requires tokens.",
  }),
  engineTokenFile: optionalPath(
    "engine_token_file",
    "/etc/hearth/engine.token",
    "A file whose first line is sent to workers as a bearer token instead (`--api-key`).",
  ),
  clientRouting: toggle(
    "client_routing",
    true,
    "Whether clients may name a worker by `x-dynamo-worker-instance-id` and a rank by " +
      "`x-dynamo-dp-rank`.",
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
};

export const proxySection = section(
  "The APIs of OpenAI, Anthropic and vLLM in front of the workers.",
  {
    listen: withDefault({
      key: "listen",
      kind: listenOrOffKind,
      defaultValue: "off",
      doc:
        "Listen address of `/v1/chat/completions` and the other inference APIs; `off`: not " +
        "served.",
    }),
    drainMs: withDefault({
      key: "drain",
      kind: durationKind({ min: 100, max: HOUR_MS, example: "30s" }),
      defaultValue: "30s",
      doc: "Timeout for running streams after SIGTERM.",
    }),
    ...limits,
    ...waits,
    ...whoMay,
    ...tokens,
  },
);
