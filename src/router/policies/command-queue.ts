import type { WorkerId } from "../../core/index.ts";
import type { PolicyAction } from "../route.ts";
import type { PolicyMode } from "./settings.ts";

export const POLICY_NAMES = [
  "cold_worker",
  "idle_session",
  "cache_control",
  "reasoning",
  "context_rewrite",
] as const;
export type PolicyName = (typeof POLICY_NAMES)[number];

/** Outcome of a policy's command. `dry_run`: the mode is `dry-run`, so nothing was sent. */
export type OrderOutcome = CommandOutcome | { readonly kind: "dry_run" };

interface Order {
  /** Request that caused the command. Null: a timer caused it. */
  readonly requestId: string | null;
  readonly worker: WorkerId;
  readonly command: PolicyCommand;
  /** Called once with the command's outcome. */
  readonly settled?: (outcome: OrderOutcome) => void;
}

export type PolicyCounts = CommandQueue["counts"];

interface CommandQueueOptions {
  readonly policy: PolicyName;
  readonly mode: PolicyMode;
  readonly inFlightMax: number;
  readonly commander: Commander;
  /** Adds an action to the explanation of a request. */
  readonly note: (requestId: string, action: PolicyAction) => void;
}

interface WritableAction extends PolicyAction {
  outcome: string | null;
}

/**
 * Sends the commands of one policy. Applies the policy's mode and the limit of commands in flight,
 * counts outcomes, and adds actions to explanations.
 */
export class CommandQueue {
  readonly policy: PolicyName;
  readonly #options: CommandQueueOptions;
  #mode: PolicyMode;
  readonly #blocks = new Map<string, number>();
  readonly #declined = new Map<string, number>();
  readonly #counts = {
    /** Commands, including dry runs. */
    commands: 0,
    receipts: 0,
    refused: 0,
    noAnswer: 0,
    inFlight: 0,
    bytes: 0,
  };

  constructor(options: CommandQueueOptions) {
    this.policy = options.policy;
    this.#options = options;
    this.#mode = options.mode;
  }

  /** Sets the mode. `mode` must not be `off`: a policy that is off has no queue. */
  setMode(mode: PolicyMode): void {
    this.#mode = mode;
  }

  /** Returns the counters since the start. */
  get counts() {
    return {
      policy: this.policy,
      mode: this.#mode,
      ...this.#counts,
      /** Number of blocks in all receipts, by outcome. */
      blocks: Object.fromEntries(this.#blocks),
      /** Number of cases in which the policy decided to send no command, by reason. */
      declined: Object.fromEntries(this.#declined),
    };
  }

  /** True if another command may be sent: fewer than `inFlightMax` are in flight. */
  get hasRoom(): boolean {
    return this.#counts.inFlight < this.#options.inFlightMax;
  }

  /** Counts a case in which the policy sends no command. `reason` is one of a small fixed set. */
  decline(reason: string): void {
    this.#declined.set(reason, (this.#declined.get(reason) ?? 0) + 1);
  }

  /**
   * Counts a case in which the policy sends no command, and adds the reason to the request's
   * explanation.
   */
  declineFor(order: Pick<Order, "requestId" | "worker" | "command">, reason: string): void {
    this.decline(reason);
    this.#note(order, `declined: ${reason}`);
  }

  /**
   * Sends a command. Returns false and does nothing if the limit of commands in flight is reached.
   */
  send(order: Order): boolean {
    if (!this.hasRoom) {
      this.declineFor(order, "in_flight");
      return false;
    }
    this.#counts.commands++;
    if (this.#mode !== "on") {
      this.#note(order, "dry run");
      order.settled?.({ kind: "dry_run" });
      return true;
    }
    const action = this.#note(order, null);
    this.#counts.inFlight++;
    this.#options.commander.send(order.worker, order.command).then((outcome) => {
      this.#counts.inFlight--;
      this.#count(outcome);
      action.outcome = wordsOf(outcome);
      order.settled?.(outcome);
    });
    return true;
  }

  #note(order: Pick<Order, "requestId" | "worker" | "command">, outcome: string | null) {
    const action: WritableAction = {
      policy: this.policy,
      command: order.command.type,
      worker: order.worker,
      isDryRun: this.#mode !== "on",
      outcome,
    };
    if (order.requestId !== null) this.#options.note(order.requestId, action);
    return action;
  }

  #count(outcome: CommandOutcome): void {
    if (outcome.kind === "refused") this.#counts.refused++;
    if (outcome.kind === "no_answer") this.#counts.noAnswer++;
    if (outcome.kind !== "receipt") return;
    this.#counts.receipts++;
    this.#counts.bytes += outcome.bytes;
    for (const [name, count] of Object.entries(outcome.counts)) {
      this.#blocks.set(name, (this.#blocks.get(name) ?? 0) + count);
    }
  }
}

function wordsOf(outcome: CommandOutcome): string {
  if (outcome.kind === "no_answer") return "no answer";
  if (outcome.kind === "refused") return `refused: ${outcome.why}`;
  const some = Object.entries(outcome.counts).filter(([, count]) => count > 0);
  return some.length === 0 ? "done" : some.map(([name, count]) => `${count} ${name}`).join(", ");
}

/** Returns true if the agent has none of the command's blocks. */
export function isAllMissing(outcome: OrderOutcome): boolean {
  if (outcome.kind !== "receipt") return false;
  const { missing = 0, ...others } = outcome.counts;
  return missing > 0 && Object.values(others).every((count) => count === 0);
}

/** Returns true if the agent acted on at least one block, or would have without dry-run mode. */
export function isSomeDone(outcome: OrderOutcome): boolean {
  if (outcome.kind === "dry_run") return true;
  if (outcome.kind !== "receipt") return false;
  const { done = 0, already = 0, deferred = 0 } = outcome.counts;
  return done + already + deferred > 0;
}

/**
 * A command to an agent in JSON form, without the envelope. docs/reference/commands.md has the
 * format.
 */
export type PolicyCommand = {
  readonly type: "Warm" | "Prune" | "Cache" | "Think" | "Pause" | "RenewLease" | "RevokeLease";
} & Readonly<Record<string, unknown>>;

/**
 * Outcome of a command. `receipt`: number of blocks by outcome, bytes moved or freed, and the
 * granted TTL if the command requested one. `refused`: the agent rejected the command, or the
 * router did not send it. `no_answer`: the agent may have executed the command or not.
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

/** Bounded queue of actions to run later, ordered by due time. */
export class DelayQueue {
  readonly #max: number;
  readonly #tasks: { readonly dueMs: number; readonly run: () => void }[] = [];

  constructor(max: number) {
    this.#max = max;
  }

  get size(): number {
    return this.#tasks.length;
  }

  /** Adds an action. Returns false if the queue is full. */
  add(dueMs: number, run: () => void): boolean {
    if (this.#tasks.length >= this.#max) return false;
    let at = this.#tasks.length;
    while (at > 0 && this.#tasks[at - 1].dueMs > dueMs) at--;
    this.#tasks.splice(at, 0, { dueMs, run });
    return true;
  }

  /**
   * Runs all actions that are due at `nowMs`. Actions added during the call wait for the next call.
   */
  run(nowMs: number): void {
    let due = 0;
    while (due < this.#tasks.length && this.#tasks[due].dueMs <= nowMs) due++;
    for (const { run } of this.#tasks.splice(0, due)) run();
  }
}
