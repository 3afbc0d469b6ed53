import {
  choiceKind,
  integerKind,
  type Kind,
  listKind,
  parseJson,
  pathKind,
  patternKind,
  quoteText,
  typeName,
} from "../../core/index.ts";
import { type KeySpec, type NamedSection, optional, withDefault } from "../spec.ts";

const MODEL_EXAMPLE = "meta-llama/Llama-3.1-8B-Instruct";

const KV_HINTS_CARRIERS = [
  "auto",
  "off",
  "kv_transfer_params",
  "custom_params",
  "kv_hints",
] as const;
const KV_HINT_ACTIONS = ["share", "prefetch", "pin", "retain", "demote", "transient"] as const;

const modelNameKind = patternKind<string>({
  name: "model name",
  pattern: /^[\x21-\x2b\x2d-\x7e]{1,256}$/,
  words: "1 to 256 printable characters without blanks and commas",
  example: MODEL_EXAMPLE,
});

const model: KeySpec<string> = {
  key: "model",
  kind: modelNameKind,
  defaultValue: { is: "required" },
  reload: true,
  doc: "The name of the model, as clients and workers use it.",
  example: MODEL_EXAMPLE,
};

const path = (example: string) => pathKind({ bytesMax: 4_000, example });

const TEMPLATE_KWARGS = '{"enable_thinking": false}';

/** JSON kept as text, so that numbers reach templates unchanged. */
const jsonObjectKind: Kind<string> = {
  name: "JSON object",
  range: "the text of a JSON object",
  read(raw) {
    const instead = `write a JSON object in quotes, as in '${TEMPLATE_KWARGS}'`;
    if (typeof raw !== "string") return { ok: false, what: `is ${typeName(raw)}`, instead };
    return isJsonObject(raw)
      ? { ok: true, value: raw }
      : { ok: false, what: `is ${quoteText(raw)}, not a JSON object`, instead };
  },
  write: (text) => text,
};

function isJsonObject(text: string): boolean {
  try {
    const value = parseJson(text);
    return typeof value === "object" && value !== null && !Array.isArray(value);
  } catch {
    return false;
  }
}

const tokenizerKeys = {
  tokenizer: optional({
    key: "tokenizer",
    kind: path("/var/lib/hearth/models/llama"),
    reload: true,
    doc:
      "The folder with the model's `tokenizer.json`, `tokenizer_config.json` and, if it has " +
      "one, `chat_template.jinja`, as in the model's repository. If unset, prompts are routed " +
      "by `fallback`.",
    example: "/var/lib/hearth/models/llama",
  }),
  chatTemplate: optional({
    key: "chat_template",
    kind: path("/etc/hearth/llama.jinja"),
    reload: true,
    doc: "A chat template instead of the model's own (vLLM's and SGLang's `--chat-template`).",
    example: "/etc/hearth/llama.jinja",
  }),
  templateKwargs: optional({
    key: "default_chat_template_kwargs",
    kind: jsonObjectKind,
    reload: true,
    doc:
      "Arguments of every chat template, as JSON: the value of vLLM's " +
      "`--default-chat-template-kwargs`.",
    example: TEMPLATE_KWARGS,
  }),
  fallback: withDefault({
    key: "fallback",
    kind: choiceKind(["bytes", "load"]),
    defaultValue: "bytes",
    reload: true,
    doc:
      "How to route prompts whose tokens are unknown. `bytes`: four bytes of text count as a " +
      "token, which matches predicted blocks but not blocks that engines report. `load`: by " +
      "load only.",
  }),
};

const reasoningKind = patternKind<string>({
  name: "token",
  pattern: /^[\x21-\x7e]{1,64}$/,
  words: "1 to 64 printable characters without blanks",
  example: "<think>",
});

const modelKeys = {
  model,
  ...tokenizerKeys,
  engine: withDefault({
    key: "engine",
    kind: choiceKind(["vllm", "sglang"]),
    defaultValue: "vllm",
    reload: true,
    doc:
      "The engine that serves the model. Engines differ in how they join texts and how they " +
      "transfer KV from prefill to decode.",
  }),
  loras: withDefault({
    key: "loras",
    kind: listKind(modelNameKind, { items: "names", empty: "" }),
    defaultValue: "",
    reload: true,
    doc: "Adapters that the workers serve under their own names (vLLM's `--lora-modules`).",
    example: "sql-adapter,legal-adapter",
  }),
  stripFields: withDefault({
    key: "strip_fields",
    kind: listKind(
      patternKind<string>({
        name: "member",
        pattern: /^[A-Za-z_][A-Za-z0-9_.-]{0,63}$/,
        words: "1 to 64 letters, digits and _",
        example: "nvext",
      }),
      { items: "members", empty: "" },
    ),
    defaultValue: "",
    reload: true,
    doc:
      "Members to remove from requests, at any depth, before they are sent to workers: for " +
      "engines that refuse unknown members. vLLM and SGLang accept them.",
    example: "cache_control,nvext",
  }),
  bootstrapPort: withDefault({
    key: "bootstrap_port",
    kind: integerKind({ min: 1, max: 65_535 }),
    defaultValue: 8_998,
    reload: true,
    doc:
      "Port where SGLang's decode workers connect to prefill workers " +
      "(`--disaggregation-bootstrap-port`).",
  }),
  kvHints: withDefault({
    key: "kv_hints",
    kind: choiceKind(KV_HINTS_CARRIERS),
    defaultValue: "auto",
    reload: true,
    doc:
      "The member of a request that carries KV hints to its worker (docs/reference/kv-hints.md). " +
      "`auto`: for workers with a Hearth agent `kv_transfer_params` (vLLM) or `custom_params` " +
      "(SGLang), else `off`.",
  }),
  kvHintActions: withDefault({
    key: "kv_hint_actions",
    kind: listKind(choiceKind(KV_HINT_ACTIONS), { items: "KV hint actions", empty: "" }),
    defaultValue: "share,prefetch,pin,retain,demote",
    reload: true,
    doc:
      "The KV hints that the proxy sends. `transient` marks reasoning so that it is not kept: " +
      "use it only if the chat template drops reasoning from the next prompt.",
  }),
  reasoningStart: optional({
    key: "reasoning_start",
    kind: reasoningKind,
    reload: true,
    doc:
      "The token that opens reasoning. If unset, it is derived from the vocabulary and the " +
      "template.",
    example: "<think>",
  }),
  reasoningEnd: optional({
    key: "reasoning_end",
    kind: reasoningKind,
    reload: true,
    doc: "The token that closes it; set with `reasoning_start`.",
    example: "</think>",
  }),
};

export const modelTables = {
  doc:
    "A model, as the proxy tokenizes and routes it. The table may have any name. Models without " +
    "a table are routed by `fallback`. All keys take effect on SIGHUP.",
  nameKind: patternKind<string>({
    name: "name",
    pattern: /^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/,
    words: "1 to 64 letters, digits, - and _",
    example: "llama",
  }),
  nameExample: "llama",
  most: 256,
  keys: modelKeys,
} as const satisfies NamedSection;
