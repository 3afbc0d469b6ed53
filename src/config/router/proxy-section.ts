import { booleanKind, choiceKind, integerKind, sizeKind } from "../../core/index.ts";
import { originsKind } from "../address-kinds.ts";
import { listenOrOffKind } from "../peer-kinds.ts";
import { optionalPath, section, withDefault } from "../spec.ts";

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
    ...limits,
    ...whoMay,
  },
);
