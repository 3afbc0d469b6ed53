/** Time in one turn of the event loop. */
export interface TurnLimits {
  /** Milliseconds for one source. */
  readonly sourceMs: number;
  /** Milliseconds, counted from the start of the turn, after which no source continues. */
  readonly turnMs: number;
}

/** A source stops 1 ms before the 5 ms that a turn may take: its last piece takes time, too. */
export const TURN_LIMITS: TurnLimits = { sourceMs: 2, turnMs: 4 };

/** Turns longer than this are counted: no input of one source may cause them. */
export const LONG_TURN_MS = 5;

/** Turns of the event loop since the start, as far as work in them was announced. */
export interface TurnStats {
  readonly turns: number;
  /** Turns longer than `LONG_TURN_MS`. */
  readonly longTurns: number;
}

export interface TurnBudgetOptions {
  readonly limits?: TurnLimits;
  /** Monotonic milliseconds. */
  readonly nowMs?: () => number;
  /** Calls `run` at the start of the loop's next turn. */
  readonly nextTurn?: (run: () => void) => void;
}

/**
 * Shares the turns of one event loop among sources of input, so that a flood of one source delays
 * the others by a bounded time. A source is whatever must not starve the others: a process behind
 * engine connections, the commands of NATS, an engine's events.
 *
 * A turn begins with the first work that is announced in it (`touch`, `TurnSource.begin`) and ends
 * when the loop runs the next immediate: polling, callbacks and their microtasks lie in between.
 * Sources that wait get their slices in round-robin order at the start of a turn; work that comes
 * from the poll follows in the time that is left.
 */
export class TurnBudget {
  readonly limits: TurnLimits;
  readonly nowMs: () => number;
  readonly #nextTurn: (run: () => void) => void;
  readonly #waiting: TurnSource[] = [];
  readonly #listeners = new Set<(ms: number) => void>();
  #isOpen = false;
  #startMs = 0;
  #turns = 0;
  #longTurns = 0;

  constructor(options: TurnBudgetOptions = {}) {
    this.limits = options.limits ?? TURN_LIMITS;
    this.nowMs = options.nowMs ?? (() => performance.now());
    this.#nextTurn = options.nextTurn ?? ((run) => void setImmediate(run));
  }

  get stats(): TurnStats {
    return { turns: this.#turns, longTurns: this.#longTurns };
  }

  /** Number of the turn; a source that sees another number has its whole slice again. */
  get turn(): number {
    return this.#turns;
  }

  source(): TurnSource {
    return new TurnSource(this);
  }

  /** Work begins that belongs to no source: the turn is measured from here on. */
  touch(): void {
    if (this.#isOpen) return;
    this.#isOpen = true;
    this.#startMs = this.nowMs();
    this.#nextTurn(this.#end);
  }

  /** Called with the milliseconds of each turn; must not throw. */
  onTurn(listener: (ms: number) => void): Disposable {
    this.#listeners.add(listener);
    return { [Symbol.dispose]: () => void this.#listeners.delete(listener) };
  }

  /** Whether `nowMs` lies in the part of the open turn in which sources may work. */
  hasTime(nowMs: number): boolean {
    return nowMs - this.#startMs < this.limits.turnMs;
  }

  /** @internal The source gets a slice in one of the next turns. */
  enqueue(source: TurnSource): void {
    this.#waiting.push(source);
    this.touch();
  }

  readonly #end = (): void => {
    const ms = this.nowMs() - this.#startMs;
    this.#isOpen = false;
    this.#turns++;
    if (ms > LONG_TURN_MS) this.#longTurns++;
    for (const listener of this.#listeners) listener(ms);
    if (this.#waiting.length === 0) return;
    this.touch();
    // As many whole slices as a turn has room for: how much each one uses is known only later.
    const slices = Math.max(1, Math.floor(this.limits.turnMs / this.limits.sourceMs));
    for (const source of this.#waiting.splice(0, slices)) source.grant();
  };
}

/** Jobs of one source that wait. */
const JOBS_MAX = 8_192;

/**
 * One source's part of the turns. Work that came just now: `begin`, then `goOn` after each piece.
 * While either answers false the rest waits for `turn()`. Several pieces of code may share one
 * source; they then share its slices, in the order in which they asked. Jobs that must keep their
 * order go through `run`.
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

  /** Work of this source begins. False: its time in this turn, or everyone's, is over. */
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

  /** Resolves in this source's next slice, which has begun then. Never rejects. */
  async turn(): Promise<void> {
    await new Promise<void>((resolve) => {
      this.#waiting.push(resolve);
      if (this.#waiting.length === 1) this.#budget.enqueue(this);
    });
    // Other sources may have had their slices between the grant and here.
    this.begin();
  }

  /**
   * Runs a job piece by piece behind the jobs that `run` and `call` took before. Work that the job
   * starts and that continues in microtasks is charged, too. Resolves or rejects as the job ends.
   * Null: too many jobs wait, and this one is not run.
   */
  run<T>(job: Iterator<void, T>): Promise<Awaited<T>> | null {
    this.#jobs ??= new TurnQueue<Iterator<void, void>>({
      ...{ source: this, itemsMax: JOBS_MAX, bytesMax: 0 },
      settles: true,
      run: (steps) => steps,
    });
    const { promise, resolve, reject } = Promise.withResolvers<Awaited<T>>();
    const steps = settling(job, (value) => resolve(value as Awaited<T>), reject);
    return this.#jobs.push(steps) ? promise : null;
  }

  /** As `run`, for a job of one piece. */
  call<T>(job: () => T): Promise<Awaited<T>> | null {
    // biome-ignore lint/correctness/useYield: one piece
    const steps = function* (): Generator<void, T> {
      return job();
    };
    return this.run(steps());
  }

  /** Whether no job of `run` and `call` waits or is unfinished. */
  get isIdle(): boolean {
    return this.#jobs?.isIdle ?? true;
  }

  /** @internal A slice for the piece of code that waited longest. */
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

/** Runs a job whose pieces are short, each in a slice of its source. The job's result. */
export async function runInTurns<T>(source: TurnSource, job: Iterator<void, T>): Promise<T> {
  if (!source.begin()) await source.turn();
  for (;;) {
    const { done, value } = job.next();
    if (done === true) return value;
    if (!source.goOn()) await source.turn();
  }
}

/** Runs all pieces of a job now. The job's result. */
export function runAtOnce<T>(job: Iterator<void, T>): T {
  for (;;) {
    const { done, value } = job.next();
    if (done === true) return value;
  }
}

export interface TurnQueueOptions<T> {
  readonly source: TurnSource;
  readonly itemsMax: number;
  /** Of what `push` is given as bytes. */
  readonly bytesMax: number;
  /** Items start work that goes on in microtasks: the source pays for that, too. */
  readonly settles?: boolean;
  /** One item: at once, or piece by piece. Must not throw. */
  run(item: T): Iterator<void, void> | void;
}

/** Microtasks in which an item's work goes on: as many as a command's that waits for nothing. */
const SETTLE_HOPS = 16;
/** Items that were taken before the array is cut. */
const SHIFT_ITEMS = 1_024;

interface Queued<T> {
  readonly item: T;
  readonly bytes: number;
}

/**
 * Items of one source, run in order within its slices. An item runs inside `push` if none waits and
 * the source has time. Bounded: what finds no room is dropped and counted.
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

  /** Items that wait. */
  get length(): number {
    return this.#items.length - this.#at;
  }
  get bytes(): number {
    return this.#bytes;
  }
  /** Whether nothing waits and no item is unfinished. */
  get isIdle(): boolean {
    return this.length === 0 && this.#job === null;
  }

  /** False: there is no room, or the queue is over. */
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

  /** What waits is dropped, uncounted; an unfinished item stays unfinished. */
  [Symbol.dispose](): void {
    this.#isOver = true;
    this.#items = [];
    [this.#at, this.#bytes, this.#job] = [0, 0, null];
  }

  /** In the present slice, which has begun. */
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

  /** One piece of the unfinished item, or the next item. */
  #step(): void {
    this.#job ??= this.#options.run(this.#shift()) ?? null;
    const job = this.#job;
    if (job?.next().done === true && this.#job === job) this.#job = null;
    if (this.#isOver) this.#job = null;
  }

  #shift(): T {
    const { item, bytes } = this.#items[this.#at++]!;
    this.#bytes -= bytes;
    // An array's shift moves all of it: one in a thousand does here.
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
 * A source for each name: an address, a peer, a subject. Bounded, since every source that works
 * makes the others wait: a name that comes while all are at work shares one with those that came
 * too late.
 */
export class NamedSources {
  readonly #budget: TurnBudget;
  readonly #max: number;
  /** The name that was used longest ago first. */
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
