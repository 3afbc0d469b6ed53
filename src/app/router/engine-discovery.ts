import { type ListedWorker, zmqOfRank } from "../../config/index.ts";
import { type Clock, sleep, type WorkerId } from "../../core/index.ts";
import type { Logger } from "../../observability/index.ts";
import { type EventSource, eventSources } from "../../router/proxy/index.ts";

export interface DiscoveryOptions {
  readonly clock: Clock;
  readonly logger: Logger;
  /** `Authorization` header to send to engines. Null: send none. */
  readonly authorization: string | null;
  /** Returns true if a worker that has answered needs no further queries. */
  isSettled(worker: WorkerId): boolean;
  /** Receives settings that an engine reported. Returns true if they differ from known ones. */
  onFacts(worker: WorkerId, facts: EngineFacts): boolean;
  /** Receives an HTTP error status of an engine's API. The worker is queried again later. */
  onRefused(worker: WorkerId, status: number): void;
}

const ANSWER_MS = 5_000;
const RETRY_MIN_MS = 500;
const RETRY_MAX_MS = 15_000;

/**
 * Queries engines by URL for their settings. Queries an engine until it reports the same settings
 * twice and is settled: a restarted engine may publish its events elsewhere or serve another model.
 */
export class EngineDiscovery implements AsyncDisposable {
  readonly #options: DiscoveryOptions;
  readonly #asking = new Map<WorkerId, AbortController>();
  readonly #ending = new Set<Promise<void>>();

  constructor(options: DiscoveryOptions) {
    this.#options = options;
  }

  /** Starts querying a worker. Aborts a query of the same worker in progress. */
  ask(worker: WorkerId, url: string): void {
    this.stop(worker);
    const stopping = new AbortController();
    this.#asking.set(worker, stopping);
    const asking = this.#ask(worker, url, stopping.signal).finally(() => {
      this.#ending.delete(asking);
    });
    this.#ending.add(asking);
  }

  stop(worker: WorkerId): void {
    this.#asking.get(worker)?.abort();
    this.#asking.delete(worker);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const worker of [...this.#asking.keys()]) this.stop(worker);
    await Promise.allSettled(this.#ending);
  }

  async #ask(worker: WorkerId, url: string, signal: AbortSignal): Promise<void> {
    const { clock, isSettled, onFacts } = this.#options;
    let warned: string | null = null;
    for (let delayMs = RETRY_MIN_MS; !signal.aborted; ) {
      const answer = await this.#answer(url, signal);
      if (signal.aborted) return;
      // The engine may restart between the requests of one query, so require the same settings
      // twice.
      const isSame = answer.kind === "facts" && !onFacts(worker, answer.facts);
      if (answer.kind !== "facts") warned = this.#failed(worker, url, answer, warned);
      await sleep(clock, delayMs, signal).catch(() => undefined);
      if (isSame && isSettled(worker)) return;
      delayMs = Math.min(delayMs * 2, RETRY_MAX_MS);
    }
  }

  async #answer(url: string, signal: AbortSignal): Promise<EngineAnswer> {
    const { clock, authorization } = this.#options;
    const late = new AbortController();
    using _timer = clock.after(ANSWER_MS, () => late.abort());
    return await askEngine(url, authorization, AbortSignal.any([signal, late.signal]));
  }

  /** Logs a failed query, unless the message equals the previous one for that worker. */
  #failed(
    worker: WorkerId,
    url: string,
    answer: Exclude<EngineAnswer, { kind: "facts" }>,
    warned: string | null,
  ): string {
    const { logger, onRefused } = this.#options;
    const isLost = answer.kind === "lost";
    const line = isLost
      ? "worker API unreachable"
      : `worker API answered ${answer.status}, retrying`;
    if (line !== warned) logger.warn(line, { worker, url });
    if (!isLost) onRefused(worker, answer.status);
    return line;
  }
}

/** Settings that an engine reports over HTTP. Null: not reported. */
export interface EngineFacts {
  readonly model: string | null;
  /** Address of rank 0's events. Rank N publishes on this port plus N. */
  readonly events: string | null;
  readonly replay: string | null;
  readonly ranks: number | null;
  readonly blockTokens: number | null;
  /** Capacity of each rank's KV cache, in blocks. */
  readonly totalBlocks: readonly (number | null)[];
}

export const NO_FACTS: EngineFacts = {
  ...{ model: null, events: null, replay: null, ranks: null, blockTokens: null },
  totalBlocks: [],
};

const BODY_BYTES_MAX = 4 * 2 ** 20;
const SERVER_ERROR = 500;

/** Result of a query. `refused`: `/v1/models` returned an error status. `lost`: no response. */
type EngineAnswer =
  | { readonly kind: "facts"; readonly facts: EngineFacts }
  | { readonly kind: "refused"; readonly status: number }
  | { readonly kind: "lost" };

/**
 * Queries an engine's settings: `/v1/models`, and for vLLM also `/kv_event_sources` and `/metrics`.
 * `authorization` is the header for engines with an API key.
 */
async function askEngine(
  url: string,
  authorization: string | null,
  signal: AbortSignal,
): Promise<EngineAnswer> {
  const base = url.replace(/\/+$/, "").replace(/\/v1$/, "");
  const bodies: string[] = [];
  for (const path of ["/v1/models", "/kv_event_sources", "/metrics"]) {
    const got = await bodyOf(`${base}${path}`, authorization, signal);
    if (got === null) return { kind: "lost" };
    // Only vLLM serves the other paths.
    const isRefused = bodies.length === 0 ? !got.isOk : got.status >= SERVER_ERROR;
    if (isRefused) return { kind: "refused", status: got.status };
    bodies.push(got.isOk ? got.text : "");
  }
  const [models, sources, metrics] = bodies as [string, string, string];
  const facts = { ...NO_FACTS, model: modelIn(models) };
  const published = publishedBy(eventSources(sources, base));
  return { kind: "facts", facts: { ...facts, ...published, ...cacheIn(metrics) } };
}

/**
 * Merges the settings that an engine reports into a configured worker. The configuration takes
 * precedence.
 */
export function withFacts(listed: ListedWorker, facts: EngineFacts): ListedWorker {
  const isOwn = listed.events !== null;
  return {
    ...listed,
    model: listed.model ?? facts.model,
    events: isOwn ? listed.events : facts.events,
    replay: isOwn ? listed.replay : facts.replay,
    ranks: isOwn || facts.ranks === null ? listed.ranks : facts.ranks,
  };
}

interface Got {
  readonly isOk: boolean;
  readonly status: number;
  readonly text: string;
}

/**
 * Requests a path and returns its status and body. Returns null if the request failed. The body is
 * empty if it exceeds the size limit.
 */
async function bodyOf(
  url: string,
  authorization: string | null,
  signal: AbortSignal,
): Promise<Got | null> {
  const headers: Record<string, string> = authorization === null ? {} : { authorization };
  try {
    const answer = await fetch(url, { signal, headers, redirect: "manual", keepalive: false });
    const { ok: isOk, status } = answer;
    let [text, bytes] = ["", 0];
    const decoder = new TextDecoder();
    for await (const chunk of answer.body ?? []) {
      bytes += chunk.length;
      if (bytes > BODY_BYTES_MAX) return { isOk, status, text: "" };
      text += decoder.decode(chunk, { stream: true });
    }
    return { isOk, status, text };
  } catch {
    return null;
  }
}

function objectIn(text: string): Readonly<Record<string, unknown>> {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null ? { ...value } : {};
  } catch {
    return {};
  }
}

const MODEL = /^[\x21-\x7e]{1,256}$/;

/** Returns the base model's id, or null if there is not exactly one. Adapters have a `parent`. */
function modelIn(text: string): string | null {
  const { data } = objectIn(text);
  const models = Array.isArray(data) ? (data as { id?: unknown; parent?: unknown }[]) : [];
  const [first, ...more] = models.filter((model) => !model?.parent);
  const id = first?.id;
  // If an engine serves several base models, the configuration must say which one to route.
  return typeof id === "string" && MODEL.test(id) && more.length === 0 ? id : null;
}

/**
 * Returns where an engine publishes its events. Returns nothing unless rank N publishes on rank 0's
 * port plus N, as engine connections require.
 */
function publishedBy(sources: readonly EventSource[]): Partial<EngineFacts> {
  const ranksInOrder = sources.every(({ rank }, place) => rank === place);
  if (sources.length === 0 || !ranksInOrder) return {};
  const events = inStep(sources.map((source) => source.events));
  if (events === null) return {};
  return { events, replay: inStep(sources.map(({ replay }) => replay)), ranks: sources.length };
}

/** Returns the address of rank 0. Null if the ranks are not on consecutive ports. */
function inStep(endpoints: readonly (string | null)[]): string | null {
  const [first = null] = endpoints;
  if (first === null) return null;
  return endpoints.every((one, rank) => one === zmqOfRank(first, rank)) ? first : null;
}

const CACHE_INFO = /^vllm:cache_config_info\{(.*)\} /gm;

function cacheIn(text: string): Partial<EngineFacts> {
  const totalBlocks: (number | null)[] = [];
  let blockTokens: number | null = null;
  for (const [, labels = ""] of text.matchAll(CACHE_INFO)) {
    const rank = numberIn(labels, "engine") ?? 0;
    if (rank > 255) continue;
    totalBlocks[rank] = numberIn(labels, "num_gpu_blocks");
    blockTokens = numberIn(labels, "block_size");
  }
  return { blockTokens, totalBlocks };
}

function numberIn(labels: string, name: string): number | null {
  const value = new RegExp(`(?:^|,)${name}="([0-9]{1,12})"`).exec(labels)?.[1];
  return value === undefined ? null : Number(value);
}
