import type { Clock } from "../../core/index.ts";
import type {
  Answer,
  IndexChanges,
  IndexWorkerClient,
  LedgerChanges,
  Opened,
  OpenOrder,
  SetAside,
} from "./index-worker-client.ts";

/** Milliseconds after which changes are committed even if no caller waits for them. */
const COMMIT_EVERY_MS = 100;
const RETRY_FIRST_MS = 100;
const RETRY_MAX_MS = 5_000;
const DISPOSE_MS = 5_000;
/**
 * Milliseconds for which another program may keep the file locked. After that the file is set
 * aside.
 */
export const BUSY_MS = 2_000;

/** Changes that are sent to the worker together and committed in one transaction. */
interface Batch {
  /** Number of the batch; if it consists of several parts, of its last part. Numbers ascend. */
  readonly number: number;
  readonly count: number;
}

/** A caller that waits until all changes up to a batch number are committed. */
interface Waiter {
  readonly upTo: number;
  readonly durable: boolean;
  readonly resolve: (isCommitted: boolean) => void;
}

/** Changes that were not sent to the worker yet, oldest first. */
interface PendingChanges<Of extends Batch> {
  /** Number of pending changes. */
  readonly count: number;
  /**
   * Takes the oldest batch if it is full or its number is at most `upTo`; otherwise returns null.
   */
  take(upTo: number): Of | null;
}

export interface SqliteWriterOptions {
  readonly clock: Clock;
  /** The order that opened the file. If the open failed, the order is repeated with `isLate`. */
  readonly openOrder: OpenOrder;
  /**
   * Milliseconds after which an unanswered request means that the disk hangs. Default: no limit.
   */
  readonly hungMs?: number;
}

/**
 * Writes a database file from the event loop: collects changes and sends them to the worker, one
 * batch at a time. While the disk refuses, changes wait and the open or commit is retried.
 */
export abstract class SqliteWriter<Of extends Batch> implements AsyncDisposable {
  protected readonly worker: IndexWorkerClient;
  protected readonly clock: Clock;
  protected readonly waiters: Waiter[] = [];
  /** The batch that was sent to the worker, or that the worker returned after a failure. */
  protected inFlight: Of | null = null;
  /** Number of the last committed batch. */
  protected committed = 0;
  protected rows = 0;
  protected setAside: SetAside | null = null;
  protected isOpen: boolean;
  protected isHung = false;
  protected failing: string | null;
  readonly #options: SqliteWriterOptions;
  /** Number of the batch up to which batches are sent even if they are not full. */
  #dueUpTo = 0;
  #failures = 0;
  #timer: Disposable | null = null;
  #isPumping = false;
  #closing: Promise<boolean> | null = null;

  constructor(worker: IndexWorkerClient, opened: Opened, options: SqliteWriterOptions) {
    this.worker = worker;
    this.clock = options.clock;
    this.#options = options;
    this.isOpen = opened.kind === "opened";
    this.failing = opened.kind === "failed" ? opened.why : null;
    if (opened.kind === "opened") this.#noteOpened(opened);
    // Retry a failed open even if no changes are pending.
    else this.#retryLater();
  }

  protected abstract readonly log: PendingChanges<Of>;

  /**
   * Returns the number of the batch with the newest change. May first add changes that belong to
   * it.
   */
  protected abstract newest(): number;

  /**
   * Returns the message that commits `batch`. For null, the message contains only the data that
   * every commit writes.
   */
  protected abstract changesOf(batch: Of | null): IndexChanges | LedgerChanges;

  /** Called after each commit. `columns`: the memory that was sent with it. */
  protected abstract onCommitted(columns: ArrayBuffer | null): void;

  /** Commits all changes and closes the file. Resolves to false if that failed. */
  protected abstract finish(): Promise<boolean>;

  /** Number of changes not committed yet. */
  protected get pending(): number {
    return this.log.count + (this.inFlight?.count ?? 0);
  }

  /**
   * Commits all changes and closes the file. Resolves to false if that takes longer than `ms`
   * milliseconds.
   */
  close(ms: number): Promise<boolean> {
    this.#closing ??= this.#close(ms);
    return this.#closing;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close(DISPOSE_MS);
  }

  async #close(ms: number): Promise<boolean> {
    const late = Promise.withResolvers<false>();
    const timer = this.clock.after(ms, () => late.resolve(false));
    const isDone = await Promise.race([this.finish(), late.promise]);
    timer[Symbol.dispose]();
    this.#timer?.[Symbol.dispose]();
    this.worker.end();
    this.#refuseWaiters();
    return isDone;
  }

  protected async closeFile(): Promise<boolean> {
    return (await this.worker.ask({ kind: "close" })).kind === "closed";
  }

  /** Schedules a commit: immediately if `isFull`, otherwise within COMMIT_EVERY_MS. */
  protected schedule(isFull = false): void {
    // While the file fails, the retry timer starts the next commit.
    if (this.failing !== null || this.#isPumping || this.#closing !== null) return;
    if (isFull) void this.pump();
    else this.#timer ??= this.clock.after(COMMIT_EVERY_MS, () => this.#onTimer());
  }

  #onTimer(): void {
    this.#timer = null;
    this.#dueUpTo = this.newest();
    void this.pump();
  }

  /**
   * Sends due changes, one order at a time, until none is left or the disk refuses. After the last
   * answer the loop must not await before it ends, or a caller that arrives in between would be
   * missed.
   */
  protected async pump(): Promise<void> {
    if (this.#isPumping) return;
    this.#isPumping = true;
    while (this.#takeWork()) {
      if (this.isOpen ? await this.#commit() : await this.#openLate()) continue;
      this.#refuseWaiters();
      this.#retryLater();
      break;
    }
    this.#isPumping = false;
    if (this.log.count > 0) this.schedule();
  }

  /** Selects the batch to send. Returns false if there is nothing to do. */
  #takeWork(): boolean {
    this.inFlight ??= this.log.take(
      Math.max(this.#dueUpTo, ...this.waiters.map((waiter) => waiter.upTo)),
    );
    return this.inFlight !== null || this.waiters.length > 0 || !this.isOpen;
  }

  /** Number of the batch up to which changes are committed once the current batch is. */
  protected get through(): number {
    return this.inFlight?.number ?? this.committed;
  }

  async #commit(): Promise<boolean> {
    const { through } = this;
    const durable = this.waiters.some((waiter) => waiter.durable && waiter.upTo <= through);
    const changes = this.changesOf(this.inFlight);
    const answer = await this.#ask(() => this.worker.ask({ kind: "commit", changes, durable }));
    if (answer.kind !== "committed") {
      // If the worker has ended, its columns are lost, but then nothing is sent any more.
      if (answer.kind === "failed") this.onReturned(answer.columns);
      return this.#noteFailed(answer);
    }
    this.failing = null;
    this.#failures = 0;
    this.rows = answer.rows;
    this.committed = through;
    this.inFlight = null;
    this.onCommitted(answer.columns);
    for (const waiter of this.waiters.splice(0)) {
      const isDone = waiter.upTo <= this.committed && (durable || !waiter.durable);
      if (isDone) waiter.resolve(true);
      else this.waiters.push(waiter);
    }
    return true;
  }

  /** Called after a failed commit. `columns`: the memory of the batch that was sent. */
  protected onReturned(_columns: ArrayBuffer | null): void {}

  async #openLate(): Promise<boolean> {
    const order = { ...this.#options.openOrder, wallMs: this.clock.wallMs(), isLate: true };
    const answer = await this.#ask(() => this.worker.ask(order));
    if (answer.kind !== "opened") return this.#noteFailed(answer);
    this.isOpen = true;
    this.failing = null;
    this.#noteOpened(answer);
    return true;
  }

  /**
   * Sends a request to the worker. If the disk hangs, answers all waiting callers with a failure
   * and continues to wait alone.
   */
  async #ask(ask: () => Promise<Answer>): Promise<Answer> {
    const { hungMs } = this.#options;
    if (hungMs === undefined) return await ask();
    using _timer = this.clock.after(hungMs, () => {
      this.isHung = true;
      this.failing = `the disk has not answered for ${hungMs / 1_000} s`;
      this.#refuseWaiters();
    });
    try {
      return await ask();
    } finally {
      this.isHung = false;
    }
  }

  #noteOpened(answer: Extract<Answer, { kind: "opened" }>): void {
    this.rows = answer.rows;
    this.setAside = answer.setAside;
  }

  #noteFailed(answer: Answer): false {
    if (answer.kind === "failed") this.failing = answer.why;
    if (answer.kind === "refused") this.failing = answer.message;
    return false;
  }

  #refuseWaiters(): void {
    for (const { resolve } of this.waiters.splice(0)) resolve(false);
  }

  #retryLater(): void {
    if (this.#closing !== null || this.worker.gone !== null) return;
    const ms = Math.min(RETRY_MAX_MS, RETRY_FIRST_MS * 2 ** this.#failures++);
    this.#timer?.[Symbol.dispose]();
    this.#timer = this.clock.after(ms, () => this.#onTimer());
  }
}
