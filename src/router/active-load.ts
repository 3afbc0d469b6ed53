import type { Clock } from "../core/index.ts";
import { PrefixRuns, type Run, wordsOf } from "./prefix-runs.ts";
import type { TargetId } from "./workers.ts";

/** One request that a target is at work on. */
export interface ActiveRequest {
  readonly id: string;
  readonly target: TargetId;
  /** Sequence hashes of the prompt's full blocks. */
  readonly hashes: BigUint64Array;
  readonly promptTokens: number;
  /** Tokens that must be computed: the prompt without what is cached. */
  readonly prefillTokens: number;
  readonly expectedOutputTokens: number | null;
}

export interface TargetLoad {
  /** Different prompt blocks of its live requests, and their output blocks. */
  readonly activeBlocks: number;
  /** Of requests whose first output token has not come. */
  readonly activePrefillTokens: number;
  readonly activeRequests: number;
}

/** Why a request ended: whoever had it is done, its time is over, or its worker is gone. */
export type EndReason = "free" | "expired" | "worker_left";

/** `unknown`: no such request, or it ended already; nothing changed. */
export type LoadOutcome = "done" | "unknown";

/**
 * What each target is at work on, as far as routing decisions tell. A request keeps its blocks
 * until `free`; its prefill tokens leave with the first output token; a request that nobody frees
 * expires 300 s after its latest sign of life (Dynamo's default).
 */
export interface ActiveLoad {
  /** Of an id that is live: the one before is freed first. */
  add(request: ActiveRequest): void;
  markPrefillComplete(id: string): LoadOutcome;
  /**
   * Output so far, in tokens: it counts ceil(tokens / block) blocks of output, and the first token
   * completes the prefill. Less than was said before changes nothing.
   */
  output(id: string, tokens: number): LoadOutcome;
  free(id: string): LoadOutcome;
  find(id: string): ActiveRequest | null;
  /** Whether its first output token is still to come; null: no such request. */
  isPrefilling(id: string): boolean | null;
  of(target: TargetId): TargetLoad;
  /**
   * By target: blocks of the prompt, the last part-full one too, that are not active there yet.
   * Each place of `into` is written, also where no such target is.
   */
  additionalBlocks(hashes: BigUint64Array, promptTokens: number, into: Uint32Array): void;
  /** Frees what has expired, and what had to go for want of room; their ids. */
  expire(): readonly string[];
  /** Frees all that a target has; their ids. */
  dropTarget(target: TargetId): readonly string[];
  readonly requests: number;
}

export interface ActiveLoadOptions {
  readonly clock: Clock;
  /** Tokens in a block of prompts and output. */
  readonly blockTokens: number;
  readonly requestExpiryMs: number;
  /** Makes places in the table hard to guess; 0 where left out. */
  readonly seed?: number;
  /** Beyond, the one without a sign of life for the longest is freed; 262,144 where left out. */
  readonly requestsMax?: number;
  /**
   * Different prompt blocks that are compared with others, 8 bytes each; 2^22 where left out.
   * Blocks of requests beyond count as nobody else's.
   */
  readonly blocksMax?: number;
}

interface Live {
  readonly request: ActiveRequest;
  /** Its leading blocks that are shared with others where those have them too. */
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

export function createActiveLoad(options: ActiveLoadOptions): ActiveLoad {
  return new Load(options);
}

class Load implements ActiveLoad {
  readonly #options: ActiveLoadOptions;
  readonly #requestsMax: number;
  readonly #blocksMax: number;
  /** In the order of their latest sign of life. */
  readonly #live = new Map<string, Live>();
  /** The value: how many live requests of that target have the run. */
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

  add(request: ActiveRequest): void {
    this.free(request.id);
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
    if (live.isPrefilling) {
      live.isPrefilling = false;
      this.#sumsOf(live.request.target).prefillTokens -= live.request.prefillTokens;
    }
    return "done";
  }

  output(id: string, tokens: number): LoadOutcome {
    const live = this.#touch(id);
    if (live === null) return "unknown";
    if (tokens > 0 && live.isPrefilling) this.markPrefillComplete(id);
    const blocks = Math.ceil(tokens / this.#options.blockTokens);
    if (blocks > live.outputBlocks) {
      this.#sumsOf(live.request.target).blocks += blocks - live.outputBlocks;
      live.outputBlocks = blocks;
    }
    return "done";
  }

  free(id: string): LoadOutcome {
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

  find(id: string): ActiveRequest | null {
    return this.#live.get(id)?.request ?? null;
  }

  isPrefilling(id: string): boolean | null {
    return this.#live.get(id)?.isPrefilling ?? null;
  }

  of(target: TargetId): TargetLoad {
    const sums = this.#sums[target];
    if (sums === undefined) return { activeBlocks: 0, activePrefillTokens: 0, activeRequests: 0 };
    const { blocks: activeBlocks, prefillTokens: activePrefillTokens } = sums;
    return { activeBlocks, activePrefillTokens, activeRequests: sums.requests };
  }

  additionalBlocks(hashes: BigUint64Array, promptTokens: number, into: Uint32Array): void {
    const blocks = Math.ceil(promptTokens / this.#options.blockTokens);
    const all = Math.max(blocks, hashes.length);
    into.fill(0);
    this.#runs.leading(wordsOf(hashes), into);
    for (let target = 0; target < into.length; target++) into[target] = all - into[target]!;
  }

  expire(): readonly string[] {
    const ended = this.#crowdedOut;
    this.#crowdedOut = [];
    const before = this.#options.clock.monotonicMs() - this.#options.requestExpiryMs;
    for (const [id, live] of this.#live) {
      if (live.aliveAtMs > before) break;
      this.free(id);
      ended.push(id);
    }
    return ended;
  }

  dropTarget(target: TargetId): readonly string[] {
    const ended: string[] = [];
    for (const [id, { request }] of this.#live) if (request.target === target) ended.push(id);
    for (const id of ended) this.free(id);
    this.#sums[target] = undefined;
    return ended;
  }

  /** The words of the leading blocks that are now counted once for all requests of the target. */
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
    this.free(oldest);
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
