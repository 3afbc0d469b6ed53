/** `dry-run`: decides, counts and explains as if it were on, and sends nothing. */
export const POLICY_MODES = ["off", "dry-run", "on"] as const;
export type PolicyMode = (typeof POLICY_MODES)[number];

interface SwitchSettings {
  readonly mode: PolicyMode;
  /** Commands that wait for their receipt; beyond it none is sent. */
  readonly inFlightMax: number;
}

/** Warms a worker that joined, or came back with nothing in RAM. */
export interface ColdWorkerSettings extends SwitchSettings {
  /** How long a worker counts as cold. */
  readonly phaseMs: number;
  /** Of one worker's phase, as receipts tell. */
  readonly bytesMax: number;
  readonly bytesPerSecond: number;
  readonly blocksMax: number;
  readonly blocksPerCommand: number;
  /** Prompts that must have begun with a block, conversations counted once each. */
  readonly usesMin: number;
  /** Workers warmed at a time; others wait for their turn. */
  readonly workersMax: number;
  /** Blocks whose uses are counted. */
  readonly prefixBlocksMax: number;
}

/** Puts what a silent session has to SSD under a lease, and fetches it when its user returns. */
export interface IdleSessionSettings extends SwitchSettings {
  readonly idleMs: number;
  /** Of a lease, from its last renewal. */
  readonly ttlMs: number;
  readonly leasesMax: number;
  readonly pausesPerTick: number;
  /** Less than this of its own is not worth a lease. */
  readonly tokensMin: number;
  /** A worker that refused a pause is not asked again for so long. */
  readonly backoffMs: number;
}

/** Pins what API messages mark with `cache_control`. */
export interface CacheControlSettings extends SwitchSettings {
  /** Where a mark says none. */
  readonly ttlMs: number;
  readonly ttlMaxMs: number;
  /** Shorter prefixes are not pinned. */
  readonly tokensMin: number;
  /** Pinned on one worker, shared prefixes counted once. */
  readonly ownerTokensMax: number;
  readonly workerTokensMax: number;
  readonly pinsMax: number;
  /** Marks of one request that are looked at. */
  readonly marksMax: number;
  readonly triesMax: number;
  /** A block that is not there yet is pinned after so long. */
  readonly retryMs: number;
}

/** The token ids that begin and end reasoning. */
export interface ReasoningTokens {
  readonly open: number;
  readonly close: number;
}

/** Marks reasoning as transient. */
export interface ReasoningSettings extends SwitchSettings {
  /** By model. A proxy may tell of more, from their chat templates. */
  readonly models: Readonly<Record<string, ReasoningTokens>>;
  readonly triesMax: number;
  readonly retryMs: number;
  /** Answers whose marks wait for their blocks. */
  readonly pendingMax: number;
}

/** Prunes what only a session used and its rewritten prompt left behind. */
export interface ContextRewriteSettings extends SwitchSettings {
  /** A way that was left must not have been taken again for so long: sub-agents come back. */
  readonly settleMs: number;
  /** Where the sender said that the prompt was rewritten. */
  readonly markedSettleMs: number;
  /** Shorter ends are left to age. */
  readonly tokensMin: number;
  readonly pendingMax: number;
}

/** What policies remember of conversations, all together. */
export interface SessionBookSettings {
  readonly blocksMax: number;
  readonly sessionsMax: number;
  /** A session that was silent for so long is forgotten. */
  readonly sessionMs: number;
  /** A request without a session counts as a user of its blocks for so long. */
  readonly anonymousMs: number;
  /** Ways of one session that are told apart: an agent and its sub-agents. */
  readonly linesMax: number;
  /** A prompt that drops fewer tokens of the one before goes on with it. */
  readonly slackTokens: number;
}

export interface PolicySettings {
  readonly tickMs: number;
  /** Live requests whose prompts are kept for policies. */
  readonly requestsMax: number;
  readonly book: SessionBookSettings;
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
  book: {
    blocksMax: 2 ** 20,
    sessionsMax: 65_536,
    sessionMs: 7_200_000,
    anonymousMs: 600_000,
    linesMax: 4,
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
