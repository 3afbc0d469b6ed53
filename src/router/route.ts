import type { WorkerId } from "../core/index.ts";
import type { EndReason, TargetLoad } from "./active-load.ts";
import type { RouterMode } from "./settings.ts";
import type { Target } from "./workers.ts";

/** A request to route. Its prompt is given as tokens or as sequence hashes of its full blocks. */
export interface RouteRequest {
  readonly model: string;
  readonly prompt:
    | { readonly kind: "tokens"; readonly tokens: Uint32Array }
    | {
        readonly kind: "hashes";
        readonly hashes: BigUint64Array;
        /** Tokens per hash. Default: `settings.blockTokens`. */
        readonly blockTokens?: number;
        /** Tokens of the whole prompt. Default: the number of hashes times `blockTokens`. */
        readonly tokens?: number;
      };
  /**
   * Id under which the decision counts as load. If absent, the router only answers: it records
   * neither load nor prediction.
   */
  readonly requestId?: string;
  readonly loraName?: string;
  readonly cacheSalt?: string;
  readonly sessionId?: string;
  /** Priority in the wait queue. Higher values are routed first. */
  readonly priority?: number;
  readonly expectedOutputTokens?: number;
  /**
   * Pool to choose from. `both`, the default, serves the whole request; if the model has a prefill
   * pool, the router chooses one worker there and one for decode.
   */
  readonly phase?: "prefill" | "decode" | "both";
  readonly overrides?: RouteOverrides;
}

/** Settings that apply to one request instead of the router's settings. */
export interface RouteOverrides {
  readonly overlapScoreWeight?: number;
  readonly temperature?: number;
  readonly mode?: RouterMode;
  /** The only worker that may be chosen. With mode `direct`, it is chosen even if it is busy. */
  readonly worker?: WorkerId;
  readonly rank?: number;
  readonly allowed?: readonly WorkerId[];
  readonly excluded?: readonly WorkerId[];
  /** Seed of the random number. Requests with equal seeds and inputs get the same choice. */
  readonly seed?: number;
}

/**
 * Terms of one candidate's cost. Unit: blocks of `settings.blockTokens` tokens, unless the name
 * says otherwise.
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

/** Reason why a worker was not a candidate. */
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
  /**
   * Probability with which the candidate is chosen. With temperature 0, it is shared equally by the
   * candidates with the lowest cost.
   */
  readonly probability: number;
}

/** Inputs and results of one decision. The router keeps them for later queries. */
export interface Explanation {
  readonly requestId: string | null;
  /** Wall-clock time of the decision, in milliseconds since 1970. */
  readonly wallMs: number;
  readonly model: string;
  readonly mode: RouterMode;
  readonly promptTokens: number;
  readonly promptBlocks: number;
  readonly chosen: { readonly worker: WorkerId; readonly rank: number } | null;
  readonly candidates: readonly Candidate[];
  readonly filtered: readonly { readonly target: Target; readonly reason: FilterReason }[];
  /** Rule that decided the choice. */
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
  /** Random number in [0, 1) used for the choice. Null if none was needed. */
  readonly draw: number | null;
  readonly exactBlocks: number;
  readonly queuedMs: number;
  /** Actions that cache policies took because of this decision. */
  readonly actions: readonly PolicyAction[];
}

export interface PolicyAction {
  readonly policy: string;
  readonly command: string;
  readonly worker: WorkerId;
  readonly isDryRun: boolean;
  /** Outcome as a message for a person. Null until the agent's receipt arrives. */
  readonly outcome: string | null;
}

export interface RouteDecision {
  readonly kind: "routed";
  readonly target: Target;
  readonly terms: CostTerms;
  readonly promptTokens: number;
  readonly queuedMs: number;
  /** Chosen worker of the prefill pool. Null if the decode worker also does the prefill. */
  readonly prefill: Target | null;
  readonly decidedBy?: Explanation["decidedBy"];
  /** Reason why each worker was excluded, or null if it was a candidate. Used for metrics. */
  readonly reasons?: readonly (FilterReason | null)[];
}

/**
 * Result of routing. `none`: no worker serves the model. `busy`: all workers are busy, and the
 * queue is full or the wait timed out. `unknown_worker`: the router does not know the named worker.
 */
export type RouteOutcome =
  | RouteDecision
  | { readonly kind: "none" | "busy" | "unknown_worker"; readonly why: string };

export interface PotentialLoad extends TargetLoad {
  readonly worker: WorkerId;
  readonly rank: number;
  /** Load of the worker if this request were added. */
  readonly potentialPrefillTokens: number;
  readonly potentialDecodeBlocks: number;
  /**
   * Prompt tokens that the worker has cached: leading tokens on the device, the tokens that follow
   * in host memory, then those on disk.
   */
  readonly heldTokens: { readonly device: number; readonly host: number; readonly disk: number };
}

export interface BusyThresholds {
  readonly activeDecodeBlocksThreshold: number | null;
  readonly activePrefillTokensThreshold: number | null;
  /**
   * Threshold as a share of the worker's `batchTokensMax`. Absent and null both mean no such
   * threshold.
   */
  readonly activePrefillTokensThresholdFrac?: number | null;
}

/** Receives routing events in order. Callbacks must not throw. */
export interface RouterObserver {
  /** Called before a request is routed. Also called for requests without a `requestId`. */
  prompted?(request: RouteRequest): void;
  routed?(request: RouteRequest, decision: RouteDecision, hashes: BigUint64Array): void;
  prefillComplete?(requestId: string): void;
  freed?(requestId: string, why: EndReason): void;
  /** Called when busy thresholds are set at this router, not at another one. */
  thresholdsSet?(model: string, thresholds: BusyThresholds): void;
}
