import type { WorkerId } from "../core/index.ts";

/** A lifecycle command as its JSON is (docs/commands.md), without an envelope. */
export type PolicyCommand = {
  readonly type: "Warm" | "Prune" | "Cache" | "Think" | "Pause" | "RenewLease" | "RevokeLease";
} & Readonly<Record<string, unknown>>;

/** What became of a command; `receipt` has the counts of its blocks by outcome. */
export type CommandOutcome =
  | { readonly kind: "receipt"; readonly counts: Readonly<Record<string, number>> }
  | { readonly kind: "refused"; readonly why: string }
  | { readonly kind: "no_answer" };

/** Sends commands to agents and waits for their receipts. Never rejects. */
export interface Commander {
  send(worker: WorkerId, command: PolicyCommand): Promise<CommandOutcome>;
}
