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
