import type { Clock } from "../core/index.ts";
import { PrefixRuns, type Run, wordsOf } from "./prefix-runs.ts";
import type { TargetId } from "./workers.ts";

/** One request in progress on a target. */
export interface ActiveRequest {
  readonly id: string;
  readonly target: TargetId;
  /** Sequence hashes of the prompt's full blocks. */
  readonly hashes: BigUint64Array;
  readonly promptTokens: number;
  /** Tokens to compute: the prompt without its cached part. */
  readonly prefillTokens: number;
  readonly expectedOutputTokens: number | null;
}

export interface TargetLoad {
  /** Distinct prompt blocks of its active requests, plus their output blocks. */
  readonly activeBlocks: number;
  /** Prefill tokens of requests that have not produced their first output token. */
  readonly activePrefillTokens: number;
  readonly activeRequests: number;
}

/** Why a request ended: it was freed, it expired, or its worker left. */
export type EndReason = "free" | "expired" | "worker_left";

/** `unknown`: no such request, or it has already ended. Nothing changes. */
export type LoadOutcome = "done" | "unknown";

export interface ActiveLoadOptions {
  readonly clock: Clock;
  /** Tokens per block, for prompts and output. */
  readonly blockTokens: number;
  readonly requestExpiryMs: number;
  /** Seed of the hash table, so that collisions cannot be chosen. Default 0. */
  readonly seed?: number;
  /**
   * Maximum active requests. At the limit, the least recently updated one is freed. Default
   * 262,144.
   */
  readonly requestsMax?: number;
  /**
   * Maximum distinct prompt blocks kept for sharing, 8 bytes each. Requests beyond it count all
   * their blocks as unshared. Default 2^22.
   */
  readonly blocksMax?: number;
}

interface Live {
  readonly request: ActiveRequest;
  /** Hash words of the leading blocks that are counted in shared runs. */
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
 * Load of each target as implied by routing decisions. A request counts its blocks until `free`;
 * its prefill tokens until the first output token. A request that is never freed expires 300 s
 * after its last update (Dynamo's default).
 */
export class ActiveLoad {
  readonly #options: ActiveLoadOptions;
  readonly #requestsMax: number;
  readonly #blocksMax: number;
  /** In order of their last update, oldest first. */
  readonly #live = new Map<string, Live>();
  /** Value: number of active requests of the target that contain the run. */
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

  /** Adds a request. If its id is already active, the earlier request is freed first. */
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
   * Reports cumulative output tokens. They count as ceil(tokens / blockTokens) output blocks, and
   * the first token completes the prefill. A smaller value than before has no effect.
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

  /** True until the first output token. Null: no such request. */
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
   * Writes per target id: prompt blocks (including a partial last block) that are not yet active on
   * that target. Every element of `into` is written, also for ids without a target.
   */
  additionalBlocks(hashes: BigUint64Array, promptTokens: number, into: Uint32Array): void {
    const blocks = Math.ceil(promptTokens / this.#options.blockTokens);
    const all = Math.max(blocks, hashes.length);
    into.fill(0);
    this.#runs.leading(wordsOf(hashes), into);
    for (let target = 0; target < into.length; target++) into[target] = all - into[target]!;
  }

  /** Frees expired requests and returns their ids, plus the ids evicted at the request limit. */
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

  /** Frees all requests of a target and returns their ids. */
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
   * Returns the hash words of the leading blocks that are now counted once for all requests of the
   * target.
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
