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

/** What became of an order; `dry_run`: it would have been sent. */
export type DeskOutcome = CommandOutcome | { readonly kind: "dry_run" };

interface Order {
  /** The request that caused it; null: time did. */
  readonly requestId: string | null;
  readonly worker: WorkerId;
  readonly command: PolicyCommand;
  /** Called once, with what became of it. */
  readonly settled?: (outcome: DeskOutcome) => void;
}

/** What a policy has done since the start. */
export interface PolicyCounts {
  readonly policy: PolicyName;
  readonly mode: PolicyMode;
  /** Dry runs among them. */
  readonly commands: number;
  readonly receipts: number;
  readonly refused: number;
  readonly noAnswer: number;
  readonly inFlight: number;
  /** By outcome, of all receipts. */
  readonly blocks: Readonly<Record<string, number>>;
  readonly bytes: number;
  /** What it left alone, by reason. */
  readonly declined: Readonly<Record<string, number>>;
}

interface DeskOptions {
  readonly policy: PolicyName;
  readonly mode: PolicyMode;
  readonly inFlightMax: number;
  readonly commander: Commander;
  /** Adds to the explanation of a request. */
  readonly note: (requestId: string, action: PolicyAction) => void;
}

interface WritableAction extends PolicyAction {
  outcome: string | null;
}

/** Where one policy hands in its commands: the switch, the bound, the counts, the explanations. */
export class Desk {
  readonly policy: PolicyName;
  readonly #options: DeskOptions;
  #mode: PolicyMode;
  readonly #blocks = new Map<string, number>();
  readonly #declined = new Map<string, number>();
  readonly #counts = { commands: 0, receipts: 0, refused: 0, noAnswer: 0, inFlight: 0, bytes: 0 };

  constructor(options: DeskOptions) {
    this.policy = options.policy;
    this.#options = options;
    this.#mode = options.mode;
  }

  /** Not `off`: who is off has no desk. */
  setMode(mode: PolicyMode): void {
    this.#mode = mode;
  }

  get counts(): PolicyCounts {
    return {
      policy: this.policy,
      mode: this.#mode,
      ...this.#counts,
      blocks: Object.fromEntries(this.#blocks),
      declined: Object.fromEntries(this.#declined),
    };
  }

  /** False: as many as may be wait for their receipts already; nothing was done. */
  get hasRoom(): boolean {
    return this.#counts.inFlight < this.#options.inFlightMax;
  }

  /** Something that the policy is about and leaves alone; `reason`: one of a few words. */
  decline(reason: string): void {
    this.#declined.set(reason, (this.#declined.get(reason) ?? 0) + 1);
  }

  /** As `decline`, said in the explanation of the request too. */
  declineFor(order: Pick<Order, "requestId" | "worker" | "command">, reason: string): void {
    this.decline(reason);
    this.#note(order, `declined: ${reason}`);
  }

  /** False, and nothing done, where there is no room. */
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

/** Whether every block it was about is gone or was never there. */
export function isAllMissing(outcome: DeskOutcome): boolean {
  if (outcome.kind !== "receipt") return false;
  const { missing = 0, ...others } = outcome.counts;
  return missing > 0 && Object.values(others).every((count) => count === 0);
}

/** Whether the agent did something of it, or would have. */
export function isSomeDone(outcome: DeskOutcome): boolean {
  if (outcome.kind === "dry_run") return true;
  if (outcome.kind !== "receipt") return false;
  const { done = 0, already = 0, deferred = 0 } = outcome.counts;
  return done + already + deferred > 0;
}

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

/** Things to do later, in order of time; bounded: beyond it nothing is taken. */
export class Later {
  readonly #max: number;
  readonly #tasks: { readonly dueMs: number; readonly run: () => void }[] = [];

  constructor(max: number) {
    this.#max = max;
  }

  get size(): number {
    return this.#tasks.length;
  }

  /** False: there is no room. */
  add(dueMs: number, run: () => void): boolean {
    if (this.#tasks.length >= this.#max) return false;
    let at = this.#tasks.length;
    while (at > 0 && this.#tasks[at - 1]!.dueMs > dueMs) at--;
    this.#tasks.splice(at, 0, { dueMs, run });
    return true;
  }

  /** Does what is due by then; what that adds waits for the next time. */
  run(nowMs: number): void {
    let due = 0;
    while (due < this.#tasks.length && this.#tasks[due]!.dueMs <= nowMs) due++;
    for (const { run } of this.#tasks.splice(0, due)) run();
  }
}
