/** Settings of the proxy. docs/internals/router.md lists those that operators may set. */
export interface ProxySettings {
  /** Maximum size of a body in bytes. Longer bodies are answered 413. */
  readonly bodyBytesMax: number;
  /**
   * Maximum bytes of all bodies that arrive or wait for a worker. Beyond it, requests are answered
   * busy.
   */
  readonly bodyBudgetBytes: number;
  /** Time from the head of a request to the last byte of its body. */
  readonly bodyTimeoutMs: number;
  /** Maximum requests in flight. Beyond it, requests are answered busy. */
  readonly streamsMax: number;
  readonly connectMs: number;
  /**
   * Time from the last byte of a request to the first byte of the answer's body. The same for all
   * requests: it only ends requests that would hang for ever. It says nothing about the worker's
   * health, since a long prompt behind others may take minutes.
   */
  readonly firstByteMs: number;
  /** Time between two pieces of an answer. */
  readonly idleMs: number;
  /** Other workers to try if one cannot be connected to or reports that it is not ready. */
  readonly retriesMax: number;
  /**
   * Whether a request that a worker had received is resent to one other, if the first dies or stops
   * answering health checks before its first byte.
   */
  readonly isRetriedAfterSent: boolean;
  /** Time between two health checks of a worker. Null: no health checks. */
  readonly healthEveryMs: number | null;
  /** Timeout of a health check. */
  readonly healthTimeoutMs: number;
  /** Statuses of workers after which another worker is tried. */
  readonly retryStatuses: readonly number[];
  /** HTTP status if all workers are busy. Dynamo uses 529, and earlier 503. */
  readonly busyStatus: number;
  readonly retryAfterSeconds: number;
  /** `Authorization` header for workers: the client's, none, or this value. */
  readonly authorization: "pass" | "drop" | { readonly value: string };
  /** Whether answers carry the headers `x-hearth-request-id` and `x-hearth-worker`. */
  readonly showsWorker: boolean;
  /** Whether clients may choose workers by header. */
  readonly clientsMayRoute: boolean;
  /**
   * Answers other than streams are held up to this many bytes, so that they arrive complete or not
   * at all.
   */
  readonly heldBytesMax: number;
  /** Threads for tokenising. 0: tokenise on the main thread. */
  readonly tokenThreads: number;
  /** Timeout of tokenising a prompt. A late prompt is routed by load alone. */
  readonly tokeniseMs: number;
  /** Tokens that each thread caches for pieces of prompts. */
  readonly tokenCacheTokens: number;
  readonly models: readonly ProxyModel[];
}

/** Selects behaviour that differs between engines. */
export type EngineKind = "vllm" | "sglang";

/** Actions of docs/reference/kv-hints.md. */
export type KvHintAction = "share" | "prefetch" | "pin" | "retain" | "demote" | "transient";

/**
 * The request field that carries KV hints. `auto`: if the worker's agent publishes block names,
 * `kv_transfer_params` (vLLM) or `custom_params` (SGLang); else `off`.
 */
export type KvHintsCarrier = "auto" | "off" | "kv_transfer_params" | "custom_params" | "kv_hints";

export interface ProxyModel {
  /** Name that clients use and that the worker table has. */
  readonly name: string;
  /** Folder with `tokenizer.json`, `tokenizer_config.json` and optionally a template. */
  readonly tokenizer: string | null;
  /** File with a chat template that replaces the tokenizer's own. */
  readonly chatTemplate: string | null;
  /** JSON object passed to every template, as vLLM's `--default-chat-template-kwargs`. */
  readonly templateKwargs: string | null;
  /**
   * Routing without a tokenizer. `bytes` makes a token of every four bytes of the prompt, which
   * matches predicted prefixes and nothing that engines report. `load` ignores prompts.
   */
  readonly fallback: "bytes" | "load";
  readonly engine: EngineKind;
  /** Names under which clients request this model with an adapter. */
  readonly loras: readonly string[];
  /** Fields that are removed at every depth, for engines that refuse them. */
  readonly stripFields: readonly string[];
  /** Bootstrap port of SGLang's prefill workers. */
  readonly bootstrapPort: number;
  readonly kvHints: KvHintsCarrier;
  /** Hint actions that the proxy sends. */
  readonly kvHintActions: readonly KvHintAction[];
  /** Tokens that open and close reasoning. Null: taken from the vocabulary and template. */
  readonly reasoning: { readonly start: string; readonly end: string } | null;
}

export const PROXY_DEFAULTS: ProxySettings = {
  bodyBytesMax: 32 * 1024 * 1024,
  bodyBudgetBytes: 512 * 1024 * 1024,
  bodyTimeoutMs: 60_000,
  streamsMax: 4_096,
  connectMs: 2_000,
  firstByteMs: 600_000,
  idleMs: 120_000,
  retriesMax: 2,
  isRetriedAfterSent: true,
  healthEveryMs: 1_000,
  healthTimeoutMs: 3_000,
  retryStatuses: [503],
  busyStatus: 529,
  retryAfterSeconds: 1,
  authorization: "pass",
  showsWorker: true,
  clientsMayRoute: true,
  heldBytesMax: 4 * 1024 * 1024,
  tokenThreads: 1,
  tokeniseMs: 2_000,
  tokenCacheTokens: 4 * 1024 * 1024,
  models: [],
};

/** Settings of a model that the configuration does not name. */
export const PROXY_MODEL_DEFAULTS: Omit<ProxyModel, "name"> = {
  tokenizer: null,
  chatTemplate: null,
  templateKwargs: null,
  fallback: "bytes",
  engine: "vllm",
  loras: [],
  stripFields: [],
  bootstrapPort: 8_998,
  kvHints: "auto",
  kvHintActions: ["share", "prefetch", "pin", "retain", "demote"],
  reasoning: null,
};
