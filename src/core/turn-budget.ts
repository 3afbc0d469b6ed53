/** Time limits in one turn of the event loop. */
export interface TurnLimits {
  /** Milliseconds per source and turn. */
  readonly sourceMs: number;
  /** Milliseconds from the start of the turn after which no source continues. */
  readonly turnMs: number;
}

/**
 * A source stops 1 ms before the 5 ms that a turn may take, because its last piece takes time too.
 */
export const TURN_LIMITS: TurnLimits = { sourceMs: 2, turnMs: 4 };

/** Turns with more processor time are counted. No input of one source may cause them. */
export const LONG_TURN_MS = 5;

/** Turns of the event loop since the start that contained announced work. */
export interface TurnStats {
  readonly turns: number;
  /** Turns with more than `LONG_TURN_MS` of processor time. */
  readonly longTurns: number;
  /** Processor time of all turns, with the open one. */
  readonly cpuMs: number;
}

/**
 * Called at the end of each turn with its duration and with the processor time of the thread in it.
 * The two differ if the thread waited for a processor. Must not throw.
 */
export type TurnListener = (ms: number, cpuMs: number) => void;

export interface TurnBudgetOptions {
  readonly limits?: TurnLimits;
  /** Monotonic milliseconds. */
  readonly nowMs?: () => number;
  /** Calls `run` at the start of the loop's next turn. */
  readonly nextTurn?: (run: () => void) => void;
}

/**
 * Shares the turns of one event loop among sources of input, so that a flood from one source delays
 * the others by a bounded time. A source is a producer that must not starve others: a process
 * behind engine connections, the commands of NATS, the events of an engine.
 *
 * A turn begins with the first announced work (`touch`, `TurnSource.begin`) and ends when the loop
 * runs the next immediate. Polling, callbacks and their microtasks are in between. At the start of
 * a turn waiting sources get their slices in round-robin order. Work from the poll follows in the
 * remaining time.
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
   * Sets the clock of the thread's processor time, in milliseconds. Without it, all time counts as
   * processor time.
   */
  measureCpu(nowMs: () => number): void {
    this.#cpuNowMs = nowMs;
    this.#startCpuMs = nowMs();
  }

  /** Processor time of the thread in milliseconds, from an arbitrary start. */
  get cpuNowMs(): number {
    return this.#cpuNowMs();
  }

  /** Number of the turn. A source that sees a new number has a full slice again. */
  get turn(): number {
    return this.#turns;
  }

  source(): TurnSource {
    return new TurnSource(this);
  }

  /** Announces work without a source, from which the turn is measured. */
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

  /** Whether sources may still work in the open turn at `nowMs`. */
  hasTime(nowMs: number): boolean {
    return nowMs - this.#startMs < this.limits.turnMs;
  }

  /** @internal Grants the source a slice in one of the next turns. */
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
    // The number of whole slices in a turn. The time that each one really uses is not known in
    // advance.
    const slices = Math.max(1, Math.floor(this.limits.turnMs / this.limits.sourceMs));
    for (const source of this.#waiting.splice(0, slices)) source.grant();
  };
}

/** Maximum number of waiting jobs per source. */
const JOBS_MAX = 8_192;

/**
 * The share of one source in the turns. For work that arrives now call `begin`, and then `goOn`
 * after each piece. If either returns false, the rest waits for `turn()`. Several pieces of code
 * may share a source; they get its slices in the order of their requests. Jobs that must keep their
 * order use `run`.
 */
export class TurnSource {
  readonly #budget: TurnBudget;
  #jobs: TurnQueue<Iterator<void, void>> | null = null;
  readonly #waiting: (() => void)[] = [];
  #turn = -1;
  #spentMs = 0;
  #sinceMs = 0;

  /** @internal See `TurnBudget.source`. */
  constructor(budget: TurnBudget) {
    this.#budget = budget;
  }

  /** Begins work of this source. False: the time of the source, or of the turn, is used up. */
  begin(): boolean {
    this.#budget.touch();
    this.#sinceMs = this.#budget.nowMs();
    return this.#hasTime();
  }

  /** Charges the time since `begin` or the last `goOn`. False: as for `begin`. */
  goOn(): boolean {
    const nowMs = this.#budget.nowMs();
    const ms = nowMs - this.#sinceMs;
    this.#sinceMs = nowMs;
    this.#spentMs = (this.#turn === this.#budget.turn ? this.#spentMs : 0) + ms;
    this.#turn = this.#budget.turn;
    return this.#hasTime();
  }

  /** Resolves at the start of this source's next slice. Never rejects. */
  async turn(): Promise<void> {
    await new Promise<void>((resolve) => {
      this.#waiting.push(resolve);
      if (this.#waiting.length === 1) this.#budget.enqueue(this);
    });
    // Other sources may have used their slices since the grant.
    this.begin();
  }

  /**
   * Runs a job piece by piece, after the jobs that `run` and `call` accepted before. Work that the
   * job starts and that continues in microtasks is charged too. Resolves or rejects with the result
   * of the job. Null: too many jobs are waiting; the job is not run.
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

  /** Like `run` for a job of one piece. */
  call<T>(job: () => T): Promise<Awaited<T>> | null {
    // biome-ignore lint/correctness/useYield: one piece
    const steps = function* (): Generator<void, T> {
      return job();
    };
    return this.run(steps());
  }

  /** Whether no job of `run` and `call` is waiting or unfinished. */
  get isIdle(): boolean {
    return this.#jobs?.isIdle ?? true;
  }

  /** @internal Grants a slice to the caller that waited longest. */
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

/** The budget of this thread's event loop. */
export const loopTurns = new TurnBudget();

/** Runs a job of short pieces in the slices of its source. Resolves to the result of the job. */
export async function runInTurns<T>(source: TurnSource, job: Iterator<void, T>): Promise<T> {
  if (!source.begin()) await source.turn();
  for (;;) {
    const { done, value } = job.next();
    if (done === true) return value;
    if (!source.goOn()) await source.turn();
  }
}

/** Runs all pieces of a job synchronously. Returns the result of the job. */
export function runAtOnce<T>(job: Iterator<void, T>): T {
  for (;;) {
    const { done, value } = job.next();
    if (done === true) return value;
  }
}

export interface TurnQueueOptions<T> {
  readonly source: TurnSource;
  readonly itemsMax: number;
  /** Limit of the sum of the `bytes` given to `push`. */
  readonly bytesMax: number;
  /** Whether items continue work in microtasks, which is then charged to the source. */
  readonly settles?: boolean;
  /** Processes one item, at once or piece by piece. Must not throw. */
  run(item: T): Iterator<void, void> | void;
}

/**
 * Microtask turns that the continuation of an item may take: as many as a command without waits.
 */
const SETTLE_HOPS = 16;
/** Taken items before the array is compacted. */
const SHIFT_ITEMS = 1_024;

interface Queued<T> {
  readonly item: T;
  readonly bytes: number;
}

/**
 * Items of one source, processed in order within its slices. `push` processes the item
 * synchronously if no item is waiting and the source has time. The queue is bounded: items beyond
 * the limit are dropped and counted.
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

  /** Waiting items. */
  get length(): number {
    return this.#items.length - this.#at;
  }
  get bytes(): number {
    return this.#bytes;
  }
  /** Whether no item is waiting or unfinished. */
  get isIdle(): boolean {
    return this.length === 0 && this.#job === null;
  }

  /** False if the queue is full or disposed. */
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

  /** Drops waiting items without counting them. An unfinished item stays unfinished. */
  [Symbol.dispose](): void {
    this.#isOver = true;
    this.#items = [];
    [this.#at, this.#bytes, this.#job] = [0, 0, null];
  }

  /** Continues in the current slice. */
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

  /** Runs one piece of the unfinished item, or the next item. */
  #step(): void {
    this.#job ??= this.#options.run(this.#shift()) ?? null;
    const job = this.#job;
    if (job?.next().done === true && this.#job === job) this.#job = null;
    if (this.#isOver) this.#job = null;
  }

  #shift(): T {
    const { item, bytes } = this.#items[this.#at++]!;
    this.#bytes -= bytes;
    // `shift` moves the whole array, so it is done once in a thousand items.
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
 * One source per name: an address, a peer, a subject. The number is bounded, because every active
 * source makes the others wait. If all are active, further names share one source.
 */
export class NamedSources {
  readonly #budget: TurnBudget;
  readonly #max: number;
  /** Least recently used first. */
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
