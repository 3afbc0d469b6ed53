import type { ActiveLoad, ActiveRequest, LoadOutcome, TargetLoad } from "../active-load.ts";
import type { TargetId, WorkerTable } from "../workers.ts";
import type { LoadNews, OutputNews, SharedRequest } from "./load-news.ts";
import type { OwnerBook } from "./owner-book.ts";
import type { RouterId } from "./router-id.ts";

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
  /** Output blocks that were told of each own request. */
  readonly #output = new Map<string, number>();
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
    this.#load.add(request);
    this.#ended.delete(request.id);
    owners.set(request.id, self);
    this.#output.delete(request.id);
    const shared = this.share(request.id);
    if (shared !== null) tell({ kind: "add", request: shared });
  }

  markPrefillComplete(id: string): LoadOutcome {
    const outcome = this.#load.markPrefillComplete(id);
    if (outcome === "done") {
      this.#own(id);
      this.#options.tell({ kind: "prefill_complete", id });
    }
    return outcome;
  }

  output(id: string, tokens: number): LoadOutcome {
    const outcome = this.#load.output(id, tokens);
    if (outcome === "unknown") return outcome;
    this.#own(id);
    const blocks = Math.ceil(tokens / this.#options.blockTokens);
    if (blocks > (this.#output.get(id) ?? 0)) {
      this.#output.set(id, blocks);
      this.#options.tellOutput(id, tokens);
    }
    return outcome;
  }

  free(id: string): LoadOutcome {
    const outcome = this.#load.free(id);
    this.#forget(id);
    remember(this.#ended, id);
    if (outcome === "done") this.#options.tell({ kind: "free", id });
    return outcome;
  }

  expire(): readonly string[] {
    const ids = this.#load.expire();
    for (const id of ids) this.#forget(id);
    return ids;
  }

  dropTarget(target: TargetId): readonly string[] {
    const ids = this.#load.dropTarget(target);
    for (const id of ids) this.#forget(id);
    return ids;
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
    const request = this.#load.find(id);
    const target = request === null ? null : this.#options.table.get(request.target);
    if (request === null || target === null) return null;
    const { hashes, promptTokens, expectedOutputTokens } = request;
    const prefillTokens = this.#load.isPrefilling(id) === true ? request.prefillTokens : 0;
    const { worker, rank } = target;
    return { id, worker, rank, hashes, promptTokens, prefillTokens, expectedOutputTokens };
  }

  /** What `router` did. */
  hear(router: RouterId, news: LoadNews): void {
    switch (news.kind) {
      case "add":
        if (!this.#freedEarly.delete(news.request.id)) this.#hearOf(router, news.request);
        break;
      case "prefill_complete":
        if (this.#load.markPrefillComplete(news.id) === "done") this.#own(news.id, router);
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
      if (this.#load.output(id, tokens) === "done") this.#own(id, router);
    }
  }

  /**
   * One of the requests that `router` says are live, from a list that was made a while ago: what
   * is known of it already is newer. It may have missed that it ended.
   */
  hearListed(router: RouterId, request: SharedRequest): void {
    const { id } = request;
    if (this.#ended.has(id)) this.#options.tell({ kind: "free", id });
    else if (this.#load.find(id) === null) this.#hearOf(router, request);
    else this.#own(id, router);
  }

  /** Ends what `router` does not answer for any more, without telling others: how many. */
  end(ids: Iterable<string>): number {
    let count = 0;
    for (const id of [...ids]) {
      if (this.#load.free(id) === "done") count++;
      this.#forget(id);
    }
    return count;
  }

  #hearOf(router: RouterId, shared: SharedRequest): void {
    const { table, owners } = this.#options;
    const target = table.find(shared.worker, shared.rank);
    if (target === null) {
      this.unknownWorkers++;
      return;
    }
    const { id, hashes, promptTokens, prefillTokens, expectedOutputTokens } = shared;
    const of = { id, target: target.id, hashes, promptTokens, prefillTokens };
    this.#load.add({ ...of, expectedOutputTokens });
    owners.set(id, router);
    this.#ended.delete(id);
    // It may still go on counting as one that computes its prompt.
    if (prefillTokens === 0) this.#load.markPrefillComplete(id);
  }

  #hearFree(id: string): void {
    const isEarly = this.#load.free(id) === "unknown" && !this.#ended.has(id);
    if (isEarly) remember(this.#freedEarly, id);
    this.#forget(id);
    remember(this.#ended, id);
  }

  #own(id: string, router = this.#options.self): void {
    const { owners } = this.#options;
    if (owners.ownerOf(id) !== router) owners.set(id, router);
  }

  #forget(id: string): void {
    this.#output.delete(id);
    this.#options.owners.delete(id);
  }
}

function remember(ids: Set<string>, id: string): void {
  ids.add(id);
  if (ids.size > ENDED_MAX) ids.delete(ids.values().next().value!);
}
