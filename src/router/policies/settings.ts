/**
 * Modes of a policy. `dry-run`: the policy decides, counts and explains as with `on`, but sends no
 * commands.
 */
export const POLICY_MODES = ["off", "dry-run", "on"] as const;
export type PolicyMode = (typeof POLICY_MODES)[number];

/** Token ids that open and close reasoning in a model's output. */
export interface ReasoningTokens {
  readonly open: number;
  readonly close: number;
}

/**
 * Default of each policy. `inFlightMax`: maximum commands without a receipt; at the limit, none is
 * sent.
 */
const OFF = { mode: "off" as PolicyMode, inFlightMax: 64 };

export const POLICY_DEFAULTS = {
  tickMs: 1_000,
  /** Maximum active requests whose prompts are stored for policies. */
  requestsMax: 65_536,
  /** Limits of the session table, which all policies share. */
  sessions: {
    blocksMax: 2 ** 20,
    sessionsMax: 65_536,
    /** Idle time in ms after which a session is removed. */
    sessionMs: 7_200_000,
    /** Time in ms for which a request without a session id counts as a user of its blocks. */
    anonymousMs: 600_000,
    /** Maximum branches per session. An agent and each of its sub-agents take one. */
    branchesMax: 4,
    /**
     * A prompt that lacks fewer tokens than this of the previous prompt still continues its branch.
     */
    slackTokens: 1_024,
  },
  /** Warms workers that joined or restarted with empty RAM. */
  coldWorker: {
    ...OFF,
    /** Time in ms for which a worker is warmed. */
    phaseMs: 120_000,
    /** Maximum bytes to move per phase and worker, as reported in receipts. */
    bytesMax: 16 * 2 ** 30,
    bytesPerSecond: 2 ** 30,
    blocksMax: 16_384,
    blocksPerCommand: 256,
    /**
     * Minimum number of prompts that began with a block for the block to be fetched. Counts one
     * prompt per conversation.
     */
    usesMin: 2,
    /** Maximum workers warmed at one time. Further workers wait. */
    workersMax: 16,
    /** Maximum blocks whose uses are counted. */
    prefixBlocksMax: 65_536,
  },
  /**
   * Moves the blocks of an idle session to SSD under a lease, and fetches them when its user
   * returns.
   */
  idleSession: {
    ...OFF,
    idleMs: 120_000,
    /** TTL of a lease in ms, counted from its last renewal. */
    ttlMs: 3_600_000,
    leasesMax: 4_096,
    pausesPerTick: 32,
    /** Minimum tokens that only this session uses. A session with fewer is not paused. */
    tokensMin: 1_024,
    /** Time in ms after a refused pause in which the worker gets no further pause. */
    backoffMs: 300_000,
  },
  /** Pins prefixes marked with `cache_control` in API messages. */
  cacheControl: {
    ...OFF,
    /** TTL in ms of a mark that has none. */
    ttlMs: 300_000,
    ttlMaxMs: 3_600_000,
    /** Minimum length of a prefix to pin. */
    tokensMin: 1_024,
    /** Maximum pinned tokens per owner and worker. A prefix shared by several pins counts once. */
    ownerTokensMax: 2 ** 20,
    workerTokensMax: 2 ** 22,
    pinsMax: 16_384,
    /** Maximum marks used per request. */
    marksMax: 4,
    triesMax: 3,
    /** Delay in ms before a retry if a block is not resident yet. */
    retryMs: 2_000,
  },
  /** Marks reasoning blocks as transient. */
  reasoning: {
    ...OFF,
    /** Reasoning tokens by model. A proxy can add those of further models from chat templates. */
    models: {} as Readonly<Record<string, ReasoningTokens>>,
    triesMax: 3,
    retryMs: 2_000,
    /** Maximum answers that wait until their blocks are resident. */
    pendingMax: 4_096,
  },
  /** Prunes blocks that only one session used and that its rewritten prompt no longer contains. */
  contextRewrite: {
    ...OFF,
    /**
     * Time in ms without use after which an abandoned branch is pruned. Sub-agents return to their
     * branch within this time.
     */
    settleMs: 300_000,
    /** Same time for prompts that the client declared as rewritten. */
    markedSettleMs: 10_000,
    /** Minimum tokens to prune. Shorter parts are left to normal eviction. */
    tokensMin: 1_024,
    pendingMax: 4_096,
  },
};

export type PolicySettings = Readonly<typeof POLICY_DEFAULTS>;
