/** `dry-run`: decides, counts and explains like `on`, but sends nothing. */
export const POLICY_MODES = ["off", "dry-run", "on"] as const;
export type PolicyMode = (typeof POLICY_MODES)[number];

interface SwitchSettings {
  readonly mode: PolicyMode;
  /** Maximum commands waiting for receipts. Beyond it, none is sent. */
  readonly inFlightMax: number;
}

/** Warms a worker that joined or restarted with empty RAM. */
export interface ColdWorkerSettings extends SwitchSettings {
  /** Time for which a worker counts as cold. */
  readonly phaseMs: number;
  /** Bytes per phase and worker, as reported by receipts. */
  readonly bytesMax: number;
  readonly bytesPerSecond: number;
  readonly blocksMax: number;
  readonly blocksPerCommand: number;
  /** Minimum prompts that began with a block, one per conversation. */
  readonly usesMin: number;
  /** Maximum workers warmed at a time. Others wait. */
  readonly workersMax: number;
  /** Maximum blocks whose uses are counted. */
  readonly prefixBlocksMax: number;
}

/**
 * Moves the blocks of an idle session to SSD under a lease, and fetches them when the user returns.
 */
export interface IdleSessionSettings extends SwitchSettings {
  readonly idleMs: number;
  /** TTL of a lease, from its last renewal. */
  readonly ttlMs: number;
  readonly leasesMax: number;
  readonly pausesPerTick: number;
  /** Minimum unshared tokens of a session to pause it. */
  readonly tokensMin: number;
  /** Time for which a worker that refused a pause is not asked again. */
  readonly backoffMs: number;
}

/** Pins prefixes marked with `cache_control` in API messages. */
export interface CacheControlSettings extends SwitchSettings {
  /** Default TTL of a mark. */
  readonly ttlMs: number;
  readonly ttlMaxMs: number;
  /** Minimum prefix length to pin. */
  readonly tokensMin: number;
  /** Limit per owner and worker. Shared prefixes count once. */
  readonly ownerTokensMax: number;
  readonly workerTokensMax: number;
  readonly pinsMax: number;
  /** Maximum marks considered per request. */
  readonly marksMax: number;
  readonly triesMax: number;
  /** Delay before retrying a block that is not resident yet. */
  readonly retryMs: number;
}

/** Token ids that open and close reasoning. */
export interface ReasoningTokens {
  readonly open: number;
  readonly close: number;
}

/** Marks reasoning blocks as transient. */
export interface ReasoningSettings extends SwitchSettings {
  /** By model. A proxy can add more from chat templates. */
  readonly models: Readonly<Record<string, ReasoningTokens>>;
  readonly triesMax: number;
  readonly retryMs: number;
  /** Maximum answers waiting for their blocks. */
  readonly pendingMax: number;
}

/** Prunes blocks that only one session used and that its rewritten prompt no longer contains. */
export interface ContextRewriteSettings extends SwitchSettings {
  /** Time without use before an abandoned branch is pruned. Sub-agents return to their branch. */
  readonly settleMs: number;
  /** The same, for prompts that the client marked as rewritten. */
  readonly markedSettleMs: number;
  /** Minimum tokens to prune. Shorter ends are left to age. */
  readonly tokensMin: number;
  readonly pendingMax: number;
}

/** Limits of the session table shared by all policies. */
export interface SessionTableSettings {
  readonly blocksMax: number;
  readonly sessionsMax: number;
  /** Idle time after which a session is removed. */
  readonly sessionMs: number;
  /** Time for which a request without a session counts as a user of its blocks. */
  readonly anonymousMs: number;
  /** Maximum branches per session: an agent and its sub-agents. */
  readonly branchesMax: number;
  /** A prompt that drops fewer tokens than this from the previous one continues its branch. */
  readonly slackTokens: number;
}

export interface PolicySettings {
  readonly tickMs: number;
  /** Maximum active requests whose prompts are kept for policies. */
  readonly requestsMax: number;
  readonly sessions: SessionTableSettings;
  readonly coldWorker: ColdWorkerSettings;
  readonly idleSession: IdleSessionSettings;
  readonly cacheControl: CacheControlSettings;
  readonly reasoning: ReasoningSettings;
  readonly contextRewrite: ContextRewriteSettings;
}

const OFF = { mode: "off", inFlightMax: 64 } as const;

export const POLICY_DEFAULTS: PolicySettings = {
  tickMs: 1_000,
  requestsMax: 65_536,
  sessions: {
    blocksMax: 2 ** 20,
    sessionsMax: 65_536,
    sessionMs: 7_200_000,
    anonymousMs: 600_000,
    branchesMax: 4,
    slackTokens: 1_024,
  },
  coldWorker: {
    ...OFF,
    phaseMs: 120_000,
    bytesMax: 16 * 2 ** 30,
    bytesPerSecond: 2 ** 30,
    blocksMax: 16_384,
    blocksPerCommand: 256,
    usesMin: 2,
    workersMax: 16,
    prefixBlocksMax: 65_536,
  },
  idleSession: {
    ...OFF,
    idleMs: 120_000,
    ttlMs: 3_600_000,
    leasesMax: 4_096,
    pausesPerTick: 32,
    tokensMin: 1_024,
    backoffMs: 300_000,
  },
  cacheControl: {
    ...OFF,
    ttlMs: 300_000,
    ttlMaxMs: 3_600_000,
    tokensMin: 1_024,
    ownerTokensMax: 2 ** 20,
    workerTokensMax: 2 ** 22,
    pinsMax: 16_384,
    marksMax: 4,
    triesMax: 3,
    retryMs: 2_000,
  },
  reasoning: { ...OFF, models: {}, triesMax: 3, retryMs: 2_000, pendingMax: 4_096 },
  contextRewrite: {
    ...OFF,
    settleMs: 300_000,
    markedSettleMs: 10_000,
    tokensMin: 1_024,
    pendingMax: 4_096,
  },
};
