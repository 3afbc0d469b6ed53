/** How the proxy behaves; docs/router.md has the table of what operators may set. */
export interface ProxySettings {
  /** What says that it is longer is answered 413. */
  readonly bodyBytesMax: number;
  /** Bytes of all bodies that are arriving or waiting for their worker; more are answered busy. */
  readonly bodyBudgetBytes: number;
  /** From the head of a request to the last byte of its body. */
  readonly bodyTimeoutMs: number;
  /** Requests that may be under way at once; more are answered like a busy cluster. */
  readonly streamsMax: number;
  readonly connectMs: number;
  /** From the last byte of a request to the first of the answer's body. */
  readonly firstByteMs: number;
  /** Between two pieces of an answer. */
  readonly idleMs: number;
  /** Other workers that are tried when one cannot be connected to, or says that it is not ready. */
  readonly retriesMax: number;
  /**
   * Whether a request that a worker had already taken is given to one other when the first dies, or
   * stops answering health checks, before its first byte.
   */
  readonly isRetriedAfterSent: boolean;
  /** Between two questions for a worker's health; null: none is asked. */
  readonly healthEveryMs: number | null;
  /** How long such a question may take. */
  readonly healthTimeoutMs: number;
  /** Answers of workers after which another one is tried. */
  readonly retryStatuses: readonly number[];
  /** Of an answer that says: all workers are busy. Dynamo's is 529; it was 503. */
  readonly busyStatus: number;
  readonly retryAfterSeconds: number;
  /** What workers see as `Authorization`: the client's, none, or this value. */
  readonly authorization: "pass" | "drop" | { readonly value: string };
  /** Whether answers say in `x-hearth-request-id` and `x-hearth-worker` who gave them. */
  readonly tellsWorker: boolean;
  /** Whether clients may name workers by header. */
  readonly clientsMayRoute: boolean;
  /** An answer that is no stream is held back up to so many bytes: it comes whole or not at all. */
  readonly heldBytesMax: number;
  /** Threads that tokenise; 0: none, it happens in between everything else. */
  readonly tokenThreads: number;
  /** A prompt whose tokens are not there by then is routed by load alone. */
  readonly tokeniseMs: number;
  /** Tokens of pieces of prompts that a thread remembers. */
  readonly tokenCacheTokens: number;
  readonly models: readonly ProxyModel[];
}

/** What engines refuse, or do in their own way. */
export type EngineKind = "vllm" | "sglang";

/** Actions of docs/reference/kv-hints.md. */
export type KvHintAction = "share" | "prefetch" | "pin" | "retain" | "demote" | "transient";

/**
 * The member of a request that carries KV hints. `auto`: for workers whose agents publish block
 * names `kv_transfer_params` (vLLM) or `custom_params` (SGLang), else `off`.
 */
export type KvHintsCarrier = "auto" | "off" | "kv_transfer_params" | "custom_params" | "kv_hints";

export interface ProxyModel {
  /** As clients write it and as the worker table has it. */
  readonly name: string;
  /** A folder with `tokenizer.json`, `tokenizer_config.json` and maybe a template. */
  readonly tokenizer: string | null;
  /** A file with a chat template instead of the tokenizer's own. */
  readonly chatTemplate: string | null;
  /** A JSON object that every template is given: vLLM's `--default-chat-template-kwargs`. */
  readonly templateKwargs: string | null;
  /**
   * Without a tokenizer: `bytes` makes a token of each four bytes of the prompt, which finds what
   * was predicted and nothing that engines report; `load` does not look at prompts.
   */
  readonly fallback: "bytes" | "load";
  readonly engine: EngineKind;
  /** Names under which clients ask for this model with an adapter. */
  readonly loras: readonly string[];
  /** Members that are taken out wherever they are: for engines that refuse them. */
  readonly stripFields: readonly string[];
  /** Of SGLang's prefill workers. */
  readonly bootstrapPort: number;
  readonly kvHints: KvHintsCarrier;
  /** Actions that the proxy sends. */
  readonly kvHintActions: readonly KvHintAction[];
  /** What opens and closes reasoning; null: what the vocabulary and template have. */
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
  tellsWorker: true,
  clientsMayRoute: true,
  heldBytesMax: 4 * 1024 * 1024,
  tokenThreads: 1,
  tokeniseMs: 2_000,
  tokenCacheTokens: 4 * 1024 * 1024,
  models: [],
};

/** Of a model that the configuration does not name. */
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
