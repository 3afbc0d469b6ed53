import type { CommandOutcome } from "../core/index.ts";

interface BlockReason {
  /** With which it comes; none: it is of a receipt alone. */
  readonly outcomes: readonly CommandOutcome[];
  readonly meaning: string;
}

/**
 * Why a block is not done: the stable words with which its `reason` begins; also the receipt's, of
 * commands that name no block.
 */
export const BLOCK_REASONS = {
  aborted: {
    outcomes: ["deferred"],
    meaning: "the agent stops; the rest was not looked at",
  },
  budget: {
    outcomes: ["rejected"],
    meaning: "pins and leases would keep more than they may; the figures are in `budget`",
  },
  busy: { outcomes: ["rejected"], meaning: "too many prunes walk the tree at once" },
  durable: {
    outcomes: ["deferred"],
    meaning: "done, but the disk did not confirm that it stays so after a loss of power",
  },
  forbidden: {
    outcomes: ["rejected"],
    meaning: "it would delete the block, and the sender's role does not; the key to set is named",
  },
  full: { outcomes: ["rejected"], meaning: "a warm would push out what is in RAM and warm" },
  gpu: {
    outcomes: ["done"],
    meaning: "removed from RAM and SSD; an engine keeps a copy on its GPU until it evicts it",
  },
  gpu_sink: {
    outcomes: ["deferred"],
    meaning: "in RAM; no engine here loads blocks to its GPU without a request",
  },
  interrupted: {
    outcomes: [],
    meaning: "of a receipt: the agent ended while the command was at work",
  },
  limit: {
    outcomes: ["rejected"],
    meaning: "more holds, owners, leases, or blocks under one hold, than can be kept",
  },
  name: { outcomes: ["rejected"], meaning: "it is neither a hash nor a key" },
  no_ssd: { outcomes: ["rejected"], meaning: "a pause, and this host has no SSD tier" },
  not_transient: { outcomes: ["rejected"], meaning: "a purge of what was never marked" },
  owner: { outcomes: ["rejected"], meaning: "a pause under the name of another owner's lease" },
  peers: {
    outcomes: ["deferred"],
    meaning: "a warm, and other hosts did not bring it in time",
  },
  ssd: {
    outcomes: ["deferred", "rejected"],
    meaning:
      "the SSD cannot write, read or delete it now; deletions and copies of pinned blocks are " +
      "tried again",
  },
  transient: {
    outcomes: ["deferred", "rejected"],
    meaning: "pinned in RAM alone, or not paused: it is never written to SSD",
  },
} as const satisfies Record<string, BlockReason>;
