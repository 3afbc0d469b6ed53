import type { WorkerId } from "../core/index.ts";

/** A lifecycle command as its JSON is (docs/commands.md), without an envelope. */
export type PolicyCommand = {
  readonly type: "Warm" | "Prune" | "Cache" | "Think" | "Pause" | "RenewLease" | "RevokeLease";
} & Readonly<Record<string, unknown>>;

/**
 * What became of a command. `receipt`: its blocks by outcome, bytes moved or freed, and the time
 * that was granted where one was asked for. `refused`: by the agent as a whole, or by us before it
 * left. `no_answer`: it may or may not have been carried out.
 */
export type CommandOutcome =
  | {
      readonly kind: "receipt";
      readonly counts: Readonly<Record<string, number>>;
      readonly bytes: number;
      readonly ttlSeconds: number | null;
    }
  | { readonly kind: "refused"; readonly why: string }
  | { readonly kind: "no_answer" };

/** Sends commands to agents and waits for their receipts. Never rejects. */
export interface Commander {
  send(worker: WorkerId, command: PolicyCommand): Promise<CommandOutcome>;
}
