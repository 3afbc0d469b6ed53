/** Limits on processor time in one turn of the event loop. */
export interface TurnLimits {
  /** Maximum ms that one source uses in a turn. */
  readonly sourceMs: number;
  /** Ms after the start of the turn, from which on no source continues. */
  readonly turnMs: number;
}

/**
 * Default limits. Sources stop 1 ms before the 5 ms that a turn may take, because the last piece of
 * work takes some time too.
 */
export const TURN_LIMITS: TurnLimits = { sourceMs: 2, turnMs: 4 };

/**
 * Turns with more ms of processor time are counted as long. Input from one source must never cause
 * one.
 */
export const LONG_TURN_MS = 5;

/** Counters of the turns since the start in which a source or `touch` announced work. */
export interface TurnStats {
  readonly turns: number;
  /** Turns with more than `LONG_TURN_MS` ms of processor time. */
  readonly longTurns: number;
  /** Processor time in ms of all counted turns, including the current one. */
  readonly cpuMs: number;
}

/**
 * Called at the end of each turn, with its duration and with the processor time that the thread
 * used in it. The two differ if the thread had to wait for a processor. Must not throw.
 */
export type TurnListener = (ms: number, cpuMs: number) => void;

export interface TurnBudgetOptions {
  readonly limits?: TurnLimits;
  /** Returns the monotonic time in ms. */
  readonly nowMs?: () => number;
  /** Calls `run` at the start of the event loop's next turn. */
  readonly nextTurn?: (run: () => void) => void;
}

/**
 * Shares the turns of one event loop among sources of input, so that a flood from one source delays
 * the others by a bounded time. A source is a producer that must not starve others: all connections
 * of one engine process, the commands from NATS, the events of an engine.
 *
 * A turn begins with the first announced work (`touch`, `TurnSource.begin`) and ends when the loop
 * runs the next immediate. Polling, callbacks and their microtasks run in between. At the start of
 * a turn, waiting sources get their slices in round-robin order. Work that arrives from polling
 * uses the remaining time.
 */
export class TurnBudget {
  readonly limits: TurnLimits;
  readonly nowMs: () => number;
  readonly #nextTurn: (run: () => void) => void;
  readonly #waiting: TurnSource[] = [];
  readonly #listeners = new Set<TurnListener>();
  #cpuNowMs: () => number;
  #isOpen = false;
  #startMs = 0;
  #startCpuMs = 0;
  #turns = 0;
  #longTurns = 0;
  #cpuMs = 0;

  constructor(options: TurnBudgetOptions = {}) {
    this.limits = options.limits ?? TURN_LIMITS;
    this.nowMs = options.nowMs ?? (() => performance.now());
    this.#nextTurn = options.nextTurn ?? ((run) => void setImmediate(run));
    this.#cpuNowMs = this.nowMs;
  }

  get stats(): TurnStats {
    const openMs = this.#isOpen ? this.#cpuNowMs() - this.#startCpuMs : 0;
    return { turns: this.#turns, longTurns: this.#longTurns, cpuMs: this.#cpuMs + openMs };
  }

  /**
   * Sets the function that returns the thread's processor time in ms. Without it, all elapsed time
   * counts as processor time.
   */
  measureCpu(nowMs: () => number): void {
    this.#cpuNowMs = nowMs;
    this.#startCpuMs = nowMs();
  }

  /** Processor time of the thread in ms, since an arbitrary start. */
  get cpuNowMs(): number {
    return this.#cpuNowMs();
  }

  /** Number of the current turn. At each new turn, every source has a full slice again. */
  get turn(): number {
    return this.#turns;
  }

  source(): TurnSource {
    return new TurnSource(this);
  }

  /** Announces work that has no source, so that the turn is measured from now on. */
  touch(): void {
    if (this.#isOpen) return;
    this.#isOpen = true;
    this.#startMs = this.nowMs();
    this.#startCpuMs = this.#cpuNowMs();
    this.#nextTurn(this.#end);
  }

  onTurn(listener: TurnListener): Disposable {
    this.#listeners.add(listener);
    return { [Symbol.dispose]: () => void this.#listeners.delete(listener) };
  }

  /** Returns true if sources may still work in the current turn at time `nowMs`. */
  hasTime(nowMs: number): boolean {
    return nowMs - this.#startMs < this.limits.turnMs;
  }

  /** @internal Registers a source that waits for a slice in one of the next turns. */
  enqueue(source: TurnSource): void {
    this.#waiting.push(source);
    this.touch();
  }

  readonly #end = (): void => {
    const ms = this.nowMs() - this.#startMs;
    const cpuMs = this.#cpuNowMs() - this.#startCpuMs;
    this.#isOpen = false;
    this.#turns++;
    this.#cpuMs += cpuMs;
    if (cpuMs > LONG_TURN_MS) this.#longTurns++;
    for (const listener of this.#listeners) listener(ms, cpuMs);
    if (this.#waiting.length === 0) return;
    this.touch();
    // Number of whole slices in a turn, because the time that each slice will really use is
    // unknown.
    const slices = Math.max(1, Math.floor(this.limits.turnMs / this.limits.sourceMs));
    for (const source of this.#waiting.splice(0, slices)) source.grant();
  };
}

/** Maximum jobs that wait per source. */
const JOBS_MAX = 8_192;

/**
 * One source of work, with its share of each turn. For work that arrives now, call `begin`, and
 * then `goOn` after each piece. If either returns false, do the rest after `turn()`. Several pieces
 * of code may share a source; they get its slices in the order in which they asked. Jobs that must
 * keep their order use `run`.
 */
export class TurnSource {
  readonly #budget: TurnBudget;
  #jobs: TurnQueue<Iterator<void, void>> | null = null;
  readonly #waiting: (() => void)[] = [];
  #turn = -1;
  #spentMs = 0;
  #sinceMs = 0;

  /** @internal Use `TurnBudget.source` to create a source. */
  constructor(budget: TurnBudget) {
    this.#budget = budget;
  }

  /**
   * Begins work of this source in the current turn. Returns false if the source, or the whole turn,
   * has no time left.
   */
  begin(): boolean {
    this.#budget.touch();
    this.#sinceMs = this.#budget.nowMs();
    return this.#hasTime();
  }

  /**
   * Charges this source for the time since `begin` or the last `goOn`. Returns false if the source,
   * or the whole turn, has no time left.
   */
  goOn(): boolean {
    const nowMs = this.#budget.nowMs();
    const ms = nowMs - this.#sinceMs;
    this.#sinceMs = nowMs;
    this.#spentMs = (this.#turn === this.#budget.turn ? this.#spentMs : 0) + ms;
    this.#turn = this.#budget.turn;
    return this.#hasTime();
  }

  /** Waits for this source's next slice and resolves at its start. Never rejects. */
  async turn(): Promise<void> {
    await new Promise<void>((resolve) => {
      this.#waiting.push(resolve);
      if (this.#waiting.length === 1) this.#budget.enqueue(this);
    });
    // Begin anew, because other sources may have used time of this turn since the slice was
    // granted.
    this.begin();
  }

  /**
   * Runs a job piece by piece, once the jobs that `run` and `call` accepted earlier have ended.
   * Time that the job's work takes in microtasks is charged as well. Settles with the job's result.
   * Returns null, without running the job, if too many jobs are waiting.
   */
  run<T>(job: Iterator<void, T>): Promise<Awaited<T>> | null {
    this.#jobs ??= new TurnQueue<Iterator<void, void>>({
      source: this,
      itemsMax: JOBS_MAX,
      bytesMax: 0,
      settles: true,
      run: (steps) => steps,
    });
    const { promise, resolve, reject } = Promise.withResolvers<Awaited<T>>();
    const steps = settling(job, (value) => resolve(value as Awaited<T>), reject);
    return this.#jobs.push(steps) ? promise : null;
  }

  /** Runs a job of one piece like `run`. */
  call<T>(job: () => T): Promise<Awaited<T>> | null {
    // biome-ignore lint/correctness/useYield: one piece
    const steps = function* (): Generator<void, T> {
      return job();
    };
    return this.run(steps());
  }

  /** True if no job of `run` and `call` is waiting or in progress. */
  get isIdle(): boolean {
    return this.#jobs?.isIdle ?? true;
  }

  /** @internal Gives a slice to the caller of `turn` that has waited longest. */
  grant(): void {
    const resolve = this.#waiting.shift();
    if (this.#waiting.length > 0) this.#budget.enqueue(this);
    resolve?.();
  }

  #hasTime(): boolean {
    const { limits, turn } = this.#budget;
    const spentMs = this.#turn === turn ? this.#spentMs : 0;
    return spentMs < limits.sourceMs && this.#budget.hasTime(this.#sinceMs);
  }
}

function* settling<T>(
  job: Iterator<void, T>,
  resolve: (value: T) => void,
  reject: (thrown: unknown) => void,
): Generator<void, void> {
  try {
    for (;;) {
      const { done, value } = job.next();
      if (done === true) return resolve(value);
      yield;
    }
  } catch (thrown) {
    reject(thrown);
  }
}

/** The turn budget of this thread's event loop. */
export const loopTurns = new TurnBudget();

/** Runs a job of short pieces in slices of its source. Resolves with the job's result. */
export async function runInTurns<T>(source: TurnSource, job: Iterator<void, T>): Promise<T> {
  if (!source.begin()) await source.turn();
  for (;;) {
    const { done, value } = job.next();
    if (done === true) return value;
    if (!source.goOn()) await source.turn();
  }
}

/** Runs all pieces of a job without interruption. Returns the job's result. */
export function runAtOnce<T>(job: Iterator<void, T>): T {
  for (;;) {
    const { done, value } = job.next();
    if (done === true) return value;
  }
}

export interface TurnQueueOptions<T> {
  readonly source: TurnSource;
  readonly itemsMax: number;
  /** Maximum sum of the `bytes` of all waiting items. */
  readonly bytesMax: number;
  /**
   * True if items continue their work in microtasks. The time of these is then charged to the
   * source.
   */
  readonly settles?: boolean;
  /**
   * Processes one item: completely, or piece by piece if it returns an iterator. Must not throw.
   */
  run(item: T): Iterator<void, void> | void;
}

/**
 * Number of microtask rounds that the queue waits for an item's continuation: as many as a command
 * that does not wait for anything needs.
 */
const SETTLE_HOPS = 16;
/** Processed items stay at the front of the array until there are this many. */
const SHIFT_ITEMS = 1_024;

interface Queued<T> {
  readonly item: T;
  readonly bytes: number;
}

/**
 * Queue of items that are processed in order, within the slices of one source. If no item is
 * waiting and the source has time, `push` processes the item immediately. The queue is bounded:
 * further items are dropped and counted.
 */
export class TurnQueue<T> implements Disposable {
  readonly #options: TurnQueueOptions<T>;
  #items: Queued<T>[] = [];
  #at = 0;
  #bytes = 0;
  #job: Iterator<void, void> | null = null;
  #isWaiting = false;
  #isRunning = false;
  #isOver = false;
  dropped = 0;

  constructor(options: TurnQueueOptions<T>) {
    this.#options = options;
  }

  /** Number of waiting items. */
  get length(): number {
    return this.#items.length - this.#at;
  }
  get bytes(): number {
    return this.#bytes;
  }
  /** True if no item is waiting or in progress. */
  get isIdle(): boolean {
    return this.length === 0 && this.#job === null;
  }

  /** Adds an item, or processes it immediately. Returns false if the queue is full or disposed. */
  push(item: T, bytes = 0): boolean {
    const { itemsMax, bytesMax, source } = this.#options;
    if (this.#isOver) return false;
    if (this.length >= itemsMax || this.#bytes + bytes > bytesMax) {
      this.dropped++;
      return false;
    }
    const isFirst = this.isIdle && !this.#isRunning && !this.#isWaiting;
    this.#items.push({ item, bytes });
    this.#bytes += bytes;
    if (isFirst && source.begin()) this.#run();
    else if (!this.#isRunning) this.#wait();
    return true;
  }

  /** Drops all waiting items without counting them. The item in progress is not completed. */
  [Symbol.dispose](): void {
    this.#isOver = true;
    this.#items = [];
    [this.#at, this.#bytes, this.#job] = [0, 0, null];
  }

  /** Processes items within the current slice. */
  #run(): void {
    this.#isRunning = true;
    if (this.#options.settles === true) {
      void this.#runSettled();
      return;
    }
    let hasTime = true;
    while (hasTime && !this.isIdle) {
      this.#step();
      hasTime = this.#options.source.goOn();
    }
    this.#rest();
  }

  async #runSettled(): Promise<void> {
    let hasTime = true;
    while (hasTime && !this.isIdle) {
      this.#step();
      for (let hop = 0; hop < SETTLE_HOPS; hop++) await null;
      hasTime = this.#options.source.goOn();
    }
    this.#rest();
  }

  #rest(): void {
    this.#isRunning = false;
    if (!this.isIdle) this.#wait();
  }

  /** Processes one piece of the item in progress, or the next item. */
  #step(): void {
    this.#job ??= this.#options.run(this.#shift()) ?? null;
    const job = this.#job;
    if (job?.next().done === true && this.#job === job) this.#job = null;
    if (this.#isOver) this.#job = null;
  }

  #shift(): T {
    const { item, bytes } = this.#items[this.#at++];
    this.#bytes -= bytes;
    // Removing items moves the whole array, so it is done only once per thousand items.
    if (this.#at === this.#items.length || this.#at >= SHIFT_ITEMS) {
      this.#items = this.#items.slice(this.#at);
      this.#at = 0;
    }
    return item;
  }

  #wait(): void {
    if (this.#isWaiting) return;
    this.#isWaiting = true;
    void this.#options.source.turn().then(() => {
      this.#isWaiting = false;
      this.#run();
    });
  }
}

/**
 * Sources of turns by name (an address, a peer or a subject). Their number is bounded, because
 * every active source makes the others wait. If all are active, further names share one source.
 */
export class NamedSources {
  readonly #budget: TurnBudget;
  readonly #max: number;
  /** Sources by name, the least recently used one first. */
  readonly #sources = new Map<string, TurnSource>();
  readonly #shared: TurnSource;

  constructor(max: number, budget: TurnBudget = loopTurns) {
    [this.#max, this.#budget, this.#shared] = [max, budget, budget.source()];
  }

  of(name: string): TurnSource {
    const known = this.#sources.get(name);
    if (known === undefined && this.#sources.size >= this.#max && !this.#dropIdle()) {
      return this.#shared;
    }
    const source = known ?? this.#budget.source();
    this.#sources.delete(name);
    this.#sources.set(name, source);
    return source;
  }

  #dropIdle(): boolean {
    for (const [name, source] of this.#sources) {
      if (source.isIdle) return this.#sources.delete(name);
    }
    return false;
  }
}
