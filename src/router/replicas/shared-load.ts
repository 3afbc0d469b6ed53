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
  /** Receives this router's load events, in order. */
  readonly publish: (news: LoadEvent) => void;
  /** Receives output progress, at most once per output block. */
  readonly publishOutput: (id: string, tokens: number) => void;
}

/** Maximum ended request ids remembered, per set. */
const ENDED_MAX = 65_536;

/**
 * Load shared by all replicas of a router: local changes are published, and those of other routers
 * are applied as if local. A request may be routed by one router and freed by another.
 */
export class SharedLoad extends ActiveLoad {
  readonly #options: SharedLoadOptions;
  /** A request list in flight may still contain these ids. */
  readonly #ended = new Set<string>();
  /** Freed at one router before the event of their start arrived from another. */
  readonly #freedEarly = new Set<string>();
  /** Events of workers unknown here. */
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

  /** Returns the request as sent to replicas. Null if it is not active or its worker has left. */
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

  /** Applies an event of `router`. */
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
   * Applies one entry of a request list of `router`. The list may be older than what is known here,
   * so known state wins, and requests that have ended are skipped.
   */
  hearListed(router: RouterId, request: SharedRequest): void {
    const { id, worker, rank } = request;
    if (this.#ended.has(id)) this.#options.publish({ kind: "free", id, worker, rank });
    else if (this.find(id) === null) this.#hearAdd(router, request);
    else this.#hearProgress(router, request);
  }

  /** Ends requests that their router no longer owns, without publishing. Returns their number. */
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

/** Progress of a request. */
interface Progress {
  readonly isPrefilling: boolean;
  readonly outputBlocks: number;
}

interface Owned extends Progress {
  readonly router: RouterId;
  /** Increases with each entry; orders entries by their start. */
  readonly number: number;
}

/** Number of requests a router owns, and a checksum of them and their progress. */
export interface OwnedSum {
  readonly requests: number;
  readonly mix: bigint;
}

const NONE: OwnedSum = { requests: 0, mix: 0n };
const BEGUN: Progress = { isPrefilling: true, outputBlocks: 0 };

/**
 * Owner of each active request, and its progress. The router that last reported a request owns it.
 * Sums per router let two routers check that they count the same requests.
 */
export class OwnerTable {
  readonly #owners = new Map<string, Owned>();
  readonly #sums = new Map<RouterId, OwnedSum>();
  #numbers = 0;

  get requests(): number {
    return this.#owners.size;
  }
  /** Number of the latest entry. */
  get latest(): number {
    return this.#numbers;
  }

  ownerOf(id: string): RouterId | null {
    return this.#owners.get(id)?.router ?? null;
  }

  progressOf(id: string): Progress {
    return this.#owners.get(id) ?? BEGUN;
  }

  /** Records a new request. */
  begin(id: string, router: RouterId): void {
    this.delete(id);
    this.#set(id, { router, number: ++this.#numbers, ...BEGUN });
  }

  /** Records progress, which only increases. The reporting router becomes the owner. */
  advance(id: string, router: RouterId, to: Partial<Progress>): void {
    const owned = this.#owners.get(id);
    if (owned === undefined) return;
    const isPrefilling = owned.isPrefilling && (to.isPrefilling ?? true);
    const outputBlocks = Math.max(owned.outputBlocks, to.outputBlocks ?? 0);
    const number = owned.router === router ? owned.number : ++this.#numbers;
    // Re-insert, so that entries stay in order of their numbers.
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

  /** Yields the request ids of a router with numbers in (after, upTo], oldest first. */
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
