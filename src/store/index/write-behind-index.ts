import { assert, type Clock, HearthError } from "../../core/index.ts";
import type {
  AliasRow,
  BlockIndex,
  BlockRow,
  BlockRows,
  IndexState,
  PreviousRun,
} from "./block-index.ts";
import { ChangeBatch, type ChangeChunk, ChangeLog } from "./change-log.ts";
import {
  type Answer,
  type CommitOrder,
  type IndexOwner,
  type IndexWorkerClient,
  type OpenOrder,
  openWorkerClient,
  type RunProgress,
  type SetAside,
} from "./index-worker-client.ts";

/** Maximum number of pending changes: about 70 MB with their keys. */
const PENDING_MAX = 262_144;
const COMMIT_EVERY_MS = 100;
const RETRY_FIRST_MS = 100;
const RETRY_MAX_MS = 5_000;
const DISPOSE_MS = 5_000;

/** A caller that waits until the changes up to a chunk are committed. */
interface Waiter {
  readonly upTo: number;
  readonly durable: boolean;
  readonly resolve: (isCommitted: boolean) => void;
}

export interface WriteBehindOptions {
  readonly clock: Clock;
  readonly incarnation: bigint;
  /** The order that opened the index. If it failed it is repeated, as a late order. */
  readonly openOrder: OpenOrder;
  readonly pendingMax?: number;
}

export type Opened = Extract<Answer, { kind: "opened" | "failed" }>;

const NOTHING: RunProgress = {
  incarnation: null,
  flushedSequence: 0,
  clean: false,
  complete: false,
};

/**
 * The event loop's side of the index: collects changes and keeps one batch in flight to the worker.
 */
export class WriteBehindIndex implements BlockIndex {
  readonly previous: PreviousRun;
  readonly #worker: IndexWorkerClient;
  readonly #clock: Clock;
  readonly #incarnation: bigint;
  readonly #openOrder: OpenOrder;
  readonly #log: ChangeLog;
  readonly #sequences = new SequenceWatermark();
  readonly #waiters: Waiter[] = [];
  /** Progress to write during recovery, taken from the previous run. */
  readonly #inherited: RunProgress;
  #rows = 0;
  #setAside: SetAside | null = null;
  #isOpen: boolean;
  #failing: string | null = null;
  #failures = 0;
  #dropped = 0;
  #droppedAtFlush = 0;
  /**
   * The row of a block found by recovery was dropped: the next start must read all headers again.
   */
  #isIncomplete = false;
  /** The chunk that begins the run. Null before `begin`. */
  #beginsAt: number | null = null;
  /** The chunk that is in flight, or that the worker returned after a failure. */
  #inFlight: ChangeChunk | null = null;
  #committed = 0;
  /** Chunks up to this one are sent even if they are not full. */
  #dueUpTo = 0;
  #timer: Disposable | null = null;
  #isPumping = false;
  #isLoaded = false;
  #closing: Promise<boolean> | null = null;

  constructor(line: IndexWorkerClient, opened: Opened, options: WriteBehindOptions) {
    this.#worker = line;
    this.#clock = options.clock;
    this.#incarnation = options.incarnation;
    this.#openOrder = options.openOrder;
    this.#log = new ChangeLog(options.pendingMax ?? PENDING_MAX);
    this.#isOpen = opened.kind === "opened";
    if (opened.kind === "opened") this.#noteOpened(opened);
    else this.#failing = opened.why;
    this.#inherited = opened.kind === "opened" ? opened.previous : NOTHING;
    const { incarnation, flushedSequence, clean } = this.#inherited;
    this.previous = { incarnation, flushedSequence, clean };
    // Retry a failed open even if there are no changes to write.
    if (!this.#isOpen) this.#retryLater();
  }

  get state(): IndexState {
    return {
      failing: this.#failing,
      pending: this.#log.rows + (this.#inFlight?.count ?? 0),
      dropped: this.#dropped,
      rows: this.#rows,
      setAside: this.#setAside,
    };
  }

  async *loadBlocks(): AsyncIterable<BlockRows> {
    assert(!this.#isLoaded, "the blocks are loaded once");
    this.#isLoaded = true;
    for (;;) {
      const answer = await this.#askForRows("nextBlocks");
      if (answer?.kind !== "blocks" || answer.rows === null) return;
      yield answer.rows;
    }
  }

  async *loadAliases(): AsyncIterable<readonly AliasRow[]> {
    for (;;) {
      const answer = await this.#askForRows("nextAliases");
      if (answer?.kind !== "aliases" || answer.rows === null) return;
      yield answer.rows;
    }
  }

  begin(): Promise<boolean> {
    this.#beginsAt ??= this.#log.newest;
    return this.flush();
  }

  skip(sequence: number): void {
    this.#sequences.add(sequence);
  }

  put(row: BlockRow): void {
    if (row.sequence > 0) this.#beginsAt ??= this.#log.newest;
    if (this.#noteChange(this.#log.put(row))) return;
    // A dropped row of this run leaves a gap in the sequence numbers, which the next start notices.
    if (row.sequence === 0) this.#isIncomplete = true;
  }

  remove(digest: Uint8Array, layer: number): void {
    this.#noteChange(this.#log.remove(digest, layer));
  }

  touch(digest: Uint8Array, layer: number, lastSeen: number, uses: number): void {
    // A `touch` without room is not counted as dropped, because `flush` makes no promise about
    // uses.
    if (this.#log.touch(digest, layer, lastSeen, uses)) this.#schedule();
  }

  putAlias(row: AliasRow): void {
    this.#noteChange(this.#log.putAlias(row));
  }

  flush(options: { readonly durable?: boolean } = {}): Promise<boolean> {
    const hasDropped = this.#dropped > this.#droppedAtFlush;
    this.#droppedAtFlush = this.#dropped;
    return new Promise((resolve) => {
      this.#waiters.push({
        upTo: this.#log.newest,
        durable: options.durable ?? false,
        resolve: (isCommitted) => resolve(isCommitted && !hasDropped),
      });
      void this.#pump();
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

  /** Commits everything, then marks the run as clean. */
  async #finish(): Promise<boolean> {
    this.#beginsAt ??= this.#log.newest;
    if (!(await this.flush()) || !this.#isOpen) return false;
    const clean = this.#dropped === 0 && this.state.pending === 0;
    const progress = { ...this.#progress(this.#committed), clean };
    const order = { kind: "commit", changes: null, count: 0, progress, durable: false } as const;
    const answer = await this.#worker.ask(order);
    if (answer.kind !== "committed") return false;
    return (await this.#worker.ask({ kind: "close" })).kind === "closed";
  }

  /**
   * Null if the index is not open. A failure throws, because a truncated load would look like a
   * smaller index.
   */
  async #askForRows(kind: "nextBlocks" | "nextAliases"): Promise<Answer | null> {
    assert(this.#beginsAt === null, "the index is loaded before recovery ends");
    if (!this.#isOpen) return null;
    const answer = await this.#worker.ask({ kind });
    if (answer.kind === "failed") throw new HearthError("INDEX_FAILED", answer.why);
    return answer;
  }

  #noteChange(isTaken: boolean): boolean {
    if (isTaken) this.#schedule();
    else this.#dropped++;
    return isTaken;
  }

  /**
   * Full chunks are sent at once, others within COMMIT_EVERY_MS. A failing index has its own timer.
   */
  #schedule(): void {
    if (this.#failing !== null || this.#isPumping || this.#closing !== null) return;
    if (this.#log.hasFull) void this.#pump();
    else this.#timer ??= this.#clock.after(COMMIT_EVERY_MS, () => this.#onTimer());
  }

  #onTimer(): void {
    this.#timer = null;
    this.#dueUpTo = this.#log.newest;
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
      const answer = await this.#worker.ask(order);
      const isDone =
        order.kind === "commit" ? this.#noteCommit(order, answer) : this.#noteLate(answer);
      if (isDone) continue;
      this.#noteFailed(answer);
      for (const { resolve } of this.#waiters.splice(0)) resolve(false);
      this.#retryLater();
      break;
    }
    this.#isPumping = false;
    if (this.#failing === null && this.#log.rows > 0) this.#schedule();
  }

  /** False if nothing is to be done. */
  #takeWork(): boolean {
    if (this.#inFlight === null) {
      const upTo = Math.max(this.#dueUpTo, ...this.#waiters.map((waiter) => waiter.upTo));
      this.#inFlight = this.#log.take(upTo);
      for (const sequence of this.#inFlight?.sequences ?? []) this.#sequences.add(sequence);
    }
    return this.#inFlight !== null || this.#waiters.length > 0 || !this.#isOpen;
  }

  /** Number of the last chunk that is committed when the one in flight is. */
  get #through(): number {
    return this.#inFlight?.number ?? this.#committed;
  }

  #commitOrder(): CommitOrder {
    const through = this.#through;
    return {
      kind: "commit",
      changes: this.#inFlight?.batch.buffer ?? null,
      count: this.#inFlight?.count ?? 0,
      progress: this.#progress(through),
      durable: this.#waiters.some((waiter) => waiter.durable && waiter.upTo <= through),
    };
  }

  #lateOrder(): OpenOrder {
    return { ...this.#openOrder, wallMs: this.#clock.wallMs(), isLate: true };
  }

  #progress(through: number): RunProgress {
    const complete = !this.#isIncomplete;
    if (this.#beginsAt === null || through < this.#beginsAt) {
      return { ...this.#inherited, clean: false, complete: this.#inherited.complete && complete };
    }
    const flushedSequence = this.#sequences.value;
    return { incarnation: this.#incarnation, flushedSequence, clean: false, complete };
  }

  #noteCommit({ durable }: CommitOrder, answer: Answer): boolean {
    if (answer.kind !== "committed") {
      // The worker returned the buffer. If the worker is gone the buffer is lost, but then nothing
      // is sent again.
      if (answer.kind === "failed" && answer.changes !== null && this.#inFlight !== null) {
        this.#inFlight.batch = new ChangeBatch(answer.changes);
      }
      return false;
    }
    this.#failing = null;
    this.#failures = 0;
    this.#rows = answer.rows;
    this.#committed = this.#through;
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
    if (answer.kind !== "opened") return false;
    this.#isOpen = true;
    this.#failing = null;
    this.#noteOpened(answer);
    return true;
  }

  #noteOpened(answer: Extract<Answer, { kind: "opened" }>): void {
    this.#rows = answer.rows;
    this.#setAside = answer.setAside;
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

/**
 * Maximum number of sequence numbers that are out of order. Some hundred blocks are in flight at
 * once; more means that one of them never comes.
 */
const AHEAD_MAX = 65_536;

/**
 * The highest sequence number up to which every block's row was handed over. Writes end out of
 * order, and a claim about a block that is still being written would make the next start take it
 * for a deleted one. If a sequence number never comes, because its row was dropped, the watermark
 * stays below it.
 */
class SequenceWatermark {
  readonly #ahead = new Set<number>();
  #through = 0;
  #isFrozen = false;

  get value(): number {
    return this.#through;
  }

  add(sequence: number): void {
    if (this.#isFrozen || sequence <= this.#through) return;
    this.#ahead.add(sequence);
    while (this.#ahead.delete(this.#through + 1)) this.#through++;
    if (this.#ahead.size <= AHEAD_MAX) return;
    this.#isFrozen = true;
    this.#ahead.clear();
  }
}

export interface BlockIndexOptions {
  /** Created if it does not exist. */
  readonly folder: string;
  /** Identifies this run of the agent. Never reused. */
  readonly incarnation: bigint;
  readonly owner: IndexOwner;
  readonly clock: Clock;
  /** Aborts waiting for a disk that hangs. */
  readonly signal?: AbortSignal;
  /** Time for which another program may keep the index locked before it is set aside. */
  readonly busyMs?: number;
  /** Maximum number of pending changes. */
  readonly pendingMax?: number;
}

const BUSY_MS = 2_000;

/**
 * Opens or creates the index of a folder. An unusable index is set aside (`state.setAside`) and
 * replaced by an empty one. If the disk does not allow even that, the index is `failing`, keeps
 * changes pending and opens as soon as it can. In both cases `previous.incarnation` is null and the
 * caller reads the headers of all blocks. Throws INDEX_IN_USE if another agent uses the index,
 * INDEX_FOREIGN if it belongs to another worker or machine, ABORTED.
 */
export async function openBlockIndex(options: BlockIndexOptions): Promise<BlockIndex> {
  const { folder, incarnation, owner, clock, signal, pendingMax } = options;
  const busyMs = options.busyMs ?? BUSY_MS;
  const wallMs = clock.wallMs();
  const openOrder: OpenOrder = { kind: "open", folder, owner, wallMs, busyMs, isLate: false };
  const { line, answer } = await openWorkerClient(openOrder, "opened", signal);
  const limits = pendingMax === undefined ? {} : { pendingMax };
  return new WriteBehindIndex(line, answer, { clock, incarnation, openOrder, ...limits });
}
