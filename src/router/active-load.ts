import type { Clock } from "../core/index.ts";
import { PrefixRuns, type Run, wordsOf } from "./prefix-runs.ts";
import type { TargetId } from "./workers.ts";

/** A request in progress on a target. */
export interface ActiveRequest {
  readonly id: string;
  readonly target: TargetId;
  /** Sequence hashes of the prompt's full blocks. */
  readonly hashes: BigUint64Array;
  readonly promptTokens: number;
  /** Prompt tokens to compute: all prompt tokens except the cached ones. */
  readonly prefillTokens: number;
  readonly expectedOutputTokens: number | null;
}

export interface TargetLoad {
  /** Distinct prompt blocks of the target's active requests, plus their output blocks. */
  readonly activeBlocks: number;
  /** Prefill tokens of the requests that have not produced an output token yet. */
  readonly activePrefillTokens: number;
  readonly activeRequests: number;
}

/** Reason why a request ended: the client freed it, it expired, or its worker left. */
export type EndReason = "free" | "expired" | "worker_left";

/** Result of an update. `unknown`: no active request has this id; nothing changed. */
export type LoadOutcome = "done" | "unknown";

export interface ActiveLoadOptions {
  readonly clock: Clock;
  /** Tokens per block. Used for prompts and output. */
  readonly blockTokens: number;
  readonly requestExpiryMs: number;
  /**
   * Seed of the hash table. A random seed prevents clients from choosing hashes that collide.
   * Default 0.
   */
  readonly seed?: number;
  /**
   * Maximum active requests. At the limit, a new request frees the least recently updated one.
   * Default 262,144.
   */
  readonly requestsMax?: number;
  /**
   * Maximum distinct prompt blocks that are counted once for all requests that share them, 8 bytes
   * each. At the limit, a new request counts all its blocks as unshared. Default 2^22.
   */
  readonly blocksMax?: number;
}

interface Live {
  readonly request: ActiveRequest;
  /** Low and high hash words of the request's leading blocks that count as shared. */
  readonly words: Uint32Array;
  readonly ownBlocks: number;
  outputBlocks: number;
  isPrefilling: boolean;
  aliveAtMs: number;
}

interface Sums {
  blocks: number;
  prefillTokens: number;
  requests: number;
}

const NONE = new Uint32Array(0);

/**
 * Load of each target, derived from routing decisions. A request's blocks count until `free`, its
 * prefill tokens until its first output token. A request that is never freed expires
 * `requestExpiryMs` after its last update.
 */
export class ActiveLoad {
  readonly #options: ActiveLoadOptions;
  readonly #requestsMax: number;
  readonly #blocksMax: number;
  /** Active requests by id, in order of their last update, oldest first. */
  readonly #live = new Map<string, Live>();
  /**
   * Shared prompt blocks. The value is the number of the target's active requests with that run.
   */
  readonly #runs: PrefixRuns<number>;
  readonly #sums: (Sums | undefined)[] = [];
  #crowdedOut: string[] = [];

  constructor(options: ActiveLoadOptions) {
    this.#options = options;
    this.#requestsMax = options.requestsMax ?? 262_144;
    this.#blocksMax = options.blocksMax ?? 2 ** 22;
    this.#runs = new PrefixRuns(options.seed ?? 0, (requests) => requests);
  }

  get requests(): number {
    return this.#live.size;
  }

  /** Adds a request. If a request of this id is active, frees it first. */
  add(request: ActiveRequest): void {
    this.#remove(request.id);
    if (this.#live.size >= this.#requestsMax) this.#crowdOut();
    const sums = this.#sumsOf(request.target);
    const words = this.#share(request, sums);
    const ownBlocks = request.hashes.length - words.length / 2;
    sums.blocks += ownBlocks;
    sums.prefillTokens += request.prefillTokens;
    sums.requests++;
    const aliveAtMs = this.#options.clock.monotonicMs();
    const live = { request, words, ownBlocks, outputBlocks: 0, isPrefilling: true, aliveAtMs };
    this.#live.set(request.id, live);
  }

  markPrefillComplete(id: string): LoadOutcome {
    const live = this.#touch(id);
    if (live === null) return "unknown";
    this.#endPrefill(live);
    return "done";
  }

  /**
   * Records the output tokens a request has produced so far. They count as ceil(tokens /
   * blockTokens) output blocks. The first token ends the prefill. Ignores a value lower than an
   * earlier one.
   */
  output(id: string, tokens: number): LoadOutcome {
    const live = this.#touch(id);
    if (live === null) return "unknown";
    if (tokens > 0) this.#endPrefill(live);
    const blocks = Math.ceil(tokens / this.#options.blockTokens);
    if (blocks > live.outputBlocks) {
      this.#sumsOf(live.request.target).blocks += blocks - live.outputBlocks;
      live.outputBlocks = blocks;
    }
    return "done";
  }

  free(id: string): LoadOutcome {
    return this.#remove(id);
  }

  find(id: string): ActiveRequest | null {
    return this.#live.get(id)?.request ?? null;
  }

  /** True until the request's first output token. Null: no active request has this id. */
  isPrefilling(id: string): boolean | null {
    return this.#live.get(id)?.isPrefilling ?? null;
  }

  of(target: TargetId): TargetLoad {
    const sums = this.#sums[target];
    if (sums === undefined) return { activeBlocks: 0, activePrefillTokens: 0, activeRequests: 0 };
    const { blocks: activeBlocks, prefillTokens: activePrefillTokens } = sums;
    return { activeBlocks, activePrefillTokens, activeRequests: sums.requests };
  }

  /**
   * Computes, for each target id, how many blocks this prompt would add to the target: blocks not
   * yet active there, including a partial last block. Overwrites all elements of `into`.
   */
  additionalBlocks(hashes: BigUint64Array, promptTokens: number, into: Uint32Array): void {
    const blocks = Math.ceil(promptTokens / this.#options.blockTokens);
    const all = Math.max(blocks, hashes.length);
    into.fill(0);
    this.#runs.leading(wordsOf(hashes), into);
    for (let target = 0; target < into.length; target++) into[target] = all - into[target];
  }

  /**
   * Frees expired requests. Returns their ids, and the ids freed earlier because of the request
   * limit.
   */
  expire(): readonly string[] {
    const ended = this.#crowdedOut;
    this.#crowdedOut = [];
    const before = this.#options.clock.monotonicMs() - this.#options.requestExpiryMs;
    for (const [id, live] of this.#live) {
      if (live.aliveAtMs > before) break;
      this.#remove(id);
      ended.push(id);
    }
    return ended;
  }

  /** Frees all requests of a target. Returns their ids. */
  dropTarget(target: TargetId): readonly string[] {
    const ended: string[] = [];
    for (const [id, { request }] of this.#live) if (request.target === target) ended.push(id);
    for (const id of ended) this.#remove(id);
    this.#sums[target] = undefined;
    return ended;
  }

  #remove(id: string): LoadOutcome {
    const live = this.#live.get(id);
    if (live === undefined) return "unknown";
    this.#live.delete(id);
    const { target, prefillTokens } = live.request;
    const sums = this.#sumsOf(target);
    for (const run of this.#runs.covered(live.words)) this.#leave(run, target, sums);
    sums.blocks -= live.ownBlocks + live.outputBlocks;
    if (live.isPrefilling) sums.prefillTokens -= prefillTokens;
    sums.requests--;
    return "done";
  }

  #endPrefill(live: Live): void {
    if (!live.isPrefilling) return;
    live.isPrefilling = false;
    this.#sumsOf(live.request.target).prefillTokens -= live.request.prefillTokens;
  }

  /**
   * Counts the request's blocks as shared where possible. Returns the hash words of its leading
   * blocks that count once for all requests of the target.
   */
  #share({ hashes, target }: ActiveRequest, sums: Sums): Uint32Array {
    if (hashes.length === 0 || this.#runs.blocks + hashes.length > this.#blocksMax) return NONE;
    const words = wordsOf(hashes);
    let blocks = 0;
    for (const run of this.#runs.cover(words)) {
      const requests = run.holders.get(target) ?? 0;
      const length = run.words.length / 2;
      if (requests === 0) sums.blocks += length;
      run.holders.set(target, requests + 1);
      blocks += length;
    }
    return words.subarray(0, blocks * 2);
  }

  #leave(run: Run<number>, target: TargetId, sums: Sums): void {
    const left = run.holders.get(target)! - 1;
    if (left > 0) {
      run.holders.set(target, left);
      return;
    }
    sums.blocks -= run.words.length / 2;
    this.#runs.release(run, target);
  }

  #touch(id: string): Live | null {
    const live = this.#live.get(id);
    if (live === undefined) return null;
    live.aliveAtMs = this.#options.clock.monotonicMs();
    this.#live.delete(id);
    this.#live.set(id, live);
    return live;
  }

  #crowdOut(): void {
    const oldest = this.#live.keys().next().value!;
    this.#remove(oldest);
    if (this.#crowdedOut.length < this.#requestsMax) this.#crowdedOut.push(oldest);
  }

  #sumsOf(target: TargetId): Sums {
    let sums = this.#sums[target];
    if (sums === undefined) {
      sums = { blocks: 0, prefillTokens: 0, requests: 0 };
      this.#sums[target] = sums;
    }
    return sums;
  }
}
