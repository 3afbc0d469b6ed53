import type { Clock } from "../../core/index.ts";
import type { StatusName } from "../../native/index.ts";

const PROBE_FIRST_MS = 1_000;
const PROBE_LAST_MS = 30_000;
/** Errors of reads, without a success in between, after which reading stops. */
const READ_ERRORS_MAX = 5;

/**
 * Whether something may be tried. States: open → shut (for a reason) → half open, when one trial is
 * let through → open, or shut again for twice as long.
 */
export class Gate {
  readonly #clock: Clock;
  #why: StatusName | null = null;
  #barred: string | null = null;
  #waitMs = PROBE_FIRST_MS;
  #trialAtMs = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Why it is shut; null while it is open. */
  get why(): StatusName | "replaced" | null {
    return this.#barred === null ? this.#why : "replaced";
  }

  /** Why no trial is made either; null while trials are. */
  get barred(): string | null {
    return this.#barred;
  }

  /** Shut, without trials, until `bar(null)`: the folder behind it is another one. */
  bar(why: string | null): void {
    this.#barred = why;
  }

  /**
   * What was under way when it was shut may fail too: only a trial that fails makes it wait longer.
   */
  shut(why: StatusName): void {
    const isOpen = this.#why === null;
    this.#why = why;
    if (!isOpen && !this.#isTried) return;
    this.#waitMs = isOpen ? PROBE_FIRST_MS : Math.min(PROBE_LAST_MS, this.#waitMs * 2);
    this.#trialAtMs = this.#clock.monotonicMs() + this.#waitMs;
  }

  open(): void {
    this.#why = null;
  }

  /** Whether it is open, or a trial is due. */
  get mayTry(): boolean {
    if (this.#barred !== null) return false;
    return this.#why === null || this.#clock.monotonicMs() >= this.#trialAtMs;
  }

  /** True once each time a trial is due; whoever asks makes it, and then says how it went. */
  takeTrial(): boolean {
    if (this.#why === null || !this.mayTry) return false;
    this.#trialAtMs = Number.POSITIVE_INFINITY;
    return true;
  }

  /** The trial could not be made after all: the next one who asks may make it. */
  returnTrial(): void {
    if (this.#isTried) this.#trialAtMs = this.#clock.monotonicMs();
  }

  get #isTried(): boolean {
    return this.#why !== null && this.#trialAtMs === Number.POSITIVE_INFINITY;
  }
}

/** The breaker of reads: one error is a miss, again and again is a broken disk. */
export class ReadBreaker {
  readonly gate: Gate;
  #errors = 0;

  constructor(clock: Clock) {
    this.gate = new Gate(clock);
  }

  /** Whether a read may be tried: always while closed, once in a while when open. */
  mayRead(): boolean {
    return this.gate.why === null || this.gate.takeTrial();
  }

  succeeded(): void {
    this.#errors = 0;
    this.gate.open();
  }

  failed(why: StatusName): void {
    this.#errors++;
    if (this.#errors >= READ_ERRORS_MAX || this.gate.why !== null) this.gate.shut(why);
  }
}
