import { type Clock, yieldToLoop } from "../../../core/index.ts";
import { crashPoint } from "../../../native/index.ts";
import {
  type Answer,
  type CommitLedgerOrder,
  type IndexLine,
  type IndexOwner,
  type OpenLedgerOrder,
  openLine,
  type SetAside,
} from "../index-worker-client.ts";
import { type RecordBatch, RecordLog, RecordReader, type RecordWriter } from "./ledger-records.ts";
import type {
  CommandRow,
  CommitOptions,
  HoldLedger,
  HoldRow,
  IssuerRow,
  LedgerContents,
  LedgerState,
  PartRow,
} from "./retention-ledger.ts";

const PENDING_BYTES_MAX = 64 * 2 ** 20;
const COMMIT_EVERY_MS = 100;
const RETRY_FIRST_MS = 100;
const RETRY_MAX_MS = 5_000;
const DISPOSE_MS = 5_000;
/** An order that takes longer belongs to a disk that hangs. */
const HUNG_MS = 5_000;
const HUNG = `the disk has not answered for ${HUNG_MS / 1_000} s`;

/** Somebody waits until all changes up to a number are committed. */
interface Waiter {
  readonly upTo: number;
  readonly durable: boolean;
  readonly resolve: (isCommitted: boolean) => void;
}

export interface WriteBehindLedgerOptions {
  readonly clock: Clock;
  /** What opened the ledger; asked again, as a late order, where that failed. */
  readonly openOrder: OpenLedgerOrder;
  readonly contents: LedgerContents;
  readonly pendingBytesMax?: number;
}

/** The ledger as the event loop sees it: collects changes, and keeps one batch on its way. */
export class WriteBehindLedger implements HoldLedger {
  readonly contents: LedgerContents;
  readonly #line: IndexLine;
  readonly #clock: Clock;
  readonly #openOrder: OpenLedgerOrder;
  readonly #log: RecordLog;
  /** Who asked for a commit in this turn of the loop, once it is known how it ended. */
  readonly #arriving: ((upTo: number) => Waiter | null)[] = [];
  readonly #waiters: Waiter[] = [];
  readonly #late: (() => void)[] = [];
  #lastSeen: LedgerContents["lastSeen"] = null;
  #setAside: SetAside | null;
  #isOpen: boolean;
  #failing: string | null;
  #failures = 0;
  /** On its way to the worker, or given back by it. */
  #inHand: RecordBatch | null = null;
  #committed = 0;
  #timer: Disposable | null = null;
  #isPumping = false;
  #isTurnOpen = false;
  #isHung = false;
  #closing: Promise<boolean> | null = null;

  constructor(
    line: IndexLine,
    opened: Extract<Answer, { kind: "ledgerOpened" | "failed" }>,
    options: WriteBehindLedgerOptions,
  ) {
    this.#line = line;
    this.#clock = options.clock;
    this.#openOrder = options.openOrder;
    this.contents = options.contents;
    this.#log = new RecordLog(options.pendingBytesMax ?? PENDING_BYTES_MAX);
    this.#isOpen = opened.kind === "ledgerOpened";
    this.#setAside = opened.kind === "ledgerOpened" ? opened.setAside : null;
    this.#failing = opened.kind === "failed" ? opened.why : null;
    // One that could not be opened is tried again, whether or not there is something to write.
    if (!this.#isOpen) this.#retryLater();
  }

  get state(): LedgerState {
    return {
      failing: this.#failing,
      pending: this.#log.count + (this.#inHand?.count ?? 0),
      dropped: this.#log.dropped,
      setAside: this.#setAside,
    };
  }

  putHold(row: HoldRow): void {
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
    this.#line.end();
    for (const { resolve } of this.#waiters.splice(0)) resolve(false);
    return isDone;
  }

  async #finish(): Promise<boolean> {
    if (!(await this.commit()) || !this.#isOpen) return false;
    return (await this.#line.ask({ kind: "close" })).kind === "closed";
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

  /** What was changed in it is a group; those who commit in it share the first order. */
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
    return this.#inHand?.length ?? 0;
  }

  /** What nobody waits for is committed within COMMIT_EVERY_MS; a failing one has its own timer. */
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
   * Sends what is due, one order after the other, until nothing is or the disk refuses. Between an
   * answer and the end of the loop nothing is awaited: who comes in between would not be seen.
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
      return await this.#line.ask(order);
    } finally {
      timer[Symbol.dispose]();
      this.#isHung = false;
    }
  }

  /** False where there is nothing to do. */
  #takeWork(): boolean {
    this.#inHand ??= this.#log.take();
    return this.#inHand !== null || this.#waiters.length > 0 || !this.#isOpen;
  }

  #commitOrder(): CommitLedgerOrder {
    const through = this.#inHand?.through ?? this.#committed;
    return {
      kind: "commitLedger",
      changes: this.#inHand?.buffer ?? null,
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
      // The buffer has come back; where the worker is gone it has not, and nothing is sent again.
      if (answer.kind === "failed" && answer.changes !== null && this.#inHand !== null) {
        this.#inHand.buffer = answer.changes;
      }
      return false;
    }
    crashPoint("ledger.acknowledged");
    this.#failing = null;
    this.#failures = 0;
    this.#committed = this.#inHand?.through ?? this.#committed;
    this.#inHand = null;
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
    if (this.#closing !== null || this.#line.gone !== null) return;
    const ms = Math.min(RETRY_MAX_MS, RETRY_FIRST_MS * 2 ** this.#failures++);
    this.#timer?.[Symbol.dispose]();
    this.#timer = this.#clock.after(ms, () => this.#onTimer());
  }
}

export interface HoldLedgerOptions {
  /** That of the index of blocks; made where it is missing. */
  readonly folder: string;
  /** Names this run of the agent; never used by another. */
  readonly incarnation: bigint;
  readonly owner: Pick<IndexOwner, "worker" | "machine">;
  readonly clock: Clock;
  /** Gives up waiting for a disk that hangs. */
  readonly signal?: AbortSignal;
  /** How long another program may keep the file locked before it is set aside. */
  readonly busyMs?: number;
  /** Bytes of changes that may wait to be committed. */
  readonly pendingBytesMax?: number;
}

const BUSY_MS = 2_000;
/** Rows read without letting others run. */
const SLICE_ROWS = 500;

/**
 * Opens the ledger in a folder, or makes one. A ledger that cannot be used is set aside
 * (`state.setAside`) and the new one is empty; where the disk does not even allow that, the ledger
 * is `failing`, keeps changes waiting and opens as soon as it can; a file that it finds then is set
 * aside, because this run was told of none. Throws HearthError INDEX_IN_USE where another agent has
 * it, INDEX_FOREIGN where it belongs to another worker or machine, ABORTED.
 */
export async function openHoldLedger(options: HoldLedgerOptions): Promise<HoldLedger> {
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
  const { line, answer } = await openLine(openOrder, "ledgerOpened", signal);
  const contents = await contentsOf(answer);
  const limits = pendingBytesMax === undefined ? {} : { pendingBytesMax };
  return new WriteBehindLedger(line, answer, { clock, openOrder, contents, ...limits });
}

async function contentsOf(
  answer: Extract<Answer, { kind: "ledgerOpened" | "failed" }>,
): Promise<LedgerContents> {
  const [holds, parts, issuers]: [HoldRow[], PartRow[], IssuerRow[]] = [[], [], []];
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

/** A command that was put again counts as it was put last. */
function enter(commands: Map<string, CommandRow>, row: CommandRow): void {
  const key = JSON.stringify([row.issuer, row.id]);
  commands.delete(key);
  commands.set(key, row);
}
