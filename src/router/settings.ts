/**
 * How a router decides. Names and defaults follow Dynamo's router; docs/router.md has the table of
 * its flags.
 */
export interface RouterSettings {
  readonly mode: RouterMode;
  readonly cost: CostSettings;
  /** 0: the lowest cost wins. Above: softmax over costs that are scaled to [0, 1]. */
  readonly temperature: number;
  /** Tokens in a block of the cost formula. */
  readonly blockTokens: number;
  /** Off: what workers hold is predicted from where requests went. */
  readonly useKvEvents: boolean;
  readonly prediction: PredictionSettings;
  /** Off: blocks of live requests are not counted, as for workers that only prefill. */
  readonly trackActiveBlocks: boolean;
  readonly trackPrefillTokens: boolean;
  /** Share of a worker's blocks, in (0, 1]; null: none is busy by blocks. */
  readonly activeDecodeBlocksThreshold: number | null;
  /** Tokens; null: none is busy by prefill. */
  readonly activePrefillTokensThreshold: number | null;
  readonly queue: QueueSettings;
  readonly affinity: AffinitySettings;
  /** Requests that nobody frees count no longer than this. */
  readonly requestExpiryMs: number;
  /** Explanations that are kept, the latest ones. */
  readonly explanationsMax: number;
}

export type RouterMode = "kv" | "round-robin" | "random" | "direct" | "least-loaded";
export const ROUTER_MODES: readonly RouterMode[] = [
  "kv",
  "round-robin",
  "random",
  "direct",
  "least-loaded",
];

export type CostSettings =
  | {
      readonly kind: "credits";
      /** `c` of the formula. */
      readonly overlapCredit: number;
      /** `k`. */
      readonly creditDecay: number;
      readonly hostCredit: number;
      readonly diskCredit: number;
      /** `scale`. */
      readonly prefillLoadScale: number;
      /** `a`. */
      readonly activeRequestWeight: number;
    }
  /** overlapScoreWeight * prefill blocks + decode blocks. */
  | { readonly kind: "classic"; readonly overlapScoreWeight: number };

export interface PredictionSettings {
  readonly ttlMs: number;
  readonly blocksMax: number;
  /** Pruned down to this share of `blocksMax`. */
  readonly pruneRatio: number;
  /** Beside events: how long a routed prompt counts as held before events say so; 0: never. */
  readonly besideEventsMs: number;
}

export interface QueueSettings {
  /** Requests that may wait while all workers are busy; 0: they are refused at once. */
  readonly requestsMax: number;
  readonly waitMs: number;
}

export interface AffinitySettings {
  /** A session stays with its worker this long after its latest request; 0: off. */
  readonly ttlMs: number;
  readonly sessionsMax: number;
  /** It is given up where its worker costs so many blocks more than the best one. */
  readonly extraCostMax: number;
}

export const ROUTER_DEFAULTS: RouterSettings = {
  mode: "kv",
  cost: {
    kind: "credits",
    overlapCredit: 1,
    creditDecay: 0,
    hostCredit: 0.75,
    diskCredit: 0.25,
    prefillLoadScale: 1,
    activeRequestWeight: 0,
  },
  temperature: 0,
  blockTokens: 16,
  useKvEvents: true,
  prediction: { ttlMs: 120_000, blocksMax: 2 ** 20, pruneRatio: 0.8, besideEventsMs: 2_000 },
  trackActiveBlocks: true,
  trackPrefillTokens: true,
  activeDecodeBlocksThreshold: null,
  activePrefillTokensThreshold: null,
  queue: { requestsMax: 1_024, waitMs: 10_000 },
  affinity: { ttlMs: 0, sessionsMax: 65_536, extraCostMax: 64 },
  requestExpiryMs: 300_000,
  explanationsMax: 4_096,
};
