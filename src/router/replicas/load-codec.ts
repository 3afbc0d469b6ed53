import {
  isWorkerId,
  type Json,
  parseJson,
  stringifyJson,
  type WorkerId,
} from "../../core/index.ts";
import {
  ACTIVE_SEQUENCES_TOPIC,
  type ActiveSequenceData,
  type ActiveSequenceEvent,
  decodeActiveSequences,
  decodeEnvelope,
  encodeActiveSequences,
  encodeEnvelope,
  workerNumber,
} from "../../events/index.ts";
import type { LoadNews, OutputNews, SharedRequest } from "./load-news.ts";
import { isRouterId, type RouterId } from "./router-id.ts";

const BYTES_MAX = 2 ** 20;
const DEPTH_MAX = 8;

export function encodeOutput(router: RouterId, news: OutputNews): Uint8Array {
  return Buffer.from(stringifyJson({ router, output: news }));
}

export function readOutput(data: Uint8Array): { router: RouterId; news: OutputNews } | null {
  const fields = objectIn(data);
  if (fields === null || !isRouterId(fields.router) || !Array.isArray(fields.output)) return null;
  const news: [string, number][] = [];
  for (const entry of fields.output) {
    const [id, tokens] = Array.isArray(entry) ? entry : [];
    if (typeof id !== "string" || !Number.isSafeInteger(tokens) || Number(tokens) < 0) return null;
    news.push([id, Number(tokens)]);
  }
  return { router: fields.router, news };
}

/** Dynamo's events in its envelope; what only we say stands beside its members. */
export function encodeNews(
  router: RouterId,
  number: number,
  news: readonly LoadNews[],
): Uint8Array {
  const routerId = BigInt(router);
  return encodeEnvelope({
    publisherId: routerId,
    sequence: BigInt(number),
    publishedAtMs: 0n,
    topic: ACTIVE_SEQUENCES_TOPIC,
    payload: encodeActiveSequences(news.map((one) => eventOf(one, routerId))),
  });
}

function eventOf(news: LoadNews, routerId: bigint): ActiveSequenceEvent {
  const { id, worker, rank } = news.kind === "add" ? news.request : news;
  return {
    requestId: id,
    workerId: worker === null ? 0n : workerNumber(worker),
    ...{ rank, routerId, loraName: null },
    data: news.kind === "add" ? addOf(news.request) : { kind: news.kind },
  };
}

function addOf(request: SharedRequest): ActiveSequenceData {
  const { worker, promptTokens, outputTokens, hashes, prefillTokens } = request;
  const { isPrefilling: tracksPrefill, expectedOutputTokens } = request;
  const hearth = { worker, promptTokens, outputTokens };
  return { kind: "add", hashes, tracksPrefill, expectedOutputTokens, prefillTokens, hearth };
}

export interface NewsContext {
  /** Of whom Dynamo's routers speak by number; null: nobody known. */
  readonly nameOf: (workerId: bigint) => WorkerId | null;
  readonly blockTokens: number;
}

/** Also what Dynamo's own routers say. Null: it cannot be read, or is of several routers. */
export function readNews(
  data: Uint8Array,
  context: NewsContext,
): { router: RouterId; news: LoadNews[] } | null {
  if (data.length > BYTES_MAX) return null;
  const envelope = decodeEnvelope(data);
  if (!envelope.ok || envelope.value.topic !== ACTIVE_SEQUENCES_TOPIC) return null;
  const events = decodeActiveSequences(envelope.value.payload);
  if (!events.ok) return null;
  const routerId = events.value[0]?.routerId ?? envelope.value.publisherId;
  if (events.value.some((event) => event.routerId !== routerId)) return null;
  const news = events.value.flatMap((event) => newsOf(event, context) ?? []);
  return { router: routerId.toString() as RouterId, news };
}

/** Null: of a worker that nobody here knows. */
function newsOf(event: ActiveSequenceEvent, { nameOf, blockTokens }: NewsContext): LoadNews | null {
  const { requestId: id, rank, data } = event;
  if (data.kind !== "add") return { kind: data.kind, id, worker: null, rank };
  const { hearth, tracksPrefill: isPrefilling, expectedOutputTokens } = data;
  const own = hearth !== null && isWorkerId(hearth.worker) ? hearth.worker : null;
  const worker = own ?? nameOf(event.workerId);
  if (worker === null) return null;
  const hashes = data.hashes ?? new BigUint64Array(0);
  const promptTokens = hearth?.promptTokens ?? hashes.length * blockTokens;
  const prefillTokens = data.prefillTokens ?? (isPrefilling ? promptTokens : 0);
  const outputTokens = hearth?.outputTokens ?? 0;
  const of = { id, worker, rank, hashes, promptTokens, prefillTokens, expectedOutputTokens };
  return { kind: "add", request: { ...of, isPrefilling, outputTokens } };
}

function objectIn(data: Uint8Array): { readonly [name: string]: Json | undefined } | null {
  if (data.length > BYTES_MAX) return null;
  try {
    const json = parseJson(new TextDecoder("utf-8", { fatal: true }).decode(data), DEPTH_MAX);
    return typeof json === "object" && json !== null && !Array.isArray(json) ? json : null;
  } catch {
    return null;
  }
}
