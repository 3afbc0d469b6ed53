import { type Clock, yieldToLoop } from "../../core/index.ts";
import type { StatusName } from "../../native/index.ts";
import type { HealthSink, SsdParts } from "./ssd-parts.ts";

/** Milliseconds for which the health report mentions a damaged block. */
const CORRUPT_MS = 3_600_000;
const SLOW_MS = 60_000;
const DESCRIPTORS_MS = 30_000;
/** Reasons for suspended writes that have a health condition of their own. */
const NAMED: ReadonlySet<string> = new Set("no_space read_only no_descriptors replaced".split(" "));

/** Raises health conditions of the SSD tier, and clears them when they no longer apply. */
export class SsdHealth {
  readonly #sink: HealthSink;
  readonly #clock: Clock;
  #corruptMs = Number.NEGATIVE_INFINITY;
  #lateMs = Number.NEGATIVE_INFINITY;
  #corruptBlocks = 0;

  constructor(sink: HealthSink, clock: Clock) {
    this.#sink = sink;
    this.#clock = clock;
  }

  corrupt(path: string, why: string): void {
    this.#corruptMs = this.#clock.monotonicMs();
    this.#corruptBlocks++;
    const detail = `${this.#corruptBlocks} damaged since the start, last ${path}: ${why}`;
    this.#sink.raise("KV_SSD_CSUM", detail);
  }

  late(): void {
    this.#lateMs = this.#clock.monotonicMs();
    this.#sink.raise("KV_SSD_SLOW", "blocks were not read within their deadline");
  }

  update(now: {
    readonly hung: boolean;
    readonly writesStopped: string | null;
    readonly readsStopped: string | null;
    /** Reason why the path leads to another folder than at startup; null if it does not. */
    readonly replaced: string | null;
  }): void {
    const nowMs = this.#clock.monotonicMs();
    if (nowMs - this.#corruptMs > CORRUPT_MS) this.#sink.clear("KV_SSD_CSUM");
    if (nowMs - this.#lateMs > SLOW_MS) this.#sink.clear("KV_SSD_SLOW");
    const { hung, writesStopped, readsStopped, replaced } = now;
    this.#set("KV_SSD_REPLACED", replaced !== null, replaced ?? "");
    if (writesStopped === "no_descriptors" || readsStopped === "no_descriptors") {
      const detail = "files on the SSD cannot be opened; retried periodically";
      this.#sink.raise("FD_LIMIT", detail, { forMs: DESCRIPTORS_MS });
    }
    this.#set("KV_SSD_HUNG", hung, "operations on the SSD hang; the agent serves from RAM only");
    this.#set("KV_SSD_FULL", writesStopped === "no_space", "the file system is full");
    this.#set("KV_SSD_READ_ONLY", writesStopped === "read_only", "the file system is read-only");
    const isOwn = (why: string | null) => why !== null && !NAMED.has(why);
    const error = [readsStopped, writesStopped].find(isOwn) ?? null;
    const what = isOwn(readsStopped) ? "reads" : "writes";
    this.#set("KV_SSD_ERRORS", error !== null, `${what} fail (${error}); retried periodically`);
  }

  #set(condition: Parameters<HealthSink["raise"]>[0], on: boolean, detail: string): void {
    if (on) this.#sink.raise(condition, detail);
    else this.#sink.clear(condition);
  }
}

const PROBE_FIRST_MS = 1_000;
const PROBE_LAST_MS = 30_000;
/** Number of consecutive read errors after which reads are suspended. */
const READ_ERRORS_MAX = 5;

/**
 * Circuit breaker for disk operations. Closed: operations are allowed. Open: they are suspended,
 * for a recorded reason. After a delay it allows one trial; if that succeeds it closes, otherwise
 * it stays open for twice the delay.
 */
export class CircuitBreaker {
  readonly #clock: Clock;
  #why: StatusName | null = null;
  #disabledBy: string | null = null;
  #waitMs = PROBE_FIRST_MS;
  #trialAtMs = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Reason why operations are suspended; null while the breaker is closed. */
  get why(): StatusName | "replaced" | null {
    return this.#disabledBy === null ? this.#why : "replaced";
  }

  /** Reason why no trials are made; null while trials are allowed. */
  get disabledBy(): string | null {
    return this.#disabledBy;
  }

  /**
   * Opens the breaker without trials because the path leads to another folder; `null` allows trials
   * again.
   */
  disable(why: string | null): void {
    this.#disabledBy = why;
  }

  /**
   * Opens the breaker. Operations that were in progress may fail afterwards; only a failed trial
   * extends the delay.
   */
  trip(why: StatusName): void {
    const isOpen = this.#why === null;
    this.#why = why;
    if (!isOpen && !this.#isTried) return;
    this.#waitMs = isOpen ? PROBE_FIRST_MS : Math.min(PROBE_LAST_MS, this.#waitMs * 2);
    this.#trialAtMs = this.#clock.monotonicMs() + this.#waitMs;
  }

  reset(): void {
    this.#why = null;
  }

  /** True if the breaker is closed or a trial is due. */
  get mayTry(): boolean {
    if (this.#disabledBy !== null) return false;
    return this.#why === null || this.#clock.monotonicMs() >= this.#trialAtMs;
  }

  /**
   * Returns true once for each due trial. The caller then makes the trial and reports its result.
   */
  takeTrial(): boolean {
    if (this.#why === null || !this.mayTry) return false;
    this.#trialAtMs = Number.POSITIVE_INFINITY;
    return true;
  }

  /** Gives back a trial that the caller could not make, so that the next caller may make it. */
  returnTrial(): void {
    if (this.#isTried) this.#trialAtMs = this.#clock.monotonicMs();
  }

  get #isTried(): boolean {
    return this.#why !== null && this.#trialAtMs === Number.POSITIVE_INFINITY;
  }
}

/**
 * Circuit breaker for reads. A single error is only a miss; several consecutive errors indicate a
 * broken disk and open the breaker.
 */
export class ReadCircuitBreaker {
  readonly gate: CircuitBreaker;
  #errors = 0;

  constructor(clock: Clock) {
    this.gate = new CircuitBreaker(clock);
  }

  /**
   * Returns whether a read may be tried: always while the breaker is closed; while it is open, only
   * as the trial.
   */
  mayRead(): boolean {
    return this.gate.why === null || this.gate.takeTrial();
  }

  succeeded(): void {
    this.#errors = 0;
    this.gate.reset();
  }

  failed(why: StatusName): void {
    this.#errors++;
    if (this.#errors >= READ_ERRORS_MAX || this.gate.why !== null) this.gate.trip(why);
  }
}

/** Milliseconds after which an unfinished disk operation indicates a hung disk. */
const HUNG_MS = 5_000;

/** Detects a hung disk and ends the waits for it. */
export class HangDetector {
  readonly #parts: SsdParts;
  readonly #onHang: () => void;
  readonly #waits = new Set<() => void>();
  #hung = false;

  constructor(parts: SsdParts, onHang: () => void) {
    this.#parts = parts;
    this.#onHang = onHang;
  }

  get hung(): boolean {
    return this.#hung;
  }

  /** Checks whether the disk hangs. Call periodically. */
  look(): void {
    const { ioSlots, log } = this.#parts;
    const hung = ioSlots.oldestMs() > HUNG_MS;
    if (hung === this.#hung) return;
    this.#hung = hung;
    log(hung ? "error" : "info", hung ? "SSD hangs, serving without it" : "SSD responds again", {
      operations: ioSlots.running,
    });
    if (!hung) return;
    this.#onHang();
    this.giveUpWaits();
  }

  /**
   * Returns the result of `work`, or null if the disk hangs before `work` ends. `work` continues.
   */
  orHung<T>(work: Promise<T>): Promise<T | null> {
    return new Promise((resolve, reject) => {
      const giveUp = () => resolve(null);
      this.#waits.add(giveUp);
      // Yield once, so that work that needs no disk can still end with its result.
      if (this.#hung) void yieldToLoop().then(giveUp);
      work.then(resolve, reject).finally(() => this.#waits.delete(giveUp));
    });
  }

  /** Ends all waits for the disk with null. */
  giveUpWaits(): void {
    for (const giveUp of this.#waits) giveUp();
    this.#waits.clear();
  }
}
