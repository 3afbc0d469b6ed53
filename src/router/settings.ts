export const ROUTER_MODES = ["kv", "round-robin", "random", "direct", "least-loaded"] as const;
export type RouterMode = (typeof ROUTER_MODES)[number];

export type CostSettings =
  | {
      readonly kind: "credits";
      /** Weight of cached blocks. `c` in the formula of docs/internals/router.md. */
      readonly overlapCredit: number;
      /** Decay of the weight of cached blocks. `k` in the formula. */
      readonly creditDecay: number;
      readonly hostCredit: number;
      readonly diskCredit: number;
      /** Factor of the prefill blocks in the cost. `scale` in the formula. */
      readonly prefillLoadScale: number;
      /** Cost in blocks of each active request. `a` in the formula. */
      readonly activeRequestWeight: number;
    }
  /** Older formula: cost = overlapScoreWeight * prefill blocks + decode blocks. */
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
 * Default settings of routing decisions. Names and values follow Dynamo's router.
 * docs/internals/router.md lists the corresponding Dynamo flags.
 */
export const ROUTER_DEFAULTS = {
  mode: "kv" as RouterMode,
  cost: CREDITS_DEFAULTS as CostSettings,
  /** 0: the lowest cost wins. Above 0: softmax over costs scaled to [0, 1]. */
  temperature: 0,
  /** Tokens per block. Unit of the cost formula. */
  blockTokens: 16,
  /**
   * If true, cached blocks are known from KV events. If false, they are predicted from earlier
   * decisions.
   */
  useKvEvents: true,
  prediction: {
    ttlMs: 120_000,
    blocksMax: 2 ** 20,
    /** Share of `blocksMax` to which pruning reduces the predictions. */
    pruneRatio: 0.8,
    /**
     * If `useKvEvents` is true: time in ms for which a routed prompt counts as cached before KV
     * events confirm it. 0 disables.
     */
    besideEventsMs: 2_000,
  },
  /** If false, blocks of active requests do not count as load. For workers that only prefill. */
  trackActiveBlocks: true,
  trackPrefillTokens: true,
  /**
   * A worker is busy if more than this share of its KV blocks is active, in (0, 1]. Null: no limit.
   */
  activeDecodeBlocksThreshold: null as number | null,
  /** A worker is busy if it has more active prefill tokens than this. Null: no limit. */
  activePrefillTokensThreshold: null as number | null,
  /**
   * `requestsMax`: requests that may wait while all workers are busy; 0 rejects them immediately.
   */
  queue: { requestsMax: 1_024, waitMs: 10_000 },
  affinity: {
    /**
     * Time in ms for which a session stays with the worker of its latest request. 0 disables
     * affinity.
     */
    ttlMs: 0,
    sessionsMax: 65_536,
    /**
     * Maximum extra cost, in blocks, of the session's worker over the best candidate. Above it, the
     * router ignores affinity.
     */
    extraCostMax: 64,
  },
  /** Time in ms after its last update at which a request that was never freed expires. */
  requestExpiryMs: 300_000,
  /** Number of most recent explanations to keep. */
  explanationsMax: 4_096,
};

export type RouterSettings = Readonly<typeof ROUTER_DEFAULTS>;
