import type { WorkerId } from "../core/index.ts";
import type { EndReason, TargetLoad } from "./active-load.ts";
import type { RouterMode } from "./settings.ts";
import type { Target } from "./workers.ts";

/** A prompt to find a worker for. Either tokens, or sequence hashes of its full blocks. */
export interface RouteRequest {
  readonly model: string;
  readonly prompt:
    | { readonly kind: "tokens"; readonly tokens: Uint32Array }
    | {
        readonly kind: "hashes";
        readonly hashes: BigUint64Array;
        /** Tokens a hash stands for; the settings' block where left out. */
        readonly blockTokens?: number;
        /** Of the whole prompt; that of the full blocks where left out. */
        readonly tokens?: number;
      };
  /** Without it nothing is remembered: a question only. */
  readonly requestId?: string;
  readonly loraName?: string;
  readonly cacheSalt?: string;
  readonly sessionId?: string;
  /** Larger goes first where requests wait. */
  readonly priority?: number;
  readonly expectedOutputTokens?: number;
  /** Which pool; `both` where left out: whole requests, or decode where prefill is apart. */
  readonly phase?: "prefill" | "decode" | "both";
  readonly overrides?: RouteOverrides;
}

/** Of one request alone. */
export interface RouteOverrides {
  readonly overlapScoreWeight?: number;
  readonly temperature?: number;
  readonly mode?: RouterMode;
  /** For `direct`; also narrows every other mode to it. */
  readonly worker?: WorkerId;
  readonly rank?: number;
  readonly allowed?: readonly WorkerId[];
  readonly excluded?: readonly WorkerId[];
  /** The choice then depends on nothing else that is drawn. */
  readonly seed?: number;
}

/** Every term of one candidate's cost; blocks of `settings.blockTokens` unless named otherwise. */
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

/** Why a worker was not among the candidates. */
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
  /** Of being chosen; with temperature 0 shared by those with the lowest cost. */
  readonly probability: number;
}

/** All that led to a decision, for whoever asks later. */
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
  /** What decided: the lowest cost, a draw among equals, softmax, the session's worker, ... */
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
  /** The number drawn, in [0, 1); null where nothing was. */
  readonly draw: number | null;
  readonly exactBlocks: number;
  readonly queuedMs: number;
  /** What policies did because of it, each with its receipt once that came. */
  readonly actions: readonly PolicyAction[];
}

export interface PolicyAction {
  readonly policy: string;
  readonly command: string;
  readonly worker: WorkerId;
  readonly isDryRun: boolean;
  /** In words; null while no receipt came. */
  readonly outcome: string | null;
}

export interface RouteDecision {
  readonly kind: "routed";
  readonly target: Target;
  readonly terms: CostTerms;
  readonly promptTokens: number;
  readonly queuedMs: number;
  /** The other pool's worker, where prefill is apart and has one; null: decode alone. */
  readonly prefill: Target | null;
  readonly decidedBy?: Explanation["decidedBy"];
  /** Why workers were no candidates, one after the other; null: it was one. For counting. */
  readonly reasons?: readonly (FilterReason | null)[];
}

/**
 * `none`: no worker of that model is there. `busy`: all are, and the queue is full or the wait was
 * too long. `unknown_worker`: the one that was named is not there.
 */
export type RouteOutcome =
  | RouteDecision
  | { readonly kind: "none" | "busy" | "unknown_worker"; readonly why: string };

export interface PotentialLoad extends TargetLoad {
  readonly worker: WorkerId;
  readonly rank: number;
  /** With this request there. */
  readonly potentialPrefillTokens: number;
  readonly potentialDecodeBlocks: number;
  /** Prompt tokens it holds on the device, from there on in host memory, and from there on disk. */
  readonly heldTokens: { readonly device: number; readonly host: number; readonly disk: number };
}

export interface BusyThresholds {
  readonly activeDecodeBlocksThreshold: number | null;
  readonly activePrefillTokensThreshold: number | null;
  /** The same as a share of a worker's `batchTokensMax`; left out as good as null. */
  readonly activePrefillTokensThresholdFrac?: number | null;
}

/** The router, for whoever is in the same process; HTTP and the proxy are translations of it. */
export interface Router {
  /** Decides at once, or, where all are busy, as soon as one is not. Rejects with ABORTED only. */
  bestWorker(request: RouteRequest, signal?: AbortSignal): Promise<RouteOutcome>;
  /** The same without waiting: `busy` where it would have to. */
  bestWorkerNow(request: RouteRequest): RouteOutcome;
  getPotentialLoads(request: RouteRequest): readonly PotentialLoad[];
  /** False: no such request is live. */
  markPrefillComplete(requestId: string): boolean;
  output(requestId: string, tokens: number): boolean;
  free(requestId: string): boolean;
  /** All that the index holds as Dynamo's RouterEvents, parents first; JSON with exact integers. */
  dumpEvents(): Iterable<string>;
  explain(requestId: string): Explanation | null;
  /**
   * Adds what a policy did to the explanation of a request: the object itself is kept, so that its
   * outcome may be filled in when the receipt comes. False: no explanation is kept, or it is full.
   */
  noteAction(requestId: string, action: PolicyAction): boolean;
  thresholds(model: string): BusyThresholds;
  /** False: no worker of that model is known. */
  setThresholds(model: string, thresholds: Partial<BusyThresholds>): boolean;
  listen(observer: RouterObserver): Disposable;
}

/** Told of what happens, in order; must not throw. */
export interface RouterObserver {
  routed?(request: RouteRequest, decision: RouteDecision, hashes: BigUint64Array): void;
  prefillComplete?(requestId: string): void;
  freed?(requestId: string, why: EndReason): void;
}
