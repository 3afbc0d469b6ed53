/** A pin, soft pin or lease. */
export interface RetentionRow {
  /** Unique and never reused. The caller assigns ids from 1. */
  readonly id: number;
  readonly kind: "pin" | "retain" | "lease";
  readonly owner: string;
  /** Name of a lease; null for other kinds. */
  readonly name: string | null;
  /** Deadline on the clock of the boot `bootId`. Null: none. */
  readonly deadlineBootMs: number | null;
  readonly bootId: string;
  /** Soft pins only: the priority, 0 to 99, and the time without use that halves it. */
  readonly priority: number | null;
  readonly idleMs: number | null;
  /** Milliseconds since 1970, for people. */
  readonly createdWallMs: number;
  /** Leases only: whether expiry removes the blocks. False in rows of older versions. */
  readonly purges: boolean;
  /** 36 bytes per block: digest, then the layer as u32 little-endian. */
  readonly blocks: Uint8Array;
}

/** More blocks of a pin. Large pins are divided into parts, so that a change rewrites only one. */
export interface PartRow {
  readonly hold: number;
  /** From 1, unique within the pin. */
  readonly part: number;
  /** As in `RetentionRow`. Empty: removes the part. */
  readonly blocks: Uint8Array;
}

/** An executed command, so that a repetition after a restart has no effect. */
export interface CommandRow {
  readonly issuer: string;
  readonly id: string;
  /** The receipt as JSON, at most a few KiB. A repetition is answered with it. */
  readonly receipt: string;
}

/** Latest epoch and sequence number of an issuer. Older commands are refused. */
export interface IssuerRow {
  readonly issuer: string;
  readonly epoch: bigint;
  readonly seq: bigint;
}

export interface LedgerContents {
  readonly holds: readonly RetentionRow[];
  /** Ordered by pin, then by part. */
  readonly parts: readonly PartRow[];
  /** The latest commands, oldest first. */
  readonly commands: readonly CommandRow[];
  /** The latest issuers, in the order of their last `putIssuer`. */
  readonly issuers: readonly IssuerRow[];
  /** The last time that the previous run recorded, on the clock of its boot. */
  readonly lastSeen: { readonly bootId: string; readonly bootMs: number } | null;
}

export interface LedgerState {
  /** Reason why the ledger currently fails. Null: it works. */
  readonly failing: string | null;
  readonly pending: number;
  readonly dropped: number;
  readonly setAside: { readonly path: string; readonly why: string } | null;
}

export interface CommitOptions {
  readonly durable?: boolean;
  /** The value of `mark` before the first change that matters to the caller. */
  readonly since?: number;
}

/**
 * Persists pins and commands across restarts. It is separate from the block index, so that a
 * rebuild of the index loses no pin. Guarantees:
 *
 * - No call blocks the event loop or throws because of the disk. Changes are committed in the
 *   background, in order, many per transaction. While the disk refuses they wait, up to a limit.
 * - Changes for which `commit` resolved to true survive a crash of the process; with `durable` (the
 *   default) also a power failure. Concurrent callers share one commit. After false the changes may
 *   still be committed later: they stay pending unless there was no room for them
 *   (`state.dropped`).
 * - All changes of one turn of the event loop are in one transaction. If one of them does not fit,
 *   all of them are dropped, and every `commit` that covers one of them resolves to false.
 * - A disk that hangs blocks no caller: after five seconds `state.failing` reports it, and until
 *   the disk answers every commit resolves to false immediately.
 * - A damaged file is set aside and reported (`state.setAside`), and the new one is empty. The same
 *   happens to a file that could not be opened at the start, once it can be, because this run
 *   started without its contents.
 */
export interface RetentionLedger extends AsyncDisposable {
  readonly state: LedgerState;
  /** The rows as they were when the ledger was opened. */
  readonly contents: LedgerContents;

  putHold(row: RetentionRow): void;
  putPart(row: PartRow): void;
  /** Removes the row and its parts. */
  removeHold(id: number): void;
  /**
   * Calls `write` once, at the end of this turn of the event loop. Its changes belong to this turn.
   */
  beforeTurnEnds(write: () => void): void;
  /** Adds a command. Beyond 65,536 commands or 64 MiB of receipts the oldest are removed. */
  putCommand(row: CommandRow): void;
  /** Adds or updates an issuer. Beyond 4,096 issuers the one put longest ago is removed. */
  putIssuer(row: IssuerRow): void;
  removeIssuer(issuer: string): void;
  /** Records the current time of the boot clock. Each commit writes the latest value. */
  seen(bootId: string, bootMs: number): void;

  /** For `commit`: the point before the changes of this turn. */
  readonly mark: number;
  /**
   * Commits all changes so far. False if the commit failed, or if changes after `since` were
   * dropped. Without `since` only the last turn with changes counts.
   */
  commit(options?: CommitOptions): Promise<boolean>;
  /** Commits and closes. False if that took longer than `ms`. */
  close(ms: number): Promise<boolean>;
}
