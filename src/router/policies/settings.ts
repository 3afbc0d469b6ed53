/** `dry-run`: decides, counts and explains like `on`, but sends nothing. */
export const POLICY_MODES = ["off", "dry-run", "on"] as const;
export type PolicyMode = (typeof POLICY_MODES)[number];

/** Token ids that open and close reasoning. */
export interface ReasoningTokens {
  readonly open: number;
  readonly close: number;
}

/** `inFlightMax`: maximum commands waiting for receipts. Beyond it, none is sent. */
const OFF = { mode: "off" as PolicyMode, inFlightMax: 64 };

export const POLICY_DEFAULTS = {
  tickMs: 1_000,
  /** Maximum active requests whose prompts are kept for policies. */
  requestsMax: 65_536,
  /** Limits of the session table shared by all policies. */
  sessions: {
    blocksMax: 2 ** 20,
    sessionsMax: 65_536,
    /** Idle time after which a session is removed. */
    sessionMs: 7_200_000,
    /** Time for which a request without a session counts as a user of its blocks. */
    anonymousMs: 600_000,
    /** Maximum branches per session: an agent and its sub-agents. */
    branchesMax: 4,
    /** A prompt that drops fewer tokens than this from the previous one continues its branch. */
    slackTokens: 1_024,
  },
  /** Warms a worker that joined or restarted with empty RAM. */
  coldWorker: {
    ...OFF,
    /** Time for which a worker counts as cold. */
    phaseMs: 120_000,
    /** Bytes per phase and worker, as reported by receipts. */
    bytesMax: 16 * 2 ** 30,
    bytesPerSecond: 2 ** 30,
    blocksMax: 16_384,
    blocksPerCommand: 256,
    /** Minimum prompts that began with a block, one per conversation. */
    usesMin: 2,
    /** Maximum workers warmed at a time. Others wait. */
    workersMax: 16,
    /** Maximum blocks whose uses are counted. */
    prefixBlocksMax: 65_536,
  },
  /**
   * Moves the blocks of an idle session to SSD under a lease, and fetches them when the user
   * returns.
   */
  idleSession: {
    ...OFF,
    idleMs: 120_000,
    /** TTL of a lease, from its last renewal. */
    ttlMs: 3_600_000,
    leasesMax: 4_096,
    pausesPerTick: 32,
    /** Minimum unshared tokens of a session to pause it. */
    tokensMin: 1_024,
    /** Time for which a worker that refused a pause is not asked again. */
    backoffMs: 300_000,
  },
  /** Pins prefixes marked with `cache_control` in API messages. */
  cacheControl: {
    ...OFF,
    /** Default TTL of a mark. */
    ttlMs: 300_000,
    ttlMaxMs: 3_600_000,
    /** Minimum prefix length to pin. */
    tokensMin: 1_024,
    /** Limit per owner and worker. Shared prefixes count once. */
    ownerTokensMax: 2 ** 20,
    workerTokensMax: 2 ** 22,
    pinsMax: 16_384,
    /** Maximum marks considered per request. */
    marksMax: 4,
    triesMax: 3,
    /** Delay before retrying a block that is not resident yet. */
    retryMs: 2_000,
  },
  /** Marks reasoning blocks as transient. */
  reasoning: {
    ...OFF,
    /** By model. A proxy can add more from chat templates. */
    models: {} as Readonly<Record<string, ReasoningTokens>>,
    triesMax: 3,
    retryMs: 2_000,
    /** Maximum answers waiting for their blocks. */
    pendingMax: 4_096,
  },
  /** Prunes blocks that only one session used and that its rewritten prompt no longer contains. */
  contextRewrite: {
    ...OFF,
    /** Time without use before an abandoned branch is pruned. Sub-agents return to their branch. */
    settleMs: 300_000,
    /** The same, for prompts that the client marked as rewritten. */
    markedSettleMs: 10_000,
    /** Minimum tokens to prune. Shorter ends are left to age. */
    tokensMin: 1_024,
    pendingMax: 4_096,
  },
};

export type PolicySettings = Readonly<typeof POLICY_DEFAULTS>;
