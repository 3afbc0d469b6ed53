import type { Authorization } from "./headers.ts";

/** Engine software, for behaviour that differs between engines. */
export type EngineKind = "vllm" | "sglang";

/** Hint actions that docs/reference/kv-hints.md defines. */
export type KvHintAction = "share" | "prefetch" | "pin" | "retain" | "demote" | "transient";

/**
 * Request field that carries KV hints. `auto`: if the worker's agent publishes block names,
 * `kv_transfer_params` (vLLM) or `custom_params` (SGLang); otherwise `off`.
 */
export type KvHintsCarrier = "auto" | "off" | "kv_transfer_params" | "custom_params" | "kv_hints";

/**
 * Defaults of a model's settings. They also apply to models that the configuration does not name.
 */
export const PROXY_MODEL_DEFAULTS = {
  /**
   * Folder with `tokenizer.json`, `tokenizer_config.json` and optionally a chat template. Null: no
   * tokenizer.
   */
  tokenizer: null as string | null,
  /** File with a chat template to use instead of the tokenizer's own. */
  chatTemplate: null as string | null,
  /**
   * JSON object whose members every template receives, like vLLM's
   * `--default-chat-template-kwargs`.
   */
  templateKwargs: null as string | null,
  /**
   * Routing of prompts that cannot be tokenised. `bytes` makes a token of every four bytes of the
   * prompt; these tokens match predicted prefixes, but never blocks that engines report. `load`
   * ignores prompts.
   */
  fallback: "bytes" as "bytes" | "load",
  engine: "vllm" as EngineKind,
  /** Names under which clients request this model with an adapter (LoRA). */
  loras: [] as readonly string[],
  /** Fields to remove from requests at every depth, for engines that reject them. */
  stripFields: [] as readonly string[],
  /** Bootstrap port of SGLang's prefill workers for KV transfer. */
  bootstrapPort: 8_998,
  kvHints: "auto" as KvHintsCarrier,
  /** Hint actions that the proxy may send. */
  kvHintActions: ["share", "prefetch", "pin", "retain", "demote"] as readonly KvHintAction[],
  /**
   * Texts of the tokens that open and close reasoning. Null: found in the vocabulary and the
   * template.
   */
  reasoning: null as { readonly start: string; readonly end: string } | null,
};

export type ProxyModel = Readonly<typeof PROXY_MODEL_DEFAULTS> & {
  /** Name of the model for clients and in the worker table. */
  readonly name: string;
};

/**
 * Defaults of the proxy's settings. docs/internals/router.md lists those that operators may set.
 */
export const PROXY_DEFAULTS = {
  /** Maximum size of a request body in bytes. Longer bodies are rejected with status 413. */
  bodyBytesMax: 32 * 1024 * 1024,
  /**
   * Maximum bytes of all bodies that are arriving or waiting for a worker. At the limit, requests
   * are rejected as busy.
   */
  bodyBudgetBytes: 512 * 1024 * 1024,
  /** Maximum time in ms from the head of a request to the last byte of its body. */
  bodyTimeoutMs: 60_000,
  /** Maximum requests in progress. At the limit, requests are rejected as busy. */
  streamsMax: 4_096,
  connectMs: 2_000,
  /**
   * Maximum time in ms from the last byte of a request to the first byte of the answer's body. Only
   * ends requests that would hang for ever. Does not indicate the worker's health, because a long
   * prompt that waits for others may take minutes.
   */
  firstByteMs: 600_000,
  /** Maximum time in ms between two pieces of an answer. */
  idleMs: 120_000,
  /** Maximum number of other workers to try if a worker cannot be connected to or is not ready. */
  retriesMax: 2,
  /**
   * If true, a request that a worker received is resent to one other worker if the first one dies
   * or stops answering health checks before its first byte.
   */
  isRetriedAfterSent: true,
  /** Interval in ms between two health checks of a worker. Null: no health checks. */
  healthEveryMs: 1_000 as number | null,
  /** Timeout in ms of a health check. */
  healthTimeoutMs: 3_000,
  /** HTTP statuses of an answer after which another worker is tried. */
  retryStatuses: [503] as readonly number[],
  /**
   * HTTP status to return if all workers are busy. Dynamo returns 529; earlier versions returned
   * 503.
   */
  busyStatus: 529,
  retryAfterSeconds: 1,
  /** `Authorization` header to send to workers: the client's (`pass`), none, or a fixed value. */
  authorization: "pass" as Authorization,
  /** If true, answers have the headers `x-hearth-request-id` and `x-hearth-worker`. */
  showsWorker: true,
  /** If true, clients may choose workers with a header. */
  clientsMayRoute: true,
  /**
   * Maximum bytes of an answer to hold back until it is complete, so that the client gets all of it
   * or an error. Does not apply to streams.
   */
  heldBytesMax: 4 * 1024 * 1024,
  /** Number of threads that tokenise prompts. 0: tokenise on the main thread. */
  tokenThreads: 1,
  /** Timeout in ms of tokenising a prompt. A late prompt is routed by load alone. */
  tokeniseMs: 2_000,
  /** Maximum tokens that each thread caches for pieces of prompts. */
  tokenCacheTokens: 4 * 1024 * 1024,
  models: [] as readonly ProxyModel[],
};

export type ProxySettings = Readonly<typeof PROXY_DEFAULTS>;
