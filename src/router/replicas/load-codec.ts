import type { Bus, BusMessage, Subscription } from "../../bus/index.ts";
import { isWorkerId, stringifyJson, type WorkerId } from "../../core/index.ts";
import {
  ACTIVE_SEQUENCES_MAX,
  ACTIVE_SEQUENCES_TOPIC,
  type ActiveSequenceData,
  type ActiveSequenceEvent,
  decodeActiveSequences,
  decodeEnvelope,
  encodeActiveSequences,
  encodeEnvelope,
  workerNumber,
} from "../../events/index.ts";
import { readFields } from "../message.ts";
import { isRouterId, type RouterId } from "./announcement.ts";
import type { OwnerTable, SharedLoad } from "./shared-load.ts";

const BYTES_MAX = 2 ** 20;

export function encodeOutput(router: RouterId, news: OutputProgress): Uint8Array {
  return Buffer.from(stringifyJson({ router, output: news }));
}

export function readOutput(data: Uint8Array): { router: RouterId; news: OutputProgress } | null {
  const fields = readFields(data, BYTES_MAX);
  if (fields === null || !isRouterId(fields.router) || !Array.isArray(fields.output)) return null;
  const news: [string, number][] = [];
  for (const entry of fields.output) {
    const [id, tokens] = Array.isArray(entry) ? entry : [];
    if (typeof id !== "string" || !Number.isSafeInteger(tokens) || Number(tokens) < 0) return null;
    news.push([id, Number(tokens)]);
  }
  return { router: fields.router, news };
}

/** Encodes load events in Dynamo's event envelope. Hearth's members are added to Dynamo's. */
export function encodeLoadEvents(
  router: RouterId,
  number: number,
  news: readonly LoadEvent[],
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

function eventOf(news: LoadEvent, routerId: bigint): ActiveSequenceEvent {
  const { id, worker, rank } = news.kind === "add" ? news.request : news;
  return {
    requestId: id,
    worker: { id: worker === null ? 0n : workerNumber(worker), rank },
    ...{ routerId, loraName: null },
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
  /** Returns the worker with a Dynamo worker number. Null: the number is unknown. */
  readonly nameOf: (workerId: bigint) => WorkerId | null;
  readonly blockTokens: number;
}

/**
 * Decodes load events of Hearth's and Dynamo's routers. Returns null if the message is malformed or
 * has events of more than one router.
 */
export function readLoadEvents(
  data: Uint8Array,
  context: NewsContext,
): { router: RouterId; news: LoadEvent[] } | null {
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

/** Converts one decoded event. Returns null if the worker is unknown. */
function newsOf(
  event: ActiveSequenceEvent,
  { nameOf, blockTokens }: NewsContext,
): LoadEvent | null {
  const { requestId: id, data } = event;
  const { rank } = event.worker;
  if (data.kind !== "add") return { kind: data.kind, id, worker: null, rank };
  const { hearth, tracksPrefill: isPrefilling, expectedOutputTokens } = data;
  const own = hearth !== null && isWorkerId(hearth.worker) ? hearth.worker : null;
  const worker = own ?? nameOf(event.worker.id);
  if (worker === null) return null;
  const hashes = data.hashes ?? new BigUint64Array(0);
  const promptTokens = hearth?.promptTokens ?? hashes.length * blockTokens;
  const prefillTokens = data.prefillTokens ?? (isPrefilling ? promptTokens : 0);
  const outputTokens = hearth?.outputTokens ?? 0;
  const of = { id, worker, rank, hashes, promptTokens, prefillTokens, expectedOutputTokens };
  return { kind: "add", request: { ...of, isPrefilling, outputTokens } };
}

/**
 * An active request as sent to other routers. It names worker and rank, because target ids differ
 * between routers.
 */
export interface SharedRequest {
  readonly id: string;
  readonly worker: WorkerId;
  readonly rank: number;
  readonly hashes: BigUint64Array;
  readonly promptTokens: number;
  readonly prefillTokens: number;
  readonly expectedOutputTokens: number | null;
  /** True until the request's first output token. */
  readonly isPrefilling: boolean;
  readonly outputTokens: number;
}

/** Load event that a router publishes to the others. */
export type LoadEvent =
  | { readonly kind: "add"; readonly request: SharedRequest }
  | ({ readonly kind: "prefill_complete" } & NewsOf)
  | ({ readonly kind: "free" } & NewsOf);

export interface NewsOf {
  readonly id: string;
  /** Worker of the request. Null: the worker has left. */
  readonly worker: WorkerId | null;
  readonly rank: number;
}

/** Output tokens that each request has produced so far. A later number replaces an earlier one. */
export type OutputProgress = readonly (readonly [id: string, tokens: number])[];

/** NATS subjects between the routers of a cluster. */
interface ReplicaSubjects {
  readonly state: string;
  /** Subject of load events: Dynamo's topic, with Dynamo's event format. */
  readonly load: string;
  readonly output: string;
  readonly requestsOf: (router: RouterId) => string;
  readonly snapshotOf: (router: RouterId, worker: WorkerId | "*", rank: number | "*") => string;
}

export function replicaSubjects(cluster: string): ReplicaSubjects {
  const name = cluster.replaceAll(".", "_");
  const [said, asked] = [`kv-routers-${name}`, `kv-routers-ask-${name}`];
  return {
    state: `${said}.state`,
    load: `${said}.${ACTIVE_SEQUENCES_TOPIC}`,
    output: `${said}.output`,
    requestsOf: (router) => `${asked}.${router}.requests`,
    snapshotOf: (router, worker, rank) => `${asked}.${router}.picture.${worker}.${rank}`,
  };
}

interface RequestListsOptions {
  readonly bus: Bus;
  readonly subjects: ReplicaSubjects;
  readonly self: RouterId;
  readonly owners: OwnerTable;
  readonly load: SharedLoad;
  readonly answerMs: number;
  readonly context: NewsContext;
}

/** Reply header that gives the position of the next page. Absent on the last page. */
const NEXT = "Hearth-Next";
const PAGE_REQUESTS = ACTIVE_SEQUENCES_MAX;
const PAGE_BYTES = 256 * 1024;
/** Maximum pages accepted for one request list. */
const PAGES_MAX = 4_096;

/**
 * Serves this router's list of active requests to other routers, and fetches theirs. Needed by
 * routers that joined late or lost events.
 */
export class RequestLists implements Disposable {
  readonly #options: RequestListsOptions;
  readonly #subscription: Subscription;

  constructor(options: RequestListsOptions) {
    const { bus, subjects, self } = options;
    this.#options = options;
    this.#subscription = bus.subscribe(subjects.requestsOf(self), (message) =>
      this.#reply(message),
    );
  }

  [Symbol.dispose](): void {
    this.#subscription.unsubscribe();
  }

  /**
   * Fetches the request list of `router` and applies it. Requests of `router` that are not in the
   * list end. Resolves false if the fetch fails.
   */
  async take(router: RouterId, signal: AbortSignal): Promise<boolean> {
    const { owners, load } = this.#options;
    const upTo = owners.latest;
    const seen = new Set<string>();
    let after: string | null = "0";
    for (let page = 0; page < PAGES_MAX && after !== null; page++) {
      const answer = await this.#ask(router, after, signal);
      if (answer === null) return false;
      for (const request of answer.requests) {
        seen.add(request.id);
        load.hearListed(router, request);
      }
      after = answer.next;
    }
    const left: string[] = [];
    for (const [id] of owners.idsOf(router, 0, upTo)) if (!seen.has(id)) left.push(id);
    load.end(left);
    return after === null;
  }

  async #ask(
    router: RouterId,
    after: string,
    signal: AbortSignal,
  ): Promise<{ requests: SharedRequest[]; next: string | null } | null> {
    const { bus, subjects, answerMs: timeoutMs } = this.#options;
    const data = Buffer.from(after);
    const outcome = await bus.request(subjects.requestsOf(router), data, { timeoutMs, signal });
    if (outcome.kind !== "reply") return null;
    const read = readLoadEvents(outcome.message.data, this.#options.context);
    if (read?.router !== router) return null;
    const requests = read.news.flatMap((news) => (news.kind === "add" ? [news.request] : []));
    return { requests, next: outcome.message.headers[NEXT] ?? null };
  }

  #reply({ data, reply }: BusMessage): void {
    const { bus, owners, load, self } = this.#options;
    const after = Number(Buffer.from(data.subarray(0, 20)).toString());
    if (reply === null || !Number.isSafeInteger(after)) return;
    const news: LoadEvent[] = [];
    let bytes = 0;
    let next: number | null = null;
    for (const [id, number] of owners.idsOf(self, after)) {
      if (news.length >= PAGE_REQUESTS || bytes >= PAGE_BYTES) break;
      next = number;
      const request = load.share(id);
      if (request === null) continue;
      news.push({ kind: "add", request });
      bytes += request.hashes.byteLength + id.length;
    }
    const isLast = next === null || owners.idsOf(self, next).next().done === true;
    const headers = isLast ? {} : { [NEXT]: String(next) };
    bus.publish(reply, encodeLoadEvents(self, 0, news), { headers });
  }
}
