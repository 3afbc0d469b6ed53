/** The words in which a host answers a lifecycle command. */

/**
 * What became of one block of a command. `done`: it is as the command wants it, and that survives
 * a crash of any kind where the host has an SSD tier. `already`: it was before. `missing`: this
 * host does not have it; nothing changed. `held`: somebody else needs it as it is. `deferred`: it
 * will be done, or half of it is; `reason` says what is outstanding. `rejected`: it was refused;
 * `reason`.
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
 * What keeps a block as it is. `engine`: a read or write under way; `write`: its way to SSD;
 * `gpu`: an engine has it on its GPU, which is not ours to evict; `descendants`: blocks that build
 * upon it.
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
  /** Of a pin, retain or lease. */
  readonly owner?: string;
  /** Of a lease its id, of a session its number. */
  readonly name?: string;
}

export interface BlockResult {
  readonly outcome: CommandOutcome;
  /** A stable word and then more for people: "budget: 3 GiB of 4 GiB in use". */
  readonly reason?: string;
  /** With `held`. */
  readonly by?: readonly HeldBy[];
}

export type OutcomeCounts = Readonly<Record<CommandOutcome, number>>;

export function countOutcomes(results: readonly BlockResult[]): OutcomeCounts {
  const counts = { done: 0, already: 0, missing: 0, held: 0, deferred: 0, rejected: 0 };
  for (const { outcome } of results) counts[outcome]++;
  return counts;
}

/** Who asked for it: goes into events, the history of evictions, and the audit log. */
export interface CommandOrigin {
  readonly issuer: string;
  /** The command's id; null where it had none. */
  readonly command: string | null;
}

/** Where Bun keeps the files inside a compiled executable. */
const INSIDE = "/$bunfs/";

/**
 * The words that start this same program as another process: the executable alone, or Bun and the
 * entry file in a checkout.
 */
export function selfCommand(): string[] {
  return Bun.main.startsWith(INSIDE) ? [process.execPath] : [process.execPath, Bun.main];
}
