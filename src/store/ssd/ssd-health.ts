import { type Clock, yieldToLoop } from "../../core/index.ts";
import type { StatusName } from "../../native/index.ts";
import type { HealthSink, SsdParts } from "./ssd-parts.ts";

/** Time for which damage of a block is reported. */
const CORRUPT_MS = 3_600_000;
const SLOW_MS = 60_000;
const DESCRIPTORS_MS = 30_000;
/** Reasons that have a condition of their own. */
const NAMED: ReadonlySet<string> = new Set("no_space read_only no_descriptors replaced".split(" "));

/** Raises health conditions from the tier's observations, and clears them when they have ended. */
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
    /** Reason why the folder at the path is not this tier's; null if it is. */
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
/** Consecutive read errors that open the breaker. */
const READ_ERRORS_MAX = 5;

/**
 * Circuit breaker. States: closed → open (with a reason) → half open, when one trial is allowed →
 * closed, or open again for twice the time.
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

  /** Reason why it is open; null while it is closed. */
  get why(): StatusName | "replaced" | null {
    return this.#disabledBy === null ? this.#why : "replaced";
  }

  /** Reason why trials are disabled; null while they are enabled. */
  get disabledBy(): string | null {
    return this.#disabledBy;
  }

  /** Opens it without trials until `disable(null)`: the folder is another one. */
  disable(why: string | null): void {
    this.#disabledBy = why;
  }

  /**
   * Opens it. Operations that were under way may fail afterwards; only a failed trial extends the
   * time.
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

  /** Whether it is closed, or a trial is due. */
  get mayTry(): boolean {
    if (this.#disabledBy !== null) return false;
    return this.#why === null || this.#clock.monotonicMs() >= this.#trialAtMs;
  }

  /** True once for each due trial. The caller makes the trial and reports its result. */
  takeTrial(): boolean {
    if (this.#why === null || !this.mayTry) return false;
    this.#trialAtMs = Number.POSITIVE_INFINITY;
    return true;
  }

  /** Call if the trial could not be made: the next caller may make it. */
  returnTrial(): void {
    if (this.#isTried) this.#trialAtMs = this.#clock.monotonicMs();
  }

  get #isTried(): boolean {
    return this.#why !== null && this.#trialAtMs === Number.POSITIVE_INFINITY;
  }
}

/**
 * Circuit breaker of reads: a single error is a miss, consecutive errors indicate a broken disk.
 */
export class ReadCircuitBreaker {
  readonly gate: CircuitBreaker;
  #errors = 0;

  constructor(clock: Clock) {
    this.gate = new CircuitBreaker(clock);
  }

  /** Whether a read may be tried: always while closed, for a trial while open. */
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

/** An operation that takes longer than this indicates a hung disk. */
const HUNG_MS = 5_000;

/** Detects a hung disk, and ends waits for it. */
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

  /** Call periodically. */
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

  /** Result of `work`, or null if the disk hangs before that. The work continues. */
  orHung<T>(work: Promise<T>): Promise<T | null> {
    return new Promise((resolve, reject) => {
      const giveUp = () => resolve(null);
      this.#waits.add(giveUp);
      // Work that needs no disk has ended by then.
      if (this.#hung) void yieldToLoop().then(giveUp);
      work.then(resolve, reject).finally(() => this.#waits.delete(giveUp));
    });
  }

  /** Ends all waits for the disk. */
  giveUpWaits(): void {
    for (const giveUp of this.#waits) giveUp();
    this.#waits.clear();
  }
}
