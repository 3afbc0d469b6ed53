import { assert, type Clock, yieldToLoop } from "../../../core/index.ts";
import { crashPoint } from "../../../native/index.ts";
import {
  type IndexOwner,
  IndexWorkerClient,
  type LedgerChanges,
  type Opened,
  type OpenOrder,
} from "../index-worker-client.ts";
import { BUSY_MS, SqliteWriter, type SqliteWriterOptions } from "../sqlite-writer.ts";

/** Maximum bytes of changes not committed yet. */
const PENDING_BYTES_MAX = 64 * 2 ** 20;
/** Milliseconds after which an unanswered request means that the disk hangs. */
const HUNG_MS = 5_000;

/** Ledger row of a pin, soft pin or lease. */
export interface RetentionRow {
  /** Unique and never reused. The caller assigns ids, from 1. */
  readonly id: number;
  readonly kind: "pin" | "retain" | "lease";
  readonly owner: string;
  /** Name of a lease; null for other kinds. */
  readonly name: string | null;
  /** Deadline on the clock of the boot `bootId`; null if the pin does not expire. */
  readonly deadlineBootMs: number | null;
  readonly bootId: string;
  /** For soft pins only: the priority, 0 to 99, and the milliseconds without use that halve it. */
  readonly priority: number | null;
  readonly idleMs: number | null;
  /** Unix time of creation in milliseconds, for display. */
  readonly createdWallMs: number;
  /** For leases only: true if expiry removes the blocks. False in rows of older versions. */
  readonly purges: boolean;
  /** The blocks, 36 bytes each: digest, then the layer as u32 little-endian. */
  readonly blocks: Uint8Array;
}

/**
 * Ledger row with more blocks of a pin. A large pin is divided into parts, so that a change
 * rewrites only one part.
 */
export interface PartRow {
  readonly hold: number;
  /** Number of the part, from 1, unique within the pin. */
  readonly part: number;
  /** The blocks, as in `RetentionRow`. Empty: removes the part. */
  readonly blocks: Uint8Array;
}

/**
 * Ledger row of an executed command, so that a repetition of the command after a restart has no
 * effect.
 */
export interface CommandRow {
  readonly issuer: string;
  readonly id: string;
  /** The receipt as JSON, at most a few KiB. A repetition of the command is answered with it. */
  readonly receipt: string;
}

/**
 * Ledger row with the latest epoch and sequence number of an issuer. Commands with older numbers
 * are refused.
 */
export interface IssuerRow {
  readonly issuer: string;
  readonly epoch: bigint;
  readonly seq: bigint;
}

export interface LedgerContents {
  readonly holds: readonly RetentionRow[];
  /** Further parts of large pins, ordered by pin, then by part number. */
  readonly parts: readonly PartRow[];
  /** The latest commands, oldest first. */
  readonly commands: readonly CommandRow[];
  /** The latest issuers, in the order in which they were last written. */
  readonly issuers: readonly IssuerRow[];
  /** The last time that the previous run recorded, on the clock of its boot; null if none. */
  readonly lastSeen: { readonly bootId: string; readonly bootMs: number } | null;
}

/** A change of the ledger. Changes that add a row also represent the stored rows. */
export type LedgerChange =
  | { readonly kind: "hold"; readonly row: RetentionRow }
  | { readonly kind: "part"; readonly row: PartRow }
  | { readonly kind: "removeHold"; readonly id: number }
  | { readonly kind: "command"; readonly row: CommandRow }
  | { readonly kind: "issuer"; readonly row: IssuerRow }
  | { readonly kind: "removeIssuer"; readonly issuer: string };

export interface LedgerState {
  /** Reason why the ledger cannot be written at present; null if it can. */
  readonly failing: string | null;
  readonly pending: number;
  readonly dropped: number;
  readonly setAside: { readonly path: string; readonly why: string } | null;
}

export interface CommitOptions {
  readonly durable?: boolean;
  /** The value of `mark` before the first change whose loss concerns the caller. */
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
export class SqliteLedger extends SqliteWriter<ChangeBatch> {
  /** The rows as they were when the ledger was opened. */
  readonly contents: LedgerContents;
  protected readonly log: ChangeGroups;
  /** Callers of `commit` in this turn of the event loop. They start to wait when the turn ends. */
  readonly #arriving: (() => void)[] = [];
  readonly #late: (() => void)[] = [];
  #lastSeen: LedgerContents["lastSeen"] = null;
  #isTurnOpen = false;

  constructor(
    worker: IndexWorkerClient,
    opened: Opened,
    options: SqliteWriterOptions & {
      readonly contents: LedgerContents;
      readonly pendingBytesMax?: number | undefined;
    },
  ) {
    super(worker, opened, options);
    this.contents = options.contents;
    this.log = new ChangeGroups(options.pendingBytesMax ?? PENDING_BYTES_MAX);
  }

  get state(): LedgerState {
    const { failing, pending, setAside } = this;
    return { failing, pending, dropped: this.log.dropped, setAside };
  }

  /** Adds or replaces a row. The ledger owns `row` and its arrays from now on. */
  putHold(row: RetentionRow): void {
    const numbers = [row.id, row.deadlineBootMs, row.priority, row.idleMs, row.createdWallMs];
    const finite = numbers.every((value) => value === null || Number.isFinite(value));
    assert(finite, "a number is finite");
    this.#add({ kind: "hold", row });
  }

  putPart(row: PartRow): void {
    this.#add({ kind: "part", row });
  }

  /** Removes the row of a pin and its parts. */
  removeHold(id: number): void {
    this.#add({ kind: "removeHold", id });
  }

  /**
   * Calls `write` once, at the end of this turn of the event loop. The changes that it makes belong
   * to this turn.
   */
  beforeTurnEnds(write: () => void): void {
    this.#late.push(write);
    this.#endTurnSoon();
  }

  /**
   * Adds a command. Above 65,536 commands or 64 MiB of receipts the oldest commands are removed.
   */
  putCommand(row: CommandRow): void {
    this.#add({ kind: "command", row });
  }

  /**
   * Adds or updates an issuer. Above 4,096 issuers the one that was written longest ago is removed.
   */
  putIssuer(row: IssuerRow): void {
    const isU64 = (value: bigint) => BigInt.asUintN(64, value) === value;
    assert(isU64(row.epoch) && isU64(row.seq), "a number fits into 64 bits");
    this.#add({ kind: "issuer", row });
  }

  removeIssuer(issuer: string): void {
    this.#add({ kind: "removeIssuer", issuer });
  }

  /** Records the current time of the boot clock. Each commit writes the latest value. */
  seen(bootId: string, bootMs: number): void {
    this.#lastSeen = { bootId, bootMs };
  }

  /** Position before the changes of this turn of the event loop, for `commit`. */
  get mark(): number {
    return this.log.group;
  }

  /**
   * Commits all changes so far. Resolves to false if the commit failed, or if changes after `since`
   * were dropped. Without `since`, only changes of the last turn that made any count as dropped.
   */
  commit({ durable = true, ...options }: CommitOptions = {}): Promise<boolean> {
    const { group, lastGroup } = this.log;
    const since = options.since ?? (this.#late.length > 0 ? group : lastGroup);
    return new Promise((resolve) => {
      this.#arriving.push(() => {
        const hasDropped = this.log.lostGroup >= since;
        const answer = (isCommitted: boolean) => resolve(isCommitted && !hasDropped);
        if (this.isHung) answer(false);
        else this.waiters.push({ upTo: this.log.newest, durable, resolve: answer });
      });
      this.#endTurnSoon();
    });
  }

  protected async finish(): Promise<boolean> {
    return (await this.commit()) && this.isOpen && (await this.closeFile());
  }

  #add(change: LedgerChange): void {
    this.log.add(change, this.inFlight?.bytes ?? 0);
    this.#endTurnSoon();
    this.schedule();
  }

  #endTurnSoon(): void {
    if (this.#isTurnOpen) return;
    this.#isTurnOpen = true;
    void yieldToLoop().then(() => this.#endTurn());
  }

  /**
   * Ends the group of changes of this turn. Callers of `commit` in this turn wait for the same
   * commit.
   */
  #endTurn(): void {
    this.#isTurnOpen = false;
    this.#endGroup();
    const arriving = this.#arriving.splice(0);
    for (const arrive of arriving) arrive();
    if (arriving.length > 0) void this.pump();
  }

  #endGroup(): void {
    for (const write of this.#late.splice(0)) write();
    this.log.endGroup();
  }

  protected newest(): number {
    this.#endGroup();
    return this.log.newest;
  }

  protected changesOf(batch: ChangeBatch | null): LedgerChanges {
    return { rows: batch?.changes ?? [], lastSeen: this.#lastSeen };
  }

  protected onCommitted(): void {
    crashPoint("ledger.acknowledged");
  }
}

/** The public methods of `SqliteLedger`. */
export type RetentionLedger = Pick<SqliteLedger, keyof SqliteLedger>;

/** Bytes above which a batch takes no further group of changes. */
const BATCH_BYTES = 2 ** 20;
/** Extra bytes allowed for removals, so that pins can be removed even if the log is full. */
const REMOVALS_BYTES = 4 * 2 ** 20;
/** Estimated bytes of a change, without its texts and blocks. */
const CHANGE_BYTES = 128;

/** Changes that are sent to the worker together. */
interface ChangeBatch {
  readonly changes: LedgerChange[];
  /** Estimated memory of the changes in bytes. */
  bytes: number;
  count: number;
  /** Number of the last group in the batch. */
  number: number;
}

/**
 * Changes that were not sent to the worker yet, in order and in groups of one turn of the event
 * loop. A group is committed as a whole. If it does not fit into `bytesMax`, it is dropped as a
 * whole.
 */
class ChangeGroups {
  /** Complete groups, and the current group if it has changes. */
  readonly #batches: ChangeBatch[] = [];
  readonly #bytesMax: number;
  #current: ChangeBatch = { changes: [], bytes: 0, count: 0, number: 1 };
  #count = 0;
  #bytes = 0;
  /** True if the current group did not fit, so that its later changes are dropped too. */
  #isLost = false;
  /** Number of changes dropped so far. */
  dropped = 0;
  /** Number of the last complete group that was not dropped; 0: none. */
  newest = 0;
  /** Number of the last group that was dropped; -1: none. */
  lostGroup = -1;

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  /** Number of changes that were not sent to the worker yet. */
  get count(): number {
    return this.#count;
  }

  /** Number of the current group, from 1. */
  get group(): number {
    return this.#current.number;
  }

  /** Number of the last group with changes; 0: none. */
  get lastGroup(): number {
    return this.#current.count > 0 ? this.group : this.group - 1;
  }

  /**
   * Adds a change to the current group. `inFlightBytes`: bytes of the batch that was sent to the
   * worker and is not committed yet.
   */
  add(change: LedgerChange, inFlightBytes: number): void {
    if (this.#isLost) {
      this.dropped++;
      return;
    }
    const current = this.#current;
    const bytes = bytesOf(change);
    current.changes.push(change);
    current.count++;
    current.bytes += bytes;
    this.#count++;
    this.#bytes += bytes;
    const max = this.#bytesMax + (isRemoval(change) ? REMOVALS_BYTES : 0);
    if (this.#bytes + inFlightBytes <= max) return;
    this.dropped += current.count;
    this.#count -= current.count;
    this.#bytes -= current.bytes;
    this.#isLost = true;
    this.lostGroup = current.number;
  }

  /** Ends the current group of changes. */
  endGroup(): void {
    const group = this.#current;
    if (group.count === 0) return;
    if (!this.#isLost) {
      this.#batches.push(group);
      this.newest = group.number;
    }
    this.#isLost = false;
    this.#current = { changes: [], bytes: 0, count: 0, number: group.number + 1 };
  }

  /** Takes the oldest complete groups as a batch; null if there are none. */
  take(): ChangeBatch | null {
    const batch = this.#batches.shift();
    if (batch === undefined) return null;
    while (batch.bytes < BATCH_BYTES) {
      const next = this.#batches.shift();
      if (next === undefined) break;
      for (const change of next.changes) batch.changes.push(change);
      batch.bytes += next.bytes;
      batch.count += next.count;
      batch.number = next.number;
    }
    this.#count -= batch.count;
    this.#bytes -= batch.bytes;
    return batch;
  }
}

function isRemoval(change: LedgerChange): boolean {
  if (change.kind === "part") return change.row.blocks.length === 0;
  return change.kind === "removeHold" || change.kind === "removeIssuer";
}

/** Returns the estimated memory of a change in bytes. */
function bytesOf(change: LedgerChange): number {
  if (!("row" in change)) return CHANGE_BYTES;
  let bytes = CHANGE_BYTES;
  for (const value of Object.values(change.row)) {
    if (typeof value === "string" || value instanceof Uint8Array) bytes += value.length;
  }
  return bytes;
}

export interface RetentionLedgerOptions {
  /** Folder of the block index, which also contains the ledger. Created if it does not exist. */
  readonly folder: string;
  /** Number that identifies this run of the agent. Never reused. */
  readonly incarnation: bigint;
  readonly owner: Pick<IndexOwner, "worker" | "machine">;
  readonly clock: Clock;
  /** Aborts the open if the disk hangs. */
  readonly signal?: AbortSignal;
  /**
   * Milliseconds for which another program may keep the file locked. After that the file is set
   * aside.
   */
  readonly busyMs?: number;
  /** Maximum bytes of changes not committed yet. Default: `PENDING_BYTES_MAX`. */
  readonly pendingBytesMax?: number;
}

/**
 * Opens or creates the retention ledger of a folder. Sets an unusable ledger aside
 * (`state.setAside`) and replaces it by an empty one. If the disk does not allow even that, the
 * ledger is `failing`, keeps changes pending and opens as soon as it can. A file found then is set
 * aside, because this run started without its contents. Throws INDEX_IN_USE if another agent uses
 * the ledger, INDEX_FOREIGN if it belongs to another worker or machine, and ABORTED.
 */
export async function openRetentionLedger(
  options: RetentionLedgerOptions,
): Promise<RetentionLedger> {
  const { folder, incarnation, clock, signal, pendingBytesMax, busyMs = BUSY_MS } = options;
  const owner = { ...options.owner, store: "" };
  const wallMs = clock.wallMs();
  const about = { folder, owner, incarnation, wallMs, busyMs, isLate: false };
  const openOrder: OpenOrder = { kind: "open", file: "ledger", ...about };
  const { worker, answer } = await IndexWorkerClient.open(openOrder, signal);
  const contents = await contentsOf(worker, answer);
  const limits = { hungMs: HUNG_MS, pendingBytesMax };
  return new SqliteLedger(worker, answer, { clock, openOrder, contents, ...limits });
}

async function contentsOf(worker: IndexWorkerClient, answer: Opened): Promise<LedgerContents> {
  const [holds, parts, issuers]: [RetentionRow[], PartRow[], IssuerRow[]] = [[], [], []];
  const commands = new Map<string, CommandRow>();
  if (answer.kind === "failed") return { holds, parts, commands: [], issuers, lastSeen: null };
  for (let page = await worker.next("ledger"); page !== null; page = await worker.next("ledger")) {
    for (const next of page) {
      if (next.kind === "hold") holds.push(next.row);
      if (next.kind === "part") parts.push(next.row);
      if (next.kind === "issuer") issuers.push(next.row);
      if (next.kind === "command") enter(commands, next.row);
    }
  }
  const { lastSeen } = answer;
  return { holds, parts, commands: [...commands.values()], issuers, lastSeen };
}

/** Adds a command at the end of the map. Moves a command that is in the map already to the end. */
function enter(commands: Map<string, CommandRow>, row: CommandRow): void {
  const key = JSON.stringify([row.issuer, row.id]);
  commands.delete(key);
  commands.set(key, row);
}
