import type { Authorization } from "./headers.ts";

/** Selects behaviour that differs between engines. */
export type EngineKind = "vllm" | "sglang";

/** Actions of docs/reference/kv-hints.md. */
export type KvHintAction = "share" | "prefetch" | "pin" | "retain" | "demote" | "transient";

/**
 * The request field that carries KV hints. `auto`: if the worker's agent publishes block names,
 * `kv_transfer_params` (vLLM) or `custom_params` (SGLang); else `off`.
 */
export type KvHintsCarrier = "auto" | "off" | "kv_transfer_params" | "custom_params" | "kv_hints";

/** Settings of a model that the configuration does not name. */
export const PROXY_MODEL_DEFAULTS = {
  /** Folder with `tokenizer.json`, `tokenizer_config.json` and optionally a template. */
  tokenizer: null as string | null,
  /** File with a chat template that replaces the tokenizer's own. */
  chatTemplate: null as string | null,
  /** JSON object passed to every template, as vLLM's `--default-chat-template-kwargs`. */
  templateKwargs: null as string | null,
  /**
   * Routing without a tokenizer. `bytes` makes a token of every four bytes of the prompt, which
   * matches predicted prefixes and nothing that engines report. `load` ignores prompts.
   */
  fallback: "bytes" as "bytes" | "load",
  engine: "vllm" as EngineKind,
  /** Names under which clients request this model with an adapter. */
  loras: [] as readonly string[],
  /** Fields that are removed at every depth, for engines that refuse them. */
  stripFields: [] as readonly string[],
  /** Bootstrap port of SGLang's prefill workers. */
  bootstrapPort: 8_998,
  kvHints: "auto" as KvHintsCarrier,
  /** Hint actions that the proxy sends. */
  kvHintActions: ["share", "prefetch", "pin", "retain", "demote"] as readonly KvHintAction[],
  /** Tokens that open and close reasoning. Null: taken from the vocabulary and template. */
  reasoning: null as { readonly start: string; readonly end: string } | null,
};

export type ProxyModel = Readonly<typeof PROXY_MODEL_DEFAULTS> & {
  /** Name that clients use and that the worker table has. */
  readonly name: string;
};

/** Settings of the proxy. docs/internals/router.md lists those that operators may set. */
export const PROXY_DEFAULTS = {
  /** Maximum size of a body in bytes. Longer bodies are answered 413. */
  bodyBytesMax: 32 * 1024 * 1024,
  /**
   * Maximum bytes of all bodies that arrive or wait for a worker. Beyond it, requests are answered
   * busy.
   */
  bodyBudgetBytes: 512 * 1024 * 1024,
  /** Time from the head of a request to the last byte of its body. */
  bodyTimeoutMs: 60_000,
  /** Maximum requests in flight. Beyond it, requests are answered busy. */
  streamsMax: 4_096,
  connectMs: 2_000,
  /**
   * Time from the last byte of a request to the first byte of the answer's body. The same for all
   * requests: it only ends requests that would hang for ever. It says nothing about the worker's
   * health, since a long prompt behind others may take minutes.
   */
  firstByteMs: 600_000,
  /** Time between two pieces of an answer. */
  idleMs: 120_000,
  /** Other workers to try if one cannot be connected to or reports that it is not ready. */
  retriesMax: 2,
  /**
   * Whether a request that a worker had received is resent to one other, if the first dies or stops
   * answering health checks before its first byte.
   */
  isRetriedAfterSent: true,
  /** Time between two health checks of a worker. Null: no health checks. */
  healthEveryMs: 1_000 as number | null,
  /** Timeout of a health check. */
  healthTimeoutMs: 3_000,
  /** Statuses of workers after which another worker is tried. */
  retryStatuses: [503] as readonly number[],
  /** HTTP status if all workers are busy. Dynamo uses 529, and earlier 503. */
  busyStatus: 529,
  retryAfterSeconds: 1,
  /** `Authorization` header for workers: the client's, none, or this value. */
  authorization: "pass" as Authorization,
  /** Whether answers carry the headers `x-hearth-request-id` and `x-hearth-worker`. */
  showsWorker: true,
  /** Whether clients may choose workers by header. */
  clientsMayRoute: true,
  /**
   * Answers other than streams are held up to this many bytes, so that they arrive complete or not
   * at all.
   */
  heldBytesMax: 4 * 1024 * 1024,
  /** Threads for tokenising. 0: tokenise on the main thread. */
  tokenThreads: 1,
  /** Timeout of tokenising a prompt. A late prompt is routed by load alone. */
  tokeniseMs: 2_000,
  /** Tokens that each thread caches for pieces of prompts. */
  tokenCacheTokens: 4 * 1024 * 1024,
  models: [] as readonly ProxyModel[],
};

export type ProxySettings = Readonly<typeof PROXY_DEFAULTS>;
