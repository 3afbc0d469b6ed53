import type { WorkerId } from "../core/index.ts";
import type { EndReason, TargetLoad } from "./active-load.ts";
import type { RouterMode } from "./settings.ts";
import type { Target } from "./workers.ts";

/** A prompt to route: either its tokens, or the sequence hashes of its full blocks. */
export interface RouteRequest {
  readonly model: string;
  readonly prompt:
    | { readonly kind: "tokens"; readonly tokens: Uint32Array }
    | {
        readonly kind: "hashes";
        readonly hashes: BigUint64Array;
        /** Tokens per hash. Default: `settings.blockTokens`. */
        readonly blockTokens?: number;
        /** Tokens of the whole prompt. Default: the tokens of its full blocks. */
        readonly tokens?: number;
      };
  /** If absent, the decision is not recorded in the load or the prediction (dry query). */
  readonly requestId?: string;
  readonly loraName?: string;
  readonly cacheSalt?: string;
  readonly sessionId?: string;
  /** Queued requests with a higher priority are routed first. */
  readonly priority?: number;
  readonly expectedOutputTokens?: number;
  /**
   * Pool to choose from. Default `both`: whole requests, or decode if the model has a prefill pool.
   */
  readonly phase?: "prefill" | "decode" | "both";
  readonly overrides?: RouteOverrides;
}

/** Overrides of the settings for one request. */
export interface RouteOverrides {
  readonly overlapScoreWeight?: number;
  readonly temperature?: number;
  readonly mode?: RouterMode;
  /** Target of mode `direct`. In other modes, restricts the candidates to this worker. */
  readonly worker?: WorkerId;
  readonly rank?: number;
  readonly allowed?: readonly WorkerId[];
  readonly excluded?: readonly WorkerId[];
  /** Seed of the random draw. With a seed, the choice is reproducible. */
  readonly seed?: number;
}

/**
 * Every term of one candidate's cost, in blocks of `settings.blockTokens` unless named otherwise.
 */
export interface CostTerms {
  readonly deviceBlocks: number;
  readonly hostBlocks: number;
  readonly diskBlocks: number;
  readonly cachedTokens: number;
  readonly rawPrefillTokens: number;
  readonly decay: number;
  readonly credit: number;
  readonly activeBlocks: number;
  readonly additionalBlocks: number;
  readonly activeRequests: number;
  readonly cost: number;
}

/** Reason a worker was excluded from the candidates. */
export type FilterReason =
  | "other_model"
  | "other_role"
  | "stale"
  | "draining"
  | "not_allowed"
  | "excluded"
  | "busy_blocks"
  | "busy_prefill";

export interface Candidate {
  readonly target: Target;
  readonly terms: CostTerms;
  /** Probability of being chosen. With temperature 0, candidates with the lowest cost share it. */
  readonly probability: number;
}

/** All inputs and results of one decision, kept for later queries. */
export interface Explanation {
  readonly requestId: string | null;
  /** Milliseconds since 1970. */
  readonly wallMs: number;
  readonly model: string;
  readonly mode: RouterMode;
  readonly promptTokens: number;
  readonly promptBlocks: number;
  readonly chosen: { readonly worker: WorkerId; readonly rank: number } | null;
  readonly candidates: readonly Candidate[];
  readonly filtered: readonly { readonly target: Target; readonly reason: FilterReason }[];
  /** The rule that made the decision. */
  readonly decidedBy:
    | "lowest_cost"
    | "tie_draw"
    | "softmax"
    | "affinity"
    | "direct"
    | "round_robin"
    | "random"
    | "least_loaded"
    | "only_one"
    | "none";
  /** The random number drawn, in [0, 1). Null if none was drawn. */
  readonly draw: number | null;
  readonly exactBlocks: number;
  readonly queuedMs: number;
  /** Actions of policies caused by this decision, each with its receipt once it arrives. */
  readonly actions: readonly PolicyAction[];
}

export interface PolicyAction {
  readonly policy: string;
  readonly command: string;
  readonly worker: WorkerId;
  readonly isDryRun: boolean;
  /** Outcome as a message. Null until a receipt arrives. */
  readonly outcome: string | null;
}

export interface RouteDecision {
  readonly kind: "routed";
  readonly target: Target;
  readonly terms: CostTerms;
  readonly promptTokens: number;
  readonly queuedMs: number;
  /** The worker of the prefill pool. Null if the model has no separate prefill pool. */
  readonly prefill: Target | null;
  readonly decidedBy?: Explanation["decidedBy"];
  /** Per worker: the reason it was excluded, or null if it was a candidate. For metrics. */
  readonly reasons?: readonly (FilterReason | null)[];
}

/**
 * `none`: no worker serves that model. `busy`: all workers are busy, and the queue is full or the
 * wait timed out. `unknown_worker`: the named worker is not known.
 */
export type RouteOutcome =
  | RouteDecision
  | { readonly kind: "none" | "busy" | "unknown_worker"; readonly why: string };

export interface PotentialLoad extends TargetLoad {
  readonly worker: WorkerId;
  readonly rank: number;
  /** Values if this request were added to the worker. */
  readonly potentialPrefillTokens: number;
  readonly potentialDecodeBlocks: number;
  /**
   * Prompt tokens held: leading tokens on the device, the next ones in host memory, then on disk.
   */
  readonly heldTokens: { readonly device: number; readonly host: number; readonly disk: number };
}

export interface BusyThresholds {
  readonly activeDecodeBlocksThreshold: number | null;
  readonly activePrefillTokensThreshold: number | null;
  /** The threshold as a share of a worker's `batchTokensMax`. Absent is the same as null. */
  readonly activePrefillTokensThresholdFrac?: number | null;
}

/** Observes routing events in order. Callbacks must not throw. */
export interface RouterObserver {
  /** A request is about to be routed. Also called for dry queries. */
  prompted?(request: RouteRequest): void;
  routed?(request: RouteRequest, decision: RouteDecision, hashes: BigUint64Array): void;
  prefillComplete?(requestId: string): void;
  freed?(requestId: string, why: EndReason): void;
  /** Busy thresholds were set at this router. */
  thresholdsSet?(model: string, thresholds: BusyThresholds): void;
}
