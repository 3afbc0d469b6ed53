/** Outcomes and reasons of lifecycle commands. */

/**
 * Outcome of a command for one block. `done`: the block is as requested, which survives any crash
 * on a host with an SSD tier. `already`: it was so before. `missing`: this host does not have the
 * block; nothing changed. `held`: another holder needs the block unchanged. `deferred`: the rest
 * will be done later; `reason` names the pending part. `rejected`: refused for `reason`.
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
 * Kind of holder that keeps a block unchanged. `engine`: a read or write in progress; `write`: a
 * write to SSD in progress; `gpu`: an engine has it on its GPU, from which Hearth does not evict;
 * `descendants`: blocks that depend on it.
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
  /** Owner of a pin, soft pin or lease. */
  readonly owner?: string;
  /** Id of a lease, or number of a session. */
  readonly name?: string;
}

export interface BlockResult {
  readonly outcome: CommandOutcome;
  /** A stable word, followed by details for people: "budget: 3 GiB of 4 GiB in use". */
  readonly reason?: string;
  /** Present with `held`. */
  readonly by?: readonly HeldBy[];
}

export type OutcomeCounts = Readonly<Record<CommandOutcome, number>>;

export function countOutcomes(results: readonly BlockResult[]): OutcomeCounts {
  const counts = { done: 0, already: 0, missing: 0, held: 0, deferred: 0, rejected: 0 };
  for (const { outcome } of results) counts[outcome]++;
  return counts;
}

/** Issuer of a command, for events, the eviction history and the audit log. */
export interface CommandOrigin {
  readonly issuer: string;
  /** Id of the command. Null: it had none. */
  readonly command: string | null;
}

/** Path prefix of files in a compiled Bun executable. */
const INSIDE = "/$bunfs/";

/**
 * Command line that starts this program as another process: the executable alone, or Bun and the
 * entry file in a checkout.
 */
export function selfCommand(): string[] {
  return Bun.main.startsWith(INSIDE) ? [process.execPath] : [process.execPath, Bun.main];
}
