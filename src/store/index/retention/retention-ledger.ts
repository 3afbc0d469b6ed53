/** A pin, a soft pin or a lease as it is remembered. */
export interface HoldRow {
  /** Unique in the ledger, never used again; the owner of the ledger gives them, from 1. */
  readonly id: number;
  readonly kind: "pin" | "retain" | "lease";
  readonly owner: string;
  /** Of a lease; null otherwise. */
  readonly name: string | null;
  /** When it ends, on the clock of the boot `bootId`; null: never. */
  readonly deadlineBootMs: number | null;
  readonly bootId: string;
  /** Of a soft pin: 0 to 99, and after how long without use it is worth half. */
  readonly priority: number | null;
  readonly idleMs: number | null;
  /** Milliseconds since 1970, for people. */
  readonly createdWallMs: number;
  /** Of a lease: its end removes its blocks. Rows from before this was kept: false. */
  readonly purges: boolean;
  /** 36 bytes a block: digest, layer as u32 little-endian. */
  readonly blocks: Uint8Array;
}

/** More blocks of a hold: one of many lies in parts, so that a change rewrites one of them. */
export interface PartRow {
  readonly hold: number;
  /** From 1, each once. */
  readonly part: number;
  /** As in `HoldRow`; none: the part is gone. */
  readonly blocks: Uint8Array;
}

/** A command that was carried out, so that its repetition after a restart changes nothing. */
export interface CommandRow {
  readonly issuer: string;
  readonly id: string;
  /** The receipt as JSON, at most some KiB: what a repetition is answered with. */
  readonly receipt: string;
}

/** How far an issuer has come: what is older is refused. */
export interface IssuerRow {
  readonly issuer: string;
  readonly epoch: bigint;
  readonly seq: bigint;
}

export interface LedgerContents {
  readonly holds: readonly HoldRow[];
  /** By hold, then by part. */
  readonly parts: readonly PartRow[];
  /** The latest, oldest first. */
  readonly commands: readonly CommandRow[];
  /** The latest, in the order in which they were put last. */
  readonly issuers: readonly IssuerRow[];
  /** The last moment the run before this one wrote down, on its boot's clock. */
  readonly lastSeen: { readonly bootId: string; readonly bootMs: number } | null;
}

export interface LedgerState {
  /** Null while it works; else what is wrong, in words. */
  readonly failing: string | null;
  readonly pending: number;
  readonly dropped: number;
  readonly setAside: { readonly path: string; readonly why: string } | null;
}

export interface CommitOptions {
  readonly durable?: boolean;
  /** `mark`, as it was before the first change that the caller speaks of. */
  readonly since?: number;
}

/**
 * Remembers holds and commands across restarts, beside the index of blocks and apart from it: an
 * index that has to be rebuilt loses no pin. Promises:
 *
 * - No call blocks the event loop or throws for what the disk does; changes are committed in the
 *   background, in order, many in one transaction. While the disk refuses they wait, up to a bound.
 * - What `commit` answered true for survives a crash of the process; with `durable` (the default)
 *   a loss of power, too. Any number of callers share one commit. One that answered false may still
 *   come about: its changes wait, unless there was no room for them (`state.dropped`).
 * - All changes of one turn of the event loop are in one transaction: all of them survive, or none;
 *   where one finds no room, all of them are dropped, and whoever commits any of them is told.
 * - Nobody waits for a disk that hangs: after five seconds `state.failing` says so, and until it
 *   answers every commit is false at once.
 * - A file that is damaged is set aside and said (`state.setAside`); the new one is empty. So is
 *   one that could not be opened at the start, as soon as it can be: this run knows nothing of it.
 */
export interface HoldLedger extends AsyncDisposable {
  readonly state: LedgerState;
  /** What was there when it was opened. */
  readonly contents: LedgerContents;

  putHold(row: HoldRow): void;
  putPart(row: PartRow): void;
  /** With its parts. */
  removeHold(id: number): void;
  /** Calls `write` once, at the end of this turn of the loop: what it puts is of this turn. */
  beforeTurnEnds(write: () => void): void;
  /** The oldest beyond 65,536, or beyond 64 MiB of receipts, are forgotten. */
  putCommand(row: CommandRow): void;
  /** The one put longest ago, beyond 4,096, is forgotten. */
  putIssuer(row: IssuerRow): void;
  removeIssuer(issuer: string): void;
  /** The boot clock as it is now; each commit carries the latest. */
  seen(bootId: string, bootMs: number): void;

  /** For `commit`: names the moment before the changes of this turn. */
  readonly mark: number;
  /**
   * Commits everything up to now; false where that failed, or changes were dropped since the mark.
   * Without a mark those count that were made in the last turn in which any were.
   */
  commit(options?: CommitOptions): Promise<boolean>;
  /** Commits and closes; false where it could not within `ms`. */
  close(ms: number): Promise<boolean>;
}
