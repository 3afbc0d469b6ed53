import type { ActiveLoad, ActiveRequest, LoadOutcome, TargetLoad } from "../active-load.ts";
import type { TargetId, WorkerTable } from "../workers.ts";
import type { RouterId } from "./announcement.ts";
import type { LoadNews, NewsOf, OutputNews, SharedRequest } from "./load-codec.ts";

export interface SharedLoadOptions {
  readonly load: ActiveLoad;
  readonly table: WorkerTable;
  readonly owners: OwnerBook;
  readonly self: RouterId;
  /** Told of what this router did, in order. */
  readonly tell: (news: LoadNews) => void;
  /** Told where output went on, at most once for each block of it. */
  readonly tellOutput: (id: string, tokens: number) => void;
  readonly blockTokens: number;
}

/** Requests that are remembered as ended, of each sort. */
const ENDED_MAX = 65_536;

/**
 * A load that all replicas of a router share: what this one does is told to the others, and what
 * they did is counted here as if this one had done it. A request may be routed by one and freed by
 * another.
 */
export class SharedLoad implements ActiveLoad {
  readonly #options: SharedLoadOptions;
  readonly #load: ActiveLoad;
  /** A list of live requests that is under way may still name them. */
  readonly #ended = new Set<string>();
  /** Freed by one router before the other's word came that they began. */
  readonly #freedEarly = new Set<string>();
  /** News of workers that are not known here. */
  unknownWorkers = 0;

  constructor(options: SharedLoadOptions) {
    this.#options = options;
    this.#load = options.load;
  }

  get requests(): number {
    return this.#load.requests;
  }

  add(request: ActiveRequest): void {
    const { owners, self, tell } = this.#options;
    const { id } = request;
    this.#load.add(request);
    this.#ended.delete(id);
    owners.begin(id, self);
    const shared = this.share(id);
    if (shared !== null) tell({ kind: "add", request: shared });
  }

  markPrefillComplete(id: string): LoadOutcome {
    const { owners, self, tell } = this.#options;
    const outcome = this.#load.markPrefillComplete(id);
    if (outcome === "done") {
      owners.advance(id, self, { isPrefilling: false });
      tell({ kind: "prefill_complete", ...this.#newsOf(id) });
    }
    return outcome;
  }

  output(id: string, tokens: number): LoadOutcome {
    const outcome = this.#load.output(id, tokens);
    const { owners, self, tellOutput } = this.#options;
    const outputBlocks = this.#blocksOf(tokens);
    const isMore = outputBlocks > owners.progressOf(id).outputBlocks;
    if (outcome === "done" && isMore) {
      owners.advance(id, self, { isPrefilling: false, outputBlocks });
      tellOutput(id, tokens);
    }
    return outcome;
  }

  free(id: string): LoadOutcome {
    const of = this.#newsOf(id);
    const outcome = this.#load.free(id);
    this.#end(id);
    if (outcome === "done") this.#options.tell({ kind: "free", ...of });
    return outcome;
  }

  expire(): readonly string[] {
    return this.#forget(this.#load.expire());
  }

  dropTarget(target: TargetId): readonly string[] {
    return this.#forget(this.#load.dropTarget(target));
  }

  find(id: string): ActiveRequest | null {
    return this.#load.find(id);
  }

  isPrefilling(id: string): boolean | null {
    return this.#load.isPrefilling(id);
  }

  of(target: TargetId): TargetLoad {
    return this.#load.of(target);
  }

  additionalBlocks(hashes: BigUint64Array, promptTokens: number, into: Uint32Array): void {
    this.#load.additionalBlocks(hashes, promptTokens, into);
  }

  /** As others hear of it; null: it is not live, or its worker is gone. */
  share(id: string): SharedRequest | null {
    const { table, owners, blockTokens } = this.#options;
    const request = this.#load.find(id);
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

  /** What `router` did. */
  hear(router: RouterId, news: LoadNews): void {
    switch (news.kind) {
      case "add":
        if (!this.#freedEarly.delete(news.request.id)) this.#hearAdd(router, news.request);
        break;
      case "prefill_complete":
        this.#load.markPrefillComplete(news.id);
        this.#options.owners.advance(news.id, router, { isPrefilling: false });
        break;
      case "free":
        this.#hearFree(news.id);
        break;
      default:
        news satisfies never;
    }
  }

  hearOutput(router: RouterId, news: OutputNews): void {
    for (const [id, tokens] of news) {
      this.#load.output(id, tokens);
      const outputBlocks = this.#blocksOf(tokens);
      this.#options.owners.advance(id, router, { isPrefilling: false, outputBlocks });
    }
  }

  /**
   * One of the requests that `router` says are live, from a list that was made a while ago: what
   * is known of it already is newer. It may have missed that it ended.
   */
  hearListed(router: RouterId, request: SharedRequest): void {
    const { id, worker, rank } = request;
    if (this.#ended.has(id)) this.#options.tell({ kind: "free", id, worker, rank });
    else if (this.#load.find(id) === null) this.#hearAdd(router, request);
    else this.#hearProgress(router, request);
  }

  /** Ends what `router` does not answer for any more, without telling others: how many. */
  end(ids: Iterable<string>): number {
    let count = 0;
    for (const id of [...ids]) {
      if (this.#load.free(id) === "done") count++;
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
    this.#load.add({ ...of, expectedOutputTokens });
    this.#ended.delete(id);
    owners.begin(id, router);
    this.#hearProgress(router, shared);
  }

  #hearProgress(router: RouterId, { id, isPrefilling, outputTokens }: SharedRequest): void {
    if (!isPrefilling) this.#load.markPrefillComplete(id);
    if (outputTokens > 0) this.#load.output(id, outputTokens);
    const outputBlocks = this.#blocksOf(outputTokens);
    this.#options.owners.advance(id, router, { isPrefilling, outputBlocks });
  }

  #hearFree(id: string): void {
    const isEarly = this.#load.free(id) === "unknown" && !this.#ended.has(id);
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
    const request = this.#load.find(id);
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

/** How far a request is. */
interface Progress {
  readonly isPrefilling: boolean;
  readonly outputBlocks: number;
}

interface Owned extends Progress {
  readonly router: RouterId;
  /** Counts up with each entry: what came before something is told by it. */
  readonly number: number;
}

/** How many requests a router answers for, and what they and their progress come to. */
export interface OwnedSum {
  readonly requests: number;
  readonly mix: bigint;
}

const NONE: OwnedSum = { requests: 0, mix: 0n };
const BEGUN: Progress = { isPrefilling: true, outputBlocks: 0 };

/**
 * Which router answers for each live request, and how far that is: whoever spoke of it last. Sums
 * by router let two see whether they count the same.
 */
export class OwnerBook {
  readonly #owners = new Map<string, Owned>();
  readonly #sums = new Map<RouterId, OwnedSum>();
  #numbers = 0;

  get requests(): number {
    return this.#owners.size;
  }
  /** The number of the latest entry. */
  get latest(): number {
    return this.#numbers;
  }

  ownerOf(id: string): RouterId | null {
    return this.#owners.get(id)?.router ?? null;
  }

  progressOf(id: string): Progress {
    return this.#owners.get(id) ?? BEGUN;
  }

  /** A request that begins. */
  begin(id: string, router: RouterId): void {
    this.delete(id);
    this.#set(id, { router, number: ++this.#numbers, ...BEGUN });
  }

  /** Progress only ever grows; the router is another where that one goes on with it. */
  advance(id: string, router: RouterId, to: Partial<Progress>): void {
    const owned = this.#owners.get(id);
    if (owned === undefined) return;
    const isPrefilling = owned.isPrefilling && (to.isPrefilling ?? true);
    const outputBlocks = Math.max(owned.outputBlocks, to.outputBlocks ?? 0);
    const number = owned.router === router ? owned.number : ++this.#numbers;
    // Entries stand in the order of their numbers.
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

  /** Ids of one router, the earliest entries first, with numbers in (after, upTo]. */
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
