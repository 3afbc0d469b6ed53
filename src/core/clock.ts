import { readFileSync } from "node:fs";
import { uptime } from "node:os";
import { HearthError } from "./errors.ts";

/**
 * Time as a parameter: what ships is what is simulated. Durations are measured on the monotonic
 * clock only, so a jump of the wall clock never expires anything.
 */
export interface Clock {
  /** Milliseconds since an arbitrary start, never going back; fractions are meaningful. */
  monotonicMs(): number;
  /** Milliseconds since 1970, for printing and for files only. */
  wallMs(): number;
  /**
   * Milliseconds since the machine's boot, also while no process of ours ran and while it slept:
   * what must be measured across restarts. Comparable only under the same `bootId`; to 10 ms.
   */
  bootMs(): number;
  /** Names this boot of the machine; empty where the system does not tell. */
  readonly bootId: string;
  /** Calls `run` once after `ms`, unless disposed before. */
  after(ms: number, run: () => void): Disposable;
  /** Calls `run` about every `ms` until disposed; a late call is not made up for. */
  every(ms: number, run: () => void): Disposable;
}

export const systemClock: Clock = {
  monotonicMs: () => performance.now(),
  wallMs: () => Date.now(),
  bootMs: createBootClock(() => performance.now(), readUptimeMs),
  bootId: readBootId(),
  after(ms, run) {
    const timer = setTimeout(run, ms);
    return { [Symbol.dispose]: () => clearTimeout(timer) };
  },
  every(ms, run) {
    const timer = setInterval(run, ms);
    return { [Symbol.dispose]: () => clearInterval(timer) };
  },
};

/** Resolves after `ms`; rejects with ABORTED as soon as the signal fires. */
export function sleep(clock: Clock, ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const aborted = () => new HearthError("ABORTED", "the wait was given up");
    if (signal?.aborted) return reject(aborted());
    const onAbort = () => {
      timer[Symbol.dispose]();
      reject(aborted());
    };
    const timer = clock.after(ms, () => {
      signal?.removeEventListener("abort", onAbort);
      resolve();
    });
    signal?.addEventListener("abort", onAbort, { once: true });
  });
}

/** Lets everything else that is ready run first. Long loops call it between slices. */
export function yieldToLoop(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

/** Asked again after so long: the monotonic clock stands still while the machine sleeps. */
const BOOT_READ_MS = 100;

/**
 * A reading that took longer says little of when it was; then another is tried, so many at most.
 */
const BOOT_READ_LONG_MS = 2;
const BOOT_READS_MAX = 5;

/** Milliseconds since boot, never going back; in between goes on with the monotonic clock. */
export function createBootClock(monotonicMs: () => number, readMs: () => number): () => number {
  let [readAtMs, offsetMs, lastMs] = [Number.NEGATIVE_INFINITY, 0, 0];
  /** The process may have to wait between two clocks: what it read fastest counts. */
  const read = () => {
    let shortestMs = Number.POSITIVE_INFINITY;
    for (let i = 0; i < BOOT_READS_MAX && shortestMs > BOOT_READ_LONG_MS; i++) {
      const beforeMs = monotonicMs();
      const bootMs = readMs();
      const afterMs = monotonicMs();
      if (afterMs - beforeMs >= shortestMs) continue;
      shortestMs = afterMs - beforeMs;
      offsetMs = bootMs - beforeMs;
    }
  };
  return () => {
    if (monotonicMs() - readAtMs >= BOOT_READ_MS) {
      read();
      readAtMs = monotonicMs();
    }
    lastMs = Math.max(lastMs, monotonicMs() + offsetMs);
    return lastMs;
  };
}

/** To 10 ms, which the call for it is not: that rounds to seconds. */
function readUptimeMs(): number {
  try {
    return Number.parseFloat(readFileSync("/proc/uptime", "utf8")) * 1_000;
  } catch {
    return uptime() * 1_000;
  }
}

function readBootId(): string {
  try {
    return readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim();
  } catch {
    return "";
  }
}

/** Chance as a parameter. */
export interface Random {
  /** A whole number in [0, 2^32). */
  u32(): number;
}

export const systemRandom: Random = {
  u32() {
    const word = new Uint32Array(1);
    crypto.getRandomValues(word);
    return word[0]!;
  },
};

/**
 * The same numbers for the same seed: mulberry32 (Tommy Ettinger, public domain), enough for tests,
 * jitter and simulations, not for secrets.
 */
export function seededRandom(seed: number): Random {
  let state = seed >>> 0;
  return {
    u32() {
      state = (state + 0x6d2b79f5) >>> 0;
      let mixed = Math.imul(state ^ (state >>> 15), state | 1);
      mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
      return (mixed ^ (mixed >>> 14)) >>> 0;
    },
  };
}

/** A whole number in [0, below). */
export function randomBelow(random: Random, below: number): number {
  return Math.floor((random.u32() / 2 ** 32) * below);
}
