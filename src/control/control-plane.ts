import type { TurnSource } from "../core/index.ts";
import type { CommandType, Sender } from "./command.ts";
import type { Operation } from "./operation.ts";
import type { Receipt } from "./receipt.ts";

/** Limits as the configuration has them now. */
export interface ControlLimits {
  /** Of one issuer, or of one account of the transport. */
  readonly commandsPerSecond: number;
  readonly commandsBurst: number;
  /** What may come by broadcast. */
  readonly broadcast: readonly CommandType[];
}

export interface SubmitOptions {
  /** Of a command that has none, where whatever brings it may bring it twice. */
  readonly id?: string;
  /** Of the command as it came: see `signedBytes`. Null or left out: it is not signed. */
  readonly signature?: string | null;
  /**
   * Whose slices of the event loop the command is read and begun in; those of one source keep their
   * order. Left out: at once.
   */
  readonly source?: TurnSource;
  /** Told at most once a second how far a long command is, by receipts with status `running`. */
  readonly onProgress?: (receipt: Receipt) => void;
}

export interface ControlStats {
  /** Commands carried out, by `type/status`: "Cache/ok". */
  readonly commands: Readonly<Record<string, number>>;
  /** Commands of which nothing was carried out, by the word of `REFUSALS`. */
  readonly refused: Readonly<Record<string, number>>;
  readonly duplicates: number;
  readonly running: number;
  readonly auditDropped: number;
  /** Why the audit log cannot be written; null where it can, or there is none. */
  readonly auditFailure: string | null;
}

/* How a command is remembered, so that a pin is not counted twice whenever the process may end:
 *
 * 1. Commands that count (Cache, Pause, RenewLease): in the turn in which the lifecycle changes
 *    holds it calls `remember`. There the command's row goes into the ledger, with a receipt that
 *    says `running`, or with the final one where no more than the commit is waited for. Ledgers
 *    commit all of a turn in one transaction: hold and command survive together, or neither does.
 * 2. The lifecycle awaits its durable commit. Then, unless it is there already, the row is put with
 *    the final receipt, and a second commit awaited that need not survive a loss of power. Only
 *    then it is answered. A ledger that hangs is waited for some seconds; the receipt is then not
 *    `durable`.
 *
 * Killed before the commit of 1: nothing happened, a repetition is carried out. Between 1 and 2: a
 * repetition gets `partial` with the reason `interrupted`, and the holds stand once. After 2: the
 * same receipt as before. Where the power fails behind 2 it may be the one of between. The other
 * commands bring about a state and are written at 2 alone: cut off before, they are carried out
 * again, which does no harm and ends what was begun.
 */

/**
 * The one way in for commands, whatever brought them: decodes, authorises, limits, deduplicates,
 * fences, carries out, remembers, and writes the audit log. Promises:
 *
 * - It never throws for what a command holds, and answers each with one receipt.
 * - A command with an id that was carried out is not carried out again, also after a restart; one
 *   that is at work answers all its repetitions when it is done.
 * - Commands of one issuer change holds and marks in the order in which they came where that makes
 *   a difference: those on one lease, and those on blocks (Cache, Think). A Pause, which holds its
 *   blocks once they are on SSD, is waited for by what is on its lease or removes, and by nothing
 *   else; Warm, Prune and Flush wait for those before them and hold up none behind them.
 * - What is beyond a limit is refused, not queued.
 */
export interface ControlPlane extends AsyncDisposable {
  /** `contentType`: of the body; JSON unless it says MessagePack. */
  submit(
    body: Uint8Array,
    contentType: string | null,
    sender: Sender,
    options?: SubmitOptions,
  ): Promise<Receipt>;
  /**
   * What is known of a command with this id (of this issuer, unless null), also while it runs;
   * where several sent one of that name, first what this account did.
   */
  find(id: string, issuer: string | null, account?: string): Receipt | null;
  flush(sender: Sender): Promise<Receipt>;
  /**
   * Forgets how far an issuer has come, of all accounts, and that it proved its name: its next
   * command is taken whatever its `epoch`. Returns how many scopes there were.
   */
  unfence(issuer: string, sender: Sender): number;
  /** Writes to the audit log what was done by another way than a command. Never waits or throws. */
  note(operation: Operation, sender: Sender): void;
  stats(): ControlStats;
  /** As they are now. */
  limits(): ControlLimits;
}
