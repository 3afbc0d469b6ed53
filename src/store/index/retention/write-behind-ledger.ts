import { type Clock, yieldToLoop } from "../../../core/index.ts";
import { crashPoint } from "../../../native/index.ts";
import {
  type Answer,
  type CommitLedgerOrder,
  type IndexOwner,
  type IndexWorkerClient,
  type OpenLedgerOrder,
  openWorkerClient,
  type SetAside,
} from "../index-worker-client.ts";
import { type RecordBatch, RecordLog, RecordReader, type RecordWriter } from "./ledger-records.ts";
import type {
  CommandRow,
  CommitOptions,
  IssuerRow,
  LedgerContents,
  LedgerState,
  PartRow,
  RetentionLedger,
  RetentionRow,
} from "./retention-ledger.ts";

const PENDING_BYTES_MAX = 64 * 2 ** 20;
const COMMIT_EVERY_MS = 100;
const RETRY_FIRST_MS = 100;
const RETRY_MAX_MS = 5_000;
const DISPOSE_MS = 5_000;
/** A request that takes longer means that the disk hangs. */
const HUNG_MS = 5_000;
const HUNG = `the disk has not answered for ${HUNG_MS / 1_000} s`;

/** A caller that waits until the changes up to a number are committed. */
interface Waiter {
  readonly upTo: number;
  readonly durable: boolean;
  readonly resolve: (isCommitted: boolean) => void;
}

export interface WriteBehindLedgerOptions {
  readonly clock: Clock;
  /** The order that opened the ledger. If it failed it is repeated, as a late order. */
  readonly openOrder: OpenLedgerOrder;
  readonly contents: LedgerContents;
  readonly pendingBytesMax?: number;
}

/**
 * The event loop's side of the ledger: collects changes and keeps one batch in flight to the
 * worker.
 */
export class WriteBehindLedger implements RetentionLedger {
  readonly contents: LedgerContents;
  readonly #worker: IndexWorkerClient;
  readonly #clock: Clock;
  readonly #openOrder: OpenLedgerOrder;
  readonly #log: RecordLog;
  /**
   * Callers of `commit` in this turn of the event loop. Their waiters are created when the turn
   * ends.
   */
  readonly #arriving: ((upTo: number) => Waiter | null)[] = [];
  readonly #waiters: Waiter[] = [];
  readonly #late: (() => void)[] = [];
  #lastSeen: LedgerContents["lastSeen"] = null;
  #setAside: SetAside | null;
  #isOpen: boolean;
  #failing: string | null;
  #failures = 0;
  /** The batch that is in flight, or that the worker returned after a failure. */
  #inFlight: RecordBatch | null = null;
  #committed = 0;
  #timer: Disposable | null = null;
  #isPumping = false;
  #isTurnOpen = false;
  #isHung = false;
  #closing: Promise<boolean> | null = null;

  constructor(
    line: IndexWorkerClient,
    opened: Extract<Answer, { kind: "ledgerOpened" | "failed" }>,
    options: WriteBehindLedgerOptions,
  ) {
    this.#worker = line;
    this.#clock = options.clock;
    this.#openOrder = options.openOrder;
    this.contents = options.contents;
    this.#log = new RecordLog(options.pendingBytesMax ?? PENDING_BYTES_MAX);
    this.#isOpen = opened.kind === "ledgerOpened";
    this.#setAside = opened.kind === "ledgerOpened" ? opened.setAside : null;
    this.#failing = opened.kind === "failed" ? opened.why : null;
    // Retry a failed open even if there are no changes to write.
    if (!this.#isOpen) this.#retryLater();
  }

  get state(): LedgerState {
    return {
      failing: this.#failing,
      pending: this.#log.count + (this.#inFlight?.count ?? 0),
      dropped: this.#log.dropped,
      setAside: this.#setAside,
    };
  }

  putHold(row: RetentionRow): void {
    this.#add(false, (records) => records.hold(row));
  }

  putPart(row: PartRow): void {
    this.#add(row.blocks.length === 0, (records) => records.part(row));
  }

  removeHold(id: number): void {
    this.#add(true, (records) => records.removeHold(id));
  }

  putCommand(row: CommandRow): void {
    this.#add(false, (records) => records.command(row));
  }

  putIssuer(row: IssuerRow): void {
    this.#add(false, (records) => records.issuer(row));
  }

  removeIssuer(issuer: string): void {
    this.#add(true, (records) => records.removeIssuer(issuer));
  }

  seen(bootId: string, bootMs: number): void {
    this.#lastSeen = { bootId, bootMs };
  }

  beforeTurnEnds(write: () => void): void {
    this.#late.push(write);
    this.#endTurnSoon();
  }

  get mark(): number {
    return this.#log.group;
  }

  commit({ durable = true, ...options }: CommitOptions = {}): Promise<boolean> {
    const { group, lastGroup } = this.#log;
    const since = options.since ?? (this.#late.length > 0 ? group : lastGroup);
    return new Promise((resolve) => {
      this.#arriving.push((upTo) => {
        const hasDropped = this.#log.lostGroup >= since;
        const answer = (isCommitted: boolean) => resolve(isCommitted && !hasDropped);
        if (!this.#isHung) return { upTo, durable, resolve: answer };
        answer(false);
        return null;
      });
      this.#endTurnSoon();
    });
  }

  close(ms: number): Promise<boolean> {
    this.#closing ??= this.#close(ms);
    return this.#closing;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close(DISPOSE_MS);
  }

  async #close(ms: number): Promise<boolean> {
    const late = Promise.withResolvers<false>();
    const timer = this.#clock.after(ms, () => late.resolve(false));
    const isDone = await Promise.race([this.#finish(), late.promise]);
    timer[Symbol.dispose]();
    this.#timer?.[Symbol.dispose]();
    this.#worker.end();
    for (const { resolve } of this.#waiters.splice(0)) resolve(false);
    return isDone;
  }

  async #finish(): Promise<boolean> {
    if (!(await this.commit()) || !this.#isOpen) return false;
    return (await this.#worker.ask({ kind: "close" })).kind === "closed";
  }

  #add(isRemoval: boolean, write: (records: RecordWriter) => void): void {
    this.#log.add(isRemoval, this.#inHandBytes, write);
    this.#endTurnSoon();
    this.#schedule();
  }

  #endTurnSoon(): void {
    if (this.#isTurnOpen) return;
    this.#isTurnOpen = true;
    void yieldToLoop().then(() => this.#endTurn());
  }

  /**
   * The changes of the turn become one group. Callers of `commit` in this turn share the next
   * order.
   */
  #endTurn(): void {
    this.#isTurnOpen = false;
    this.#endGroup();
    const arrived = this.#arriving.splice(0).map((arrive) => arrive(this.#log.added));
    this.#waiters.push(...arrived.filter((waiter) => waiter !== null));
    if (arrived.length > 0) void this.#pump();
  }

  #endGroup(): void {
    for (const write of this.#late.splice(0)) write();
    this.#log.endGroup();
  }

  get #inHandBytes(): number {
    return this.#inFlight?.length ?? 0;
  }

  /**
   * Changes that no caller waits for are committed within COMMIT_EVERY_MS. A failing ledger has its
   * own timer.
   */
  #schedule(): void {
    if (this.#failing !== null || this.#closing !== null) return;
    this.#timer ??= this.#clock.after(COMMIT_EVERY_MS, () => this.#onTimer());
  }

  #onTimer(): void {
    this.#timer = null;
    this.#endGroup();
    void this.#pump();
  }

  /**
   * Sends due changes, one order at a time, until none is left or the disk refuses. After an answer
   * the loop must not await until it ends, or a caller that arrives in between would be missed.
   */
  async #pump(): Promise<void> {
    if (this.#isPumping) return;
    this.#isPumping = true;
    while (this.#takeWork()) {
      const order = this.#isOpen ? this.#commitOrder() : this.#lateOrder();
      const answer = await this.#ask(order);
      const isDone =
        order.kind === "commitLedger" ? this.#noteCommit(order, answer) : this.#noteLate(answer);
      if (isDone) continue;
      this.#noteFailed(answer);
      for (const { resolve } of this.#waiters.splice(0)) resolve(false);
      this.#retryLater();
      break;
    }
    this.#isPumping = false;
    if (this.#log.count > 0) this.#schedule();
  }

  async #ask(order: CommitLedgerOrder | OpenLedgerOrder): Promise<Answer> {
    const timer = this.#clock.after(HUNG_MS, () => {
      this.#isHung = true;
      this.#failing = HUNG;
      for (const { resolve } of this.#waiters.splice(0)) resolve(false);
    });
    try {
      return await this.#worker.ask(order);
    } finally {
      timer[Symbol.dispose]();
      this.#isHung = false;
    }
  }

  /** False if nothing is to be done. */
  #takeWork(): boolean {
    this.#inFlight ??= this.#log.take();
    return this.#inFlight !== null || this.#waiters.length > 0 || !this.#isOpen;
  }

  #commitOrder(): CommitLedgerOrder {
    const through = this.#inFlight?.through ?? this.#committed;
    return {
      kind: "commitLedger",
      changes: this.#inFlight?.buffer ?? null,
      length: this.#inHandBytes,
      lastSeen: this.#lastSeen,
      durable: this.#waiters.some((waiter) => waiter.durable && waiter.upTo <= through),
    };
  }

  #lateOrder(): OpenLedgerOrder {
    return { ...this.#openOrder, wallMs: this.#clock.wallMs(), isLate: true };
  }

  #noteCommit({ durable }: CommitLedgerOrder, answer: Answer): boolean {
    if (answer.kind !== "committed") {
      // The worker returned the buffer. If the worker is gone the buffer is lost, but then nothing
      // is sent again.
      if (answer.kind === "failed" && answer.changes !== null && this.#inFlight !== null) {
        this.#inFlight.buffer = answer.changes;
      }
      return false;
    }
    crashPoint("ledger.acknowledged");
    this.#failing = null;
    this.#failures = 0;
    this.#committed = this.#inFlight?.through ?? this.#committed;
    this.#inFlight = null;
    if (answer.changes !== null) this.#log.recycle(answer.changes);
    for (const waiter of this.#waiters.splice(0)) {
      const isDone = waiter.upTo <= this.#committed && (durable || !waiter.durable);
      if (isDone) waiter.resolve(true);
      else this.#waiters.push(waiter);
    }
    return true;
  }

  #noteLate(answer: Answer): boolean {
    if (answer.kind !== "ledgerOpened") return false;
    this.#isOpen = true;
    this.#failing = null;
    this.#setAside = answer.setAside;
    return true;
  }

  #noteFailed(answer: Answer): void {
    if (answer.kind === "failed") this.#failing = answer.why;
    if (answer.kind === "refused") this.#failing = answer.message;
  }

  #retryLater(): void {
    if (this.#closing !== null || this.#worker.gone !== null) return;
    const ms = Math.min(RETRY_MAX_MS, RETRY_FIRST_MS * 2 ** this.#failures++);
    this.#timer?.[Symbol.dispose]();
    this.#timer = this.#clock.after(ms, () => this.#onTimer());
  }
}

export interface RetentionLedgerOptions {
  /** The folder of the block index. Created if it does not exist. */
  readonly folder: string;
  /** Identifies this run of the agent. Never reused. */
  readonly incarnation: bigint;
  readonly owner: Pick<IndexOwner, "worker" | "machine">;
  readonly clock: Clock;
  /** Aborts waiting for a disk that hangs. */
  readonly signal?: AbortSignal;
  /** Time for which another program may keep the file locked before it is set aside. */
  readonly busyMs?: number;
  /** Maximum number of bytes of pending changes. */
  readonly pendingBytesMax?: number;
}

const BUSY_MS = 2_000;
/** Rows decoded before the event loop turns. */
const SLICE_ROWS = 500;

/**
 * Opens or creates the ledger of a folder. An unusable ledger is set aside (`state.setAside`) and
 * replaced by an empty one. If the disk does not allow even that, the ledger is `failing`, keeps
 * changes pending and opens as soon as it can. A file found then is set aside, because this run
 * started without its contents. Throws INDEX_IN_USE if another agent uses the ledger, INDEX_FOREIGN
 * if it belongs to another worker or machine, ABORTED.
 */
export async function openRetentionLedger(
  options: RetentionLedgerOptions,
): Promise<RetentionLedger> {
  const { folder, incarnation, owner, clock, signal, pendingBytesMax } = options;
  const openOrder: OpenLedgerOrder = {
    kind: "openLedger",
    folder,
    owner: { worker: owner.worker, machine: owner.machine },
    incarnation,
    wallMs: clock.wallMs(),
    busyMs: options.busyMs ?? BUSY_MS,
    isLate: false,
  };
  const { line, answer } = await openWorkerClient(openOrder, "ledgerOpened", signal);
  const contents = await contentsOf(answer);
  const limits = pendingBytesMax === undefined ? {} : { pendingBytesMax };
  return new WriteBehindLedger(line, answer, { clock, openOrder, contents, ...limits });
}

async function contentsOf(
  answer: Extract<Answer, { kind: "ledgerOpened" | "failed" }>,
): Promise<LedgerContents> {
  const [holds, parts, issuers]: [RetentionRow[], PartRow[], IssuerRow[]] = [[], [], []];
  const commands = new Map<string, CommandRow>();
  if (answer.kind === "failed") return { holds, parts, commands: [], issuers, lastSeen: null };
  const records = new RecordReader(answer.contents, answer.length);
  let read = 0;
  for (let next = records.next(); next !== null; next = records.next()) {
    if (next.kind === "hold") holds.push(next.row);
    if (next.kind === "part") parts.push(next.row);
    if (next.kind === "issuer") issuers.push(next.row);
    if (next.kind === "command") enter(commands, next.row);
    if (++read % SLICE_ROWS === 0) await yieldToLoop();
  }
  const { lastSeen } = answer;
  return { holds, parts, commands: [...commands.values()], issuers, lastSeen };
}

/** A command that was put again takes the position of the last put. */
function enter(commands: Map<string, CommandRow>, row: CommandRow): void {
  const key = JSON.stringify([row.issuer, row.id]);
  commands.delete(key);
  commands.set(key, row);
}
