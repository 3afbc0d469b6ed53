import {
  ActiveLoad,
  type ActiveLoadOptions,
  type ActiveRequest,
  type LoadOutcome,
} from "../active-load.ts";
import type { TargetId, WorkerTable } from "../workers.ts";
import type { RouterId } from "./announcement.ts";
import type { LoadEvent, NewsOf, OutputProgress, SharedRequest } from "./load-codec.ts";

export interface SharedLoadOptions extends ActiveLoadOptions {
  readonly table: WorkerTable;
  readonly owners: OwnerTable;
  readonly self: RouterId;
  /** Publishes this router's load events to the other routers, in order. */
  readonly publish: (news: LoadEvent) => void;
  /** Publishes a request's output tokens. Called at most once per output block. */
  readonly publishOutput: (id: string, tokens: number) => void;
}

/** Maximum request ids in each set of ended requests. The oldest is dropped. */
const ENDED_MAX = 65_536;

/**
 * Load that all routers of a cluster count alike. Local changes are published; changes of other
 * routers are applied as if they were local. One router may route a request and another free it.
 */
export class SharedLoad extends ActiveLoad {
  readonly #options: SharedLoadOptions;
  /** Ids of ended requests. A request list that was sent earlier may still contain them. */
  readonly #ended = new Set<string>();
  /**
   * Ids of requests whose `free` event arrived before their `add` event, from different routers.
   */
  readonly #freedEarly = new Set<string>();
  /** Number of events about workers that this router does not know. */
  unknownWorkers = 0;

  constructor(options: SharedLoadOptions) {
    super(options);
    this.#options = options;
  }

  override add(request: ActiveRequest): void {
    const { owners, self, publish } = this.#options;
    const { id } = request;
    super.add(request);
    this.#ended.delete(id);
    owners.begin(id, self);
    const shared = this.share(id);
    if (shared !== null) publish({ kind: "add", request: shared });
  }

  override markPrefillComplete(id: string): LoadOutcome {
    const { owners, self, publish } = this.#options;
    const outcome = super.markPrefillComplete(id);
    if (outcome === "done") {
      owners.advance(id, self, { isPrefilling: false });
      publish({ kind: "prefill_complete", ...this.#newsOf(id) });
    }
    return outcome;
  }

  override output(id: string, tokens: number): LoadOutcome {
    const outcome = super.output(id, tokens);
    const { owners, self, publishOutput } = this.#options;
    const outputBlocks = this.#blocksOf(tokens);
    const isMore = outputBlocks > owners.progressOf(id).outputBlocks;
    if (outcome === "done" && isMore) {
      owners.advance(id, self, { isPrefilling: false, outputBlocks });
      publishOutput(id, tokens);
    }
    return outcome;
  }

  override free(id: string): LoadOutcome {
    const of = this.#newsOf(id);
    const outcome = super.free(id);
    this.#end(id);
    if (outcome === "done") this.#options.publish({ kind: "free", ...of });
    return outcome;
  }

  override expire(): readonly string[] {
    return this.#forget(super.expire());
  }

  override dropTarget(target: TargetId): readonly string[] {
    return this.#forget(super.dropTarget(target));
  }

  /**
   * Returns a request in the form sent to other routers. Null if it is not active or its worker has
   * left.
   */
  share(id: string): SharedRequest | null {
    const { table, owners, blockTokens } = this.#options;
    const request = this.find(id);
    const target = request === null ? null : table.get(request.target);
    if (request === null || target === null) return null;
    const { hashes, promptTokens, prefillTokens, expectedOutputTokens } = request;
    const { isPrefilling, outputBlocks } = owners.progressOf(id);
    const of = {
      id,
      worker: target.worker,
      rank: target.rank,
      hashes,
      promptTokens,
      prefillTokens,
    };
    return { ...of, expectedOutputTokens, isPrefilling, outputTokens: outputBlocks * blockTokens };
  }

  /** Applies a load event received from `router`. */
  hear(router: RouterId, news: LoadEvent): void {
    switch (news.kind) {
      case "add":
        if (!this.#freedEarly.delete(news.request.id)) this.#hearAdd(router, news.request);
        break;
      case "prefill_complete":
        super.markPrefillComplete(news.id);
        this.#options.owners.advance(news.id, router, { isPrefilling: false });
        break;
      case "free":
        this.#hearFree(news.id);
        break;
      default:
        news satisfies never;
    }
  }

  hearOutput(router: RouterId, news: OutputProgress): void {
    for (const [id, tokens] of news) {
      super.output(id, tokens);
      const outputBlocks = this.#blocksOf(tokens);
      this.#options.owners.advance(id, router, { isPrefilling: false, outputBlocks });
    }
  }

  /**
   * Applies one entry of a request list received from `router`. The list may be older than the
   * local state. Therefore progress never decreases, and an ended request stays ended and is freed
   * again at the others.
   */
  hearListed(router: RouterId, request: SharedRequest): void {
    const { id, worker, rank } = request;
    if (this.#ended.has(id)) this.#options.publish({ kind: "free", id, worker, rank });
    else if (this.find(id) === null) this.#hearAdd(router, request);
    else this.#hearProgress(router, request);
  }

  /** Frees requests without publishing events. Returns the number freed. */
  end(ids: Iterable<string>): number {
    let count = 0;
    for (const id of [...ids]) {
      if (super.free(id) === "done") count++;
      this.#options.owners.delete(id);
    }
    return count;
  }

  #hearAdd(router: RouterId, shared: SharedRequest): void {
    const { table, owners } = this.#options;
    const target = table.find(shared.worker, shared.rank);
    if (target === null) {
      this.unknownWorkers++;
      return;
    }
    const { id, hashes, promptTokens, prefillTokens, expectedOutputTokens } = shared;
    const of = { id, target: target.id, hashes, promptTokens, prefillTokens };
    super.add({ ...of, expectedOutputTokens });
    this.#ended.delete(id);
    owners.begin(id, router);
    this.#hearProgress(router, shared);
  }

  #hearProgress(router: RouterId, { id, isPrefilling, outputTokens }: SharedRequest): void {
    if (!isPrefilling) super.markPrefillComplete(id);
    if (outputTokens > 0) super.output(id, outputTokens);
    const outputBlocks = this.#blocksOf(outputTokens);
    this.#options.owners.advance(id, router, { isPrefilling, outputBlocks });
  }

  #hearFree(id: string): void {
    const isEarly = super.free(id) === "unknown" && !this.#ended.has(id);
    if (isEarly) remember(this.#freedEarly, id);
    this.#end(id);
  }

  #end(id: string): void {
    this.#options.owners.delete(id);
    remember(this.#ended, id);
  }

  #forget(ids: readonly string[]): readonly string[] {
    for (const id of ids) this.#options.owners.delete(id);
    return ids;
  }

  #newsOf(id: string): NewsOf {
    const request = this.find(id);
    const target = request === null ? null : this.#options.table.get(request.target);
    return { id, worker: target?.worker ?? null, rank: target?.rank ?? 0 };
  }

  #blocksOf(tokens: number): number {
    return Math.ceil(tokens / this.#options.blockTokens);
  }
}

function remember(ids: Set<string>, id: string): void {
  ids.add(id);
  if (ids.size > ENDED_MAX) ids.delete(ids.values().next().value!);
}

/** Progress of a request: prefill or decode, and full output blocks so far. */
interface Progress {
  readonly isPrefilling: boolean;
  readonly outputBlocks: number;
}

interface Owned extends Progress {
  readonly router: RouterId;
  /** Number of the entry, increasing. Entries are ordered by it. */
  readonly number: number;
}

/** Number of requests that a router owns, and a checksum of their ids and progress. */
export interface OwnedSum {
  readonly requests: number;
  readonly mix: bigint;
}

const NONE: OwnedSum = { requests: 0, mix: 0n };
const BEGUN: Progress = { isPrefilling: true, outputBlocks: 0 };

/**
 * Owner and progress of each active request. A request's owner is the router that last reported it.
 * By comparing counts and checksums per owner, two routers check that they count the same requests.
 */
export class OwnerTable {
  readonly #owners = new Map<string, Owned>();
  readonly #sums = new Map<RouterId, OwnedSum>();
  #numbers = 0;

  get requests(): number {
    return this.#owners.size;
  }
  /** Highest entry number so far. */
  get latest(): number {
    return this.#numbers;
  }

  ownerOf(id: string): RouterId | null {
    return this.#owners.get(id)?.router ?? null;
  }

  progressOf(id: string): Progress {
    return this.#owners.get(id) ?? BEGUN;
  }

  /** Adds a request, owned by `router`. Replaces an entry of the same id. */
  begin(id: string, router: RouterId): void {
    this.delete(id);
    this.#set(id, { router, number: ++this.#numbers, ...BEGUN });
  }

  /** Records progress; values never decrease. `router` becomes the request's owner. */
  advance(id: string, router: RouterId, to: Partial<Progress>): void {
    const owned = this.#owners.get(id);
    if (owned === undefined) return;
    const isPrefilling = owned.isPrefilling && (to.isPrefilling ?? true);
    const outputBlocks = Math.max(owned.outputBlocks, to.outputBlocks ?? 0);
    const number = owned.router === router ? owned.number : ++this.#numbers;
    // A new owner gives the entry a new number. Re-insert the entry to keep the map in order of
    // numbers.
    if (number !== owned.number) this.delete(id);
    else this.#count(id, owned, -1);
    this.#set(id, { router, number, isPrefilling, outputBlocks });
  }

  delete(id: string): void {
    const owned = this.#owners.get(id);
    if (owned === undefined) return;
    this.#owners.delete(id);
    this.#count(id, owned, -1);
  }

  sumOf(router: RouterId): OwnedSum {
    return this.#sums.get(router) ?? NONE;
  }

  /**
   * Yields ids and entry numbers of a router's requests with numbers in (after, upTo], lowest
   * first.
   */
  *idsOf(router: RouterId, after = 0, upTo = this.#numbers): Generator<[string, number]> {
    for (const [id, owned] of this.#owners) {
      if (owned.number > upTo) return;
      if (owned.router === router && owned.number > after) yield [id, owned.number];
    }
  }

  #set(id: string, owned: Owned): void {
    this.#owners.set(id, owned);
    this.#count(id, owned, 1);
  }

  #count(id: string, owned: Owned, by: 1 | -1): void {
    const { router, isPrefilling, outputBlocks } = owned;
    const sum = this.sumOf(router);
    const hash = Bun.hash.xxHash3(`${id} ${isPrefilling} ${outputBlocks}`);
    const next = { requests: sum.requests + by, mix: sum.mix ^ hash };
    if (next.requests === 0) this.#sums.delete(router);
    else this.#sums.set(router, next);
  }
}
