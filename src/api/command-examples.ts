/** Commands as they travel and what comes of them, for the description of the API. */

const KEY = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
const NONE = { done: 0, already: 0, missing: 0, held: 0, deferred: 0, rejected: 0 };
const FROM = { worker_id: "gpu-01", incarnation: "17040398372918264832", issuer: "router-1" };

/** A command with its receipt; `id` finds the receipt again. */
export interface CommandExample {
  readonly summary: string;
  readonly command: Readonly<Record<string, unknown>>;
  readonly receipt: Readonly<Record<string, unknown>>;
}

export const COMMAND_EXAMPLES: Readonly<Record<string, CommandExample>> = {
  Warm: {
    summary: "Bring blocks from SSD up to RAM",
    command: {
      type: "Warm",
      block_keys: [KEY],
      target_tier: "CPU_TIER1",
      id: "w-1",
      issuer: "router-1",
    },
    receipt: {
      ...FROM,
      id: "w-1",
      type: "Warm",
      status: "ok",
      counts: { ...NONE, done: 1 },
      blocks: [{ block: KEY, outcome: "done" }],
      bytes: 10_485_760,
      elapsed_ms: 7.5,
    },
  },
  Prune: {
    summary: "Drop what follows a block",
    command: { type: "Prune", after_block_hash: 1_234_567_890, id: "p-1", issuer: "router-1" },
    receipt: {
      ...FROM,
      id: "p-1",
      type: "Prune",
      status: "partial",
      counts: { ...NONE, done: 31, held: 1 },
      blocks: [],
      held: [
        { block: KEY, layer: 0xffff_ffff, outcome: "held", by: [{ kind: "pin", owner: "tools" }] },
      ],
      bytes: 325_058_560,
      durable: true,
      elapsed_ms: 4.1,
    },
  },
  Cache: {
    summary: "Pin blocks for an hour; `pin` false lets them go",
    command: {
      type: "Cache",
      block_hashes: [111, 222, 333],
      pin: true,
      ttl_seconds: 3600,
      owner: "system-prompts",
      id: "c-1",
      issuer: "router-1",
    },
    receipt: {
      ...FROM,
      id: "c-1",
      type: "Cache",
      status: "partial",
      counts: { ...NONE, done: 2, missing: 1 },
      blocks: [
        { block: 111, outcome: "done" },
        { block: 222, outcome: "done" },
        { block: 333, outcome: "missing" },
      ],
      durable: true,
      ttl_seconds: 3600,
      elapsed_ms: 3.2,
    },
  },
  Retain: {
    summary: "Prefer blocks, without a promise",
    command: { type: "Cache", block_hashes: [111], retain: 60, retain_seconds: 600 },
    receipt: {
      ...FROM,
      id: null,
      type: "Cache",
      status: "ok",
      counts: { ...NONE, done: 1 },
      blocks: [{ block: 111, outcome: "done" }],
      durable: true,
      elapsed_ms: 2.9,
    },
  },
  Think: {
    summary: "Never write reasoning to SSD; `transient` false purges it",
    command: { type: "Think", block_hashes: [444, 555], transient: true },
    receipt: {
      ...FROM,
      id: null,
      type: "Think",
      status: "ok",
      counts: { ...NONE, done: 1, already: 1 },
      blocks: [
        { block: 444, outcome: "done" },
        { block: 555, outcome: "already" },
      ],
      elapsed_ms: 0.4,
    },
  },
  Pause: {
    summary: "Put an idle session to sleep on SSD",
    command: {
      type: "Pause",
      block_hashes: [666, 777],
      ttl_seconds: 3600,
      lease_id: "session-abc",
    },
    receipt: {
      ...FROM,
      id: null,
      type: "Pause",
      status: "ok",
      counts: { ...NONE, done: 2 },
      blocks: [
        { block: 666, outcome: "done" },
        { block: 777, outcome: "done" },
      ],
      durable: true,
      lease_id: "session-abc",
      ttl_seconds: 3600,
      elapsed_ms: 5.6,
    },
  },
  RenewLease: {
    summary: "Let a lease run for another hour from now",
    command: { type: "RenewLease", lease_id: "session-abc", new_ttl_seconds: 3600 },
    receipt: {
      ...FROM,
      id: null,
      type: "RenewLease",
      status: "ok",
      counts: NONE,
      blocks: [],
      durable: true,
      lease_id: "session-abc",
      ttl_seconds: 3600,
      elapsed_ms: 2.1,
    },
  },
  RevokeLease: {
    summary: "End a lease, and purge what it alone held",
    command: { type: "RevokeLease", lease_id: "session-abc" },
    receipt: {
      ...FROM,
      id: null,
      type: "RevokeLease",
      status: "ok",
      counts: { ...NONE, done: 2 },
      blocks: [],
      durable: true,
      lease_id: "session-abc",
      elapsed_ms: 3.3,
    },
  },
  Flush: {
    summary: "Remove everything that nothing holds",
    command: { type: "Flush" },
    receipt: {
      ...FROM,
      id: null,
      type: "Flush",
      status: "partial",
      counts: { ...NONE, done: 97, held: 1 },
      blocks: [],
      held: [
        { block: KEY, layer: 0xffff_ffff, outcome: "held", by: [{ kind: "lease", name: "s-1" }] },
      ],
      bytes: 1_017_118_720,
      durable: true,
      elapsed_ms: 12.8,
    },
  },
};

/** A command that is at work: the answer to `wait=false`. */
export const RUNNING_RECEIPT = {
  ...FROM,
  id: "w-2",
  type: "Warm",
  status: "running",
  counts: NONE,
  blocks: [],
  progress: { done_blocks: 12, total_blocks: 233, bytes: 125_829_120 },
  elapsed_ms: 80.2,
};

/** Refused as a whole: nothing changed. */
export const REJECTED_RECEIPT = {
  ...FROM,
  id: "c-2",
  type: "Cache",
  status: "rejected",
  reason: "rate_limited: 20000 commands a second are allowed",
  counts: NONE,
  blocks: [],
  elapsed_ms: 0.1,
};
