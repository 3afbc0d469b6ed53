export const ROUTER_MODES = ["kv", "round-robin", "random", "direct", "least-loaded"] as const;
export type RouterMode = (typeof ROUTER_MODES)[number];

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

/** Cost settings of Dynamo's current formula; its two terms with the weight 0 are off. */
export const CREDITS_DEFAULTS = {
  kind: "credits",
  overlapCredit: 1,
  creditDecay: 0,
  hostCredit: 0.75,
  diskCredit: 0.25,
  prefillLoadScale: 1,
  activeRequestWeight: 0,
} as const;

/**
 * Settings of routing decisions. Names and defaults follow Dynamo's router; docs/internals/router.md lists
 * its flags.
 */
export const ROUTER_DEFAULTS = {
  mode: "kv" as RouterMode,
  cost: CREDITS_DEFAULTS as CostSettings,
  /** 0: the lowest cost wins. Above 0: softmax over costs scaled to [0, 1]. */
  temperature: 0,
  /** Tokens per block in the cost formula. */
  blockTokens: 16,
  /** If false, cached blocks are predicted from earlier routing decisions instead of KV events. */
  useKvEvents: true,
  prediction: {
    ttlMs: 120_000,
    blocksMax: 2 ** 20,
    /** Pruning reduces the table to this share of `blocksMax`. */
    pruneRatio: 0.8,
    /**
     * With KV events on: time for which a routed prompt counts as cached until events confirm it. 0
     * disables.
     */
    besideEventsMs: 2_000,
  },
  /** If false, blocks of active requests are not counted (workers that only prefill). */
  trackActiveBlocks: true,
  trackPrefillTokens: true,
  /** A worker is busy above this share of its blocks, in (0, 1]. Null disables the limit. */
  activeDecodeBlocksThreshold: null as number | null,
  /** A worker is busy above this number of active prefill tokens. Null disables the limit. */
  activePrefillTokensThreshold: null as number | null,
  /** Requests that may wait while all workers are busy. 0 refuses them immediately. */
  queue: { requestsMax: 1_024, waitMs: 10_000 },
  affinity: {
    /**
     * Time since its latest request for which a session stays with its worker. 0 disables affinity.
     */
    ttlMs: 0,
    sessionsMax: 65_536,
    /**
     * Affinity is dropped if the session's worker costs this many blocks more than the best
     * candidate.
     */
    extraCostMax: 64,
  },
  /** Requests that are never freed expire after this time. */
  requestExpiryMs: 300_000,
  /** Number of most recent explanations kept. */
  explanationsMax: 4_096,
};

export type RouterSettings = Readonly<typeof ROUTER_DEFAULTS>;
