import { type Clock, yieldToLoop } from "../../core/index.ts";
import type { StatusName } from "../../native/index.ts";
import type { HealthSink, SsdParts } from "./ssd-parts.ts";

/** A damaged block is worth knowing of for an hour. */
const CORRUPT_MS = 3_600_000;
const SLOW_MS = 60_000;
const DESCRIPTORS_MS = 30_000;
/** Reasons with a condition of their own: the drive has no part in them, or is named by it. */
const NAMED: ReadonlySet<string> = new Set("no_space read_only no_descriptors replaced".split(" "));

/** Turns what the tier sees into conditions, and clears them when they are over. */
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
    /** Why the folder is not the one at its path; null where it is. */
    readonly replaced: string | null;
  }): void {
    const nowMs = this.#clock.monotonicMs();
    if (nowMs - this.#corruptMs > CORRUPT_MS) this.#sink.clear("KV_SSD_CSUM");
    if (nowMs - this.#lateMs > SLOW_MS) this.#sink.clear("KV_SSD_SLOW");
    const { hung, writesStopped, readsStopped, replaced } = now;
    this.#set("KV_SSD_REPLACED", replaced !== null, replaced ?? "");
    if (writesStopped === "no_descriptors" || readsStopped === "no_descriptors") {
      const detail = "files on the SSD cannot be opened; tried again now and then";
      this.#sink.raise("FD_LIMIT", detail, { forMs: DESCRIPTORS_MS });
    }
    this.#set("KV_SSD_HUNG", hung, "operations on the SSD do not come back; RAM goes on alone");
    this.#set("KV_SSD_FULL", writesStopped === "no_space", "the file system is full");
    this.#set("KV_SSD_READ_ONLY", writesStopped === "read_only", "the file system is read-only");
    const isOwn = (why: string | null) => why !== null && !NAMED.has(why);
    const error = [readsStopped, writesStopped].find(isOwn) ?? null;
    const what = isOwn(readsStopped) ? "reads" : "writes";
    this.#set("KV_SSD_ERRORS", error !== null, `${what} fail (${error}); tried again now and then`);
  }

  #set(condition: Parameters<HealthSink["raise"]>[0], on: boolean, detail: string): void {
    if (on) this.#sink.raise(condition, detail);
    else this.#sink.clear(condition);
  }
}

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

/** An operation that takes longer than this belongs to a disk that hangs. */
const HUNG_MS = 5_000;

/** Whether the disk answers at all, and what to do with those who wait for it when it does not. */
export class HangWatch {
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

  /** To be called now and then. */
  look(): void {
    const { schedule, log } = this.#parts;
    const hung = schedule.oldestMs() > HUNG_MS;
    if (hung === this.#hung) return;
    this.#hung = hung;
    log(hung ? "error" : "info", hung ? "the SSD hangs: going on without it" : "the SSD is back", {
      operations: schedule.running,
    });
    if (!hung) return;
    this.#onHang();
    this.giveUpWaits();
  }

  /** What comes of `work`, or null where the disk hangs before that; the work goes on. */
  orHung<T>(work: Promise<T>): Promise<T | null> {
    return new Promise((resolve, reject) => {
      const giveUp = () => resolve(null);
      this.#waits.add(giveUp);
      // What needs no disk is over by then.
      if (this.#hung) void yieldToLoop().then(giveUp);
      work.then(resolve, reject).finally(() => this.#waits.delete(giveUp));
    });
  }

  /** Nobody waits for the disk any longer. */
  giveUpWaits(): void {
    for (const giveUp of this.#waits) giveUp();
    this.#waits.clear();
  }
}
