/** Outcomes of commands on blocks, and the reasons for them. */

/**
 * Outcome of a command for one block. `done`: the block is now as requested; on a host with an SSD
 * tier, this survives a crash. `already`: it was so before. `missing`: this host does not have the
 * block, and nothing changed. `held`: the block stays unchanged because a holder needs it.
 * `deferred`: part of the work is still to be done; `reason` names that part. `rejected`: refused
 * for `reason`.
 */
export const COMMAND_OUTCOMES = [
  "done",
  "already",
  "missing",
  "held",
  "deferred",
  "rejected",
] as const;
export type CommandOutcome = (typeof COMMAND_OUTCOMES)[number];

/**
 * Kinds of holders, which keep a block unchanged. `engine`: a read or write by an engine is in
 * progress. `write`: a write to SSD is in progress. `gpu`: an engine has the block on its GPU, from
 * which Hearth does not evict. `descendants`: other blocks depend on it.
 */
export type HolderKind =
  | "pin"
  | "retain"
  | "lease"
  | "session"
  | "engine"
  | "write"
  | "gpu"
  | "descendants";

export interface HeldBy {
  readonly kind: HolderKind;
  /** Owner of the pin, soft pin or lease that holds the block. */
  readonly owner?: string;
  /** Id of the lease, or number of the session, that holds the block. */
  readonly name?: string;
}

export interface BlockResult {
  readonly outcome: CommandOutcome;
  /** A stable code, followed by details for operators: "budget: 3 GiB of 4 GiB in use". */
  readonly reason?: string;
  /** Holders of the block. Present if the outcome is `held`. */
  readonly by?: readonly HeldBy[];
}

export type OutcomeCounts = Readonly<Record<CommandOutcome, number>>;

export function countOutcomes(results: readonly BlockResult[]): OutcomeCounts {
  const counts = { done: 0, already: 0, missing: 0, held: 0, deferred: 0, rejected: 0 };
  for (const { outcome } of results) counts[outcome]++;
  return counts;
}

/** Origin of a command, for events, the eviction history and the audit log. */
export interface CommandOrigin {
  readonly issuer: string;
  /** Id of the command. Null if it has none. */
  readonly command: string | null;
}

/** Path prefix of files inside a compiled Bun executable. */
const INSIDE = "/$bunfs/";

/**
 * Returns the command line that starts this program as another process: only the executable, or in
 * a checkout Bun and the entry file.
 */
export function selfCommand(): string[] {
  return Bun.main.startsWith(INSIDE) ? [process.execPath] : [process.execPath, Bun.main];
}
