/**
 * Settings of routing decisions. Names and defaults follow Dynamo's router; docs/internals/router.md lists
 * its flags.
 */
export interface RouterSettings {
  readonly mode: RouterMode;
  readonly cost: CostSettings;
  /** 0: the lowest cost wins. Above 0: softmax over costs scaled to [0, 1]. */
  readonly temperature: number;
  /** Tokens per block in the cost formula. */
  readonly blockTokens: number;
  /** If false, cached blocks are predicted from earlier routing decisions instead of KV events. */
  readonly useKvEvents: boolean;
  readonly prediction: PredictionSettings;
  /** If false, blocks of active requests are not counted (workers that only prefill). */
  readonly trackActiveBlocks: boolean;
  readonly trackPrefillTokens: boolean;
  /** A worker is busy above this share of its blocks, in (0, 1]. Null disables the limit. */
  readonly activeDecodeBlocksThreshold: number | null;
  /** A worker is busy above this number of active prefill tokens. Null disables the limit. */
  readonly activePrefillTokensThreshold: number | null;
  readonly queue: QueueSettings;
  readonly affinity: AffinitySettings;
  /** Requests that are never freed expire after this time. */
  readonly requestExpiryMs: number;
  /** Number of most recent explanations kept. */
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
      /** `c` in the formula of docs/internals/router.md. */
      readonly overlapCredit: number;
      /** `k` in the formula. */
      readonly creditDecay: number;
      readonly hostCredit: number;
      readonly diskCredit: number;
      /** `scale` in the formula. */
      readonly prefillLoadScale: number;
      /** `a` in the formula. */
      readonly activeRequestWeight: number;
    }
  /** cost = overlapScoreWeight * prefill blocks + decode blocks. */
  | { readonly kind: "classic"; readonly overlapScoreWeight: number };

export interface PredictionSettings {
  readonly ttlMs: number;
  readonly blocksMax: number;
  /** Pruning reduces the table to this share of `blocksMax`. */
  readonly pruneRatio: number;
  /**
   * With KV events on: time for which a routed prompt counts as cached until events confirm it. 0
   * disables.
   */
  readonly besideEventsMs: number;
}

export interface QueueSettings {
  /** Requests that may wait while all workers are busy. 0 refuses them immediately. */
  readonly requestsMax: number;
  readonly waitMs: number;
}

export interface AffinitySettings {
  /**
   * Time since its latest request for which a session stays with its worker. 0 disables affinity.
   */
  readonly ttlMs: number;
  readonly sessionsMax: number;
  /**
   * Affinity is dropped if the session's worker costs this many blocks more than the best
   * candidate.
   */
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
