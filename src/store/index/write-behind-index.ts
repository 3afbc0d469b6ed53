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
  type IndexLine,
  type IndexOwner,
  type OpenOrder,
  openLine,
  type RunProgress,
  type SetAside,
} from "./index-worker-client.ts";

/** Changes that may wait: about 70 MB with their keys. */
const PENDING_MAX = 262_144;
const COMMIT_EVERY_MS = 100;
const RETRY_FIRST_MS = 100;
const RETRY_MAX_MS = 5_000;
const DISPOSE_MS = 5_000;

/** Somebody waits until all up to a chunk is committed. */
interface Waiter {
  readonly upTo: number;
  readonly durable: boolean;
  readonly resolve: (isCommitted: boolean) => void;
}

export interface WriteBehindOptions {
  readonly clock: Clock;
  readonly incarnation: bigint;
  /** What opened the index; asked again, as a late order, where that failed. */
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

/** The index as the event loop sees it: collects changes, and keeps one batch on its way. */
export class WriteBehindIndex implements BlockIndex {
  readonly previous: PreviousRun;
  readonly #line: IndexLine;
  readonly #clock: Clock;
  readonly #incarnation: bigint;
  readonly #openOrder: OpenOrder;
  readonly #log: ChangeLog;
  readonly #sequences = new SequenceWatermark();
  readonly #waiters: Waiter[] = [];
  /** What is written while recovery goes on: as the run before left it. */
  readonly #inherited: RunProgress;
  #rows = 0;
  #setAside: SetAside | null = null;
  #isOpen: boolean;
  #failing: string | null = null;
  #failures = 0;
  #dropped = 0;
  #droppedAtFlush = 0;
  /** A block found by recovery has no row: the next start must look for all again. */
  #isIncomplete = false;
  /** The chunk with which the run begins; null before `begin`. */
  #beginsAt: number | null = null;
  /** On its way to the worker, or given back by it. */
  #inHand: ChangeChunk | null = null;
  #committed = 0;
  /** Chunks up to this one are sent, full or not. */
  #dueUpTo = 0;
  #timer: Disposable | null = null;
  #isPumping = false;
  #isLoaded = false;
  #closing: Promise<boolean> | null = null;

  constructor(line: IndexLine, opened: Opened, options: WriteBehindOptions) {
    this.#line = line;
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
    // One that could not be opened is tried again, whether or not there is something to write.
    if (!this.#isOpen) this.#retryLater();
  }

  get state(): IndexState {
    return {
      failing: this.#failing,
      pending: this.#log.rows + (this.#inHand?.count ?? 0),
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
    // A dropped row of this run leaves a gap in the sequences, which the next start sees.
    if (row.sequence === 0) this.#isIncomplete = true;
  }

  remove(digest: Uint8Array, layer: number): void {
    this.#noteChange(this.#log.remove(digest, layer));
  }

  touch(digest: Uint8Array, layer: number, lastSeen: number, uses: number): void {
    // One that finds no room is no loss: what is counted as dropped is what a flush must not claim.
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
    this.#line.end();
    for (const { resolve } of this.#waiters.splice(0)) resolve(false);
    return isDone;
  }

  /** All is committed, then that all was. */
  async #finish(): Promise<boolean> {
    this.#beginsAt ??= this.#log.newest;
    if (!(await this.flush()) || !this.#isOpen) return false;
    const clean = this.#dropped === 0 && this.state.pending === 0;
    const progress = { ...this.#progress(this.#committed), clean };
    const order = { kind: "commit", changes: null, count: 0, progress, durable: false } as const;
    const answer = await this.#line.ask(order);
    if (answer.kind !== "committed") return false;
    return (await this.#line.ask({ kind: "close" })).kind === "closed";
  }

  /** Null where nothing was opened. A load that ended early would pass for a smaller index. */
  async #askForRows(kind: "nextBlocks" | "nextAliases"): Promise<Answer | null> {
    assert(this.#beginsAt === null, "the index is loaded before recovery ends");
    if (!this.#isOpen) return null;
    const answer = await this.#line.ask({ kind });
    if (answer.kind === "failed") throw new HearthError("INDEX_FAILED", answer.why);
    return answer;
  }

  #noteChange(isTaken: boolean): boolean {
    if (isTaken) this.#schedule();
    else this.#dropped++;
    return isTaken;
  }

  /** Full chunks go at once, others within COMMIT_EVERY_MS; a failing index has its own timer. */
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
   * Sends what is due, one order after the other, until nothing is or the disk refuses. Between an
   * answer and the end of the loop nothing is awaited: who comes in between would not be seen.
   */
  async #pump(): Promise<void> {
    if (this.#isPumping) return;
    this.#isPumping = true;
    while (this.#takeWork()) {
      const order = this.#isOpen ? this.#commitOrder() : this.#lateOrder();
      const answer = await this.#line.ask(order);
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

  /** False where there is nothing to do. */
  #takeWork(): boolean {
    if (this.#inHand === null) {
      const upTo = Math.max(this.#dueUpTo, ...this.#waiters.map((waiter) => waiter.upTo));
      this.#inHand = this.#log.take(upTo);
      for (const sequence of this.#inHand?.sequences ?? []) this.#sequences.add(sequence);
    }
    return this.#inHand !== null || this.#waiters.length > 0 || !this.#isOpen;
  }

  /** The last chunk that is committed once what is in hand is. */
  get #through(): number {
    return this.#inHand?.number ?? this.#committed;
  }

  #commitOrder(): CommitOrder {
    const through = this.#through;
    return {
      kind: "commit",
      changes: this.#inHand?.batch.buffer ?? null,
      count: this.#inHand?.count ?? 0,
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
      // The buffer has come back; where the worker is gone it has not, and nothing is sent again.
      if (answer.kind === "failed" && answer.changes !== null && this.#inHand !== null) {
        this.#inHand.batch = new ChangeBatch(answer.changes);
      }
      return false;
    }
    this.#failing = null;
    this.#failures = 0;
    this.#rows = answer.rows;
    this.#committed = this.#through;
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
    if (this.#closing !== null || this.#line.gone !== null) return;
    const ms = Math.min(RETRY_MAX_MS, RETRY_FIRST_MS * 2 ** this.#failures++);
    this.#timer?.[Symbol.dispose]();
    this.#timer = this.#clock.after(ms, () => this.#onTimer());
  }
}

/** Some hundred blocks are in flight at once: this many out of order, and one never comes. */
const AHEAD_MAX = 65_536;

/**
 * The highest sequence up to which every block's row has been handed on. Writes end out of order,
 * and a claim about a block still being written would let the next start take it for a deleted one.
 * A sequence that never comes (its row was dropped) holds it where it is.
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
  /** Made where it is missing. */
  readonly folder: string;
  /** Names this run of the agent; never used by another. */
  readonly incarnation: bigint;
  readonly owner: IndexOwner;
  readonly clock: Clock;
  /** Gives up waiting for a disk that hangs. */
  readonly signal?: AbortSignal;
  /** How long another program may keep the index locked before it is set aside. */
  readonly busyMs?: number;
  /** Changes that may wait to be committed. */
  readonly pendingMax?: number;
}

const BUSY_MS = 2_000;

/**
 * Opens the index in a folder, or makes one. An index that cannot be used is set aside
 * (`state.setAside`) and the new one is empty; where the disk does not even allow that, the index
 * is `failing`, keeps changes waiting and opens as soon as it can: `previous.incarnation` is null
 * either way, and the caller reads the headers of all blocks. Throws HearthError INDEX_IN_USE where
 * another agent has it, INDEX_FOREIGN where it belongs to another worker or machine, ABORTED.
 */
export async function openBlockIndex(options: BlockIndexOptions): Promise<BlockIndex> {
  const { folder, incarnation, owner, clock, signal, pendingMax } = options;
  const busyMs = options.busyMs ?? BUSY_MS;
  const wallMs = clock.wallMs();
  const openOrder: OpenOrder = { kind: "open", folder, owner, wallMs, busyMs, isLate: false };
  const { line, answer } = await openLine(openOrder, "opened", signal);
  const limits = pendingMax === undefined ? {} : { pendingMax };
  return new WriteBehindIndex(line, answer, { clock, incarnation, openOrder, ...limits });
}
