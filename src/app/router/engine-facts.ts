import type { ListedWorker } from "../../config/index.ts";

/** What an engine says of itself over HTTP; null: it does not say. */
export interface EngineFacts {
  readonly model: string | null;
  /** Of rank 0; rank N is at the port N above it. */
  readonly events: string | null;
  readonly replay: string | null;
  readonly ranks: number | null;
  readonly blockTokens: number | null;
  /** Blocks of the KV cache, by rank. */
  readonly totalBlocks: readonly (number | null)[];
}

export const NO_FACTS: EngineFacts = {
  ...{ model: null, events: null, replay: null, ranks: null, blockTokens: null },
  totalBlocks: [],
};

const BODY_BYTES_MAX = 4 * 2 ** 20;

/**
 * Asks an engine how it is set up: `/v1/models`, and of vLLM `/kv_event_sources` and `/metrics`.
 * Null: its API cannot be reached.
 */
export async function askEngine(url: string, signal: AbortSignal): Promise<EngineFacts | null> {
  const base = url.replace(/\/+$/, "").replace(/\/v1$/, "");
  const models = await bodyOf(`${base}/v1/models`, signal);
  if (models === null) return null;
  const sources = await bodyOf(`${base}/kv_event_sources`, signal);
  const metrics = await bodyOf(`${base}/metrics`, signal);
  const { host } = new URL(base);
  return {
    ...NO_FACTS,
    model: modelIn(models),
    ...sourcesIn(sources ?? "", host.replace(/:[0-9]+$/, "")),
    ...cacheIn(metrics ?? ""),
  };
}

/** What the configuration says stands above what the engine says. */
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

/** Null: it cannot be had. An answer that is no success is an empty body. */
async function bodyOf(url: string, signal: AbortSignal): Promise<string | null> {
  try {
    const answer = await fetch(url, { signal, redirect: "error", keepalive: false });
    if (!answer.ok) return "";
    let [text, bytes] = ["", 0];
    const decoder = new TextDecoder();
    for await (const chunk of answer.body ?? []) {
      bytes += chunk.length;
      if (bytes > BODY_BYTES_MAX) return "";
      text += decoder.decode(chunk, { stream: true });
    }
    return text;
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

/** The base model: adapters have a parent. */
function modelIn(text: string): string | null {
  const { data } = objectIn(text);
  const models = Array.isArray(data) ? (data as { id?: unknown; parent?: unknown }[]) : [];
  const [first, ...more] = models.filter((model) => !model?.parent);
  const id = first?.id;
  // An engine with several names for its model leaves the choice to the configuration.
  return typeof id === "string" && MODEL.test(id) && more.length === 0 ? id : null;
}

const TCP = /^tcp:\/\/(\*|[A-Za-z0-9.:_[\]-]+):([0-9]{1,5})$/;
const ANY_HOSTS = ["*", "0.0.0.0", "[::]", "::"];

/** An address of the engine as others reach it; null: it is none that they can reach. */
function reachable(endpoint: unknown, host: string): { base: string; port: number } | null {
  const match = typeof endpoint === "string" ? TCP.exec(endpoint) : null;
  const port = Number(match?.[2]);
  if (match === null || port < 1 || port > 65_535) return null;
  return { base: `tcp://${ANY_HOSTS.includes(match[1]!) ? host : match[1]}`, port };
}

/** Publishers of vLLM by rank, which it lists with the port of each. */
function sourcesIn(text: string, host: string): Partial<EngineFacts> {
  const sources = Object.entries(objectIn(text))
    .map(([rank, source]) => ({ ...(source as Record<string, unknown>), rank: Number(rank) }))
    .sort((a, b) => a.rank - b.rank) as Record<string, unknown>[];
  const isZmq = sources.every((source) => {
    return source.publisher === "zmq" && source.enable_kv_cache_events === true;
  });
  if (sources.length === 0 || !isZmq) return {};
  const events = inStep(sources, "endpoint", host);
  if (events === null) return {};
  return { events, replay: inStep(sources, "replay_endpoint", host), ranks: sources.length };
}

/** The address of rank 0; null: those of the others are not at the ports above it. */
function inStep(
  sources: readonly Readonly<Record<string, unknown>>[],
  field: string,
  host: string,
): string | null {
  const places = sources.map((source) => reachable(source[field], host));
  const [first] = places;
  const isInStep = places.every((place, rank) => {
    const isNext = place?.base === first?.base && place?.port === (first?.port ?? 0) + rank;
    return isNext && sources[rank]!.rank === rank;
  });
  return first && isInStep ? `${first.base}:${first.port}` : null;
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
