import { type Clock, TokenBuckets } from "../core/index.ts";
import type { EventLog } from "../observability/activity/index.ts";
import type { Logger } from "../observability/index.ts";
import type { AuditLog } from "./audit-log.ts";
import { blocksOf, type Command, type Sender } from "./command.ts";
import type { ControlStats } from "./control-plane.ts";
import type { Operation } from "./operation.ts";
import type { Receipt } from "./receipt.ts";
import type { RefusalWord } from "./refusals.ts";

export interface RecorderOptions {
  readonly clock: Clock;
  readonly events: EventLog;
  readonly log: Logger;
  readonly audit: AuditLog | null;
}

/** Refusals in a second that get a line each; a flood must not turn the audit log over. */
const REFUSALS_PER_SECOND = 100;

/** Names of blocks in a line. */
const NAMES_MAX = 8;

/** Counts commands and says what became of them: to the audit log, as events, in the log. */
export class Recorder {
  readonly #options: RecorderOptions;
  readonly #commands: Record<string, number> = {};
  readonly #refused: Partial<Record<RefusalWord, number>> = {};
  readonly #lines = new TokenBuckets();
  #duplicates = 0;
  /** Refusals since the last line about one. */
  #unsaid = 0;

  constructor(options: RecorderOptions) {
    this.#options = options;
  }

  counts(): Pick<ControlStats, "commands" | "refused" | "duplicates"> {
    return {
      commands: { ...this.#commands },
      refused: { ...this.#refused } as Record<string, number>,
      duplicates: this.#duplicates,
    };
  }

  carriedOut(command: Command, receipt: Receipt, sender: Sender): void {
    const { type, status, issuer, id } = receipt;
    const key = `${type}/${status}`;
    this.#commands[key] = (this.#commands[key] ?? 0) + 1;
    this.#audit(command, receipt, sender, {});
    const blocks = blocksOf(command);
    this.#options.events.emit({ kind: "command", type, issuer, id, status, blocks });
  }

  duplicate(command: Command, receipt: Receipt, sender: Sender, elapsedMs: number): void {
    this.#duplicates++;
    this.#audit(command, receipt, sender, { duplicate: true, elapsed_ms: elapsedMs });
  }

  /** `command`: null where it could not be read. */
  refused(command: Command | null, receipt: Receipt, word: RefusalWord, sender: Sender): void {
    this.#refused[word] = (this.#refused[word] ?? 0) + 1;
    const { type, issuer, reason = "" } = receipt;
    const fields = { type, issuer, via: sender.via, from: sender.from, reason };
    this.#options.log.warn("a command was refused", fields);
    const nowMs = this.#options.clock.monotonicMs();
    if (!this.#lines.take("", nowMs, REFUSALS_PER_SECOND, REFUSALS_PER_SECOND)) {
      this.#unsaid++;
      return;
    }
    this.#audit(command, receipt, sender, this.#unsaid === 0 ? {} : { left_out: this.#unsaid });
    this.#unsaid = 0;
  }

  /** What was done by another way than a command. */
  operation(operation: Operation, sender: Sender): void {
    const { type, blocks, names, status, reason, counts, elapsedMs } = operation;
    this.#write(sender, {
      issuer: sender.name,
      type,
      id: null,
      ...(blocks === null ? {} : { blocks }),
      ...(names.length === 0 ? {} : { names: names.slice(0, NAMES_MAX) }),
      status,
      ...(reason === null ? {} : { reason }),
      counts,
      elapsed_ms: elapsedMs,
    });
  }

  #audit(
    command: Command | null,
    receipt: Receipt,
    sender: Sender,
    more: Readonly<Record<string, unknown>>,
  ): void {
    this.#write(sender, {
      issuer: receipt.issuer,
      type: receipt.type,
      id: receipt.id,
      ...(command === null ? {} : whatOf(command)),
      status: receipt.status,
      ...(receipt.reason === undefined ? {} : { reason: receipt.reason }),
      counts: receipt.counts,
      elapsed_ms: receipt.elapsed_ms,
      ...more,
    });
  }

  #write(sender: Sender, what: Readonly<Record<string, unknown>>): void {
    const { audit, clock } = this.#options;
    audit?.write({
      time: new Date(clock.wallMs()).toISOString(),
      via: sender.via,
      from: sender.from,
      role: sender.role,
      ...(sender.broadcast ? { broadcast: true } : {}),
      ...what,
    });
  }
}

function whatOf(command: Command): Record<string, unknown> {
  return {
    ...(command.epoch === null ? {} : { epoch: command.epoch }),
    ...(command.owner === null ? {} : { owner: command.owner }),
    ...("leaseId" in command ? { lease: command.leaseId } : {}),
    ...(command.type === "Cache" ? { action: command.action.kind } : {}),
    ...(command.type === "Think" ? { transient: command.transient } : {}),
    blocks: blocksOf(command),
    ...namesOf(command),
  };
}

/** Which blocks: the first of them as they were named, so that a line stays short. */
function namesOf(command: Command): Record<string, unknown> {
  if (command.type === "Prune") return { after_block_hash: command.after.given };
  if (!("blocks" in command)) return {};
  return { names: command.blocks.slice(0, NAMES_MAX).map(({ given }) => given) };
}
