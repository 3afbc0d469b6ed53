import { readFileSync } from "node:fs";
import { uptime } from "node:os";
import { HearthError } from "./errors.ts";

/**
 * Source of time, passed as a parameter so that tests and simulations run the same code as
 * production. Durations are measured only on the monotonic clock, so that a jump of the wall clock
 * never makes anything expire.
 */
export interface Clock {
  /** Milliseconds since an arbitrary start. Never decreases. May be fractional. */
  monotonicMs(): number;
  /**
   * Milliseconds since 1970 by the wall clock. Use it only in output and files, not to measure
   * durations.
   */
  wallMs(): number;
  /**
   * Milliseconds since the machine booted, including sleep and times at which this process did not
   * run. For durations across restarts of the process. Two values are comparable only if `bootId`
   * is the same. Resolution: 10 ms.
   */
  bootMs(): number;
  /** Identifies the current boot of the machine. Empty if the system does not report it. */
  readonly bootId: string;
  /** Calls `run` once after `ms`, unless the returned object is disposed before. */
  after(ms: number, run: () => void): Disposable;
  /**
   * Calls `run` about every `ms` until the returned object is disposed. A late call does not delay
   * later calls, and missed calls are not made up for.
   */
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

/** Waits for `ms`. Rejects with ABORTED when the signal fires. */
export function sleep(clock: Clock, ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const aborted = () => new HearthError("ABORTED", "the wait was aborted");
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

/**
 * Resolves in the next turn of the event loop, so that all other ready work runs first. Long loops
 * call it between slices.
 */
export function yieldToLoop(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

/**
 * Ms between two readings of the boot time. Repeated readings are necessary because the monotonic
 * clock stops while the machine sleeps.
 */
const BOOT_READ_MS = 100;

/**
 * A reading that takes more ms than this is imprecise and is repeated, at most BOOT_READS_MAX
 * times.
 */
const BOOT_READ_LONG_MS = 2;
const BOOT_READS_MAX = 5;

/**
 * Returns a function that returns the milliseconds since boot, which never decrease. Between two
 * readings by `readMs`, the value advances with the monotonic clock.
 */
export function createBootClock(monotonicMs: () => number, readMs: () => number): () => number {
  let [readAtMs, offsetMs, lastMs] = [Number.NEGATIVE_INFINITY, 0, 0];
  /**
   * Reads boot time and monotonic time together. The process may be preempted between the two
   * readings, so the fastest attempt is used.
   */
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

/**
 * Reads the time since boot with a resolution of 10 ms. The system call for uptime would round to
 * seconds.
 */
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

/** Source of random numbers, passed as a parameter. */
export interface Random {
  /** Returns an integer in [0, 2^32). */
  u32(): number;
}

export const systemRandom: Random = {
  u32() {
    const word = new Uint32Array(1);
    crypto.getRandomValues(word);
    return word[0];
  },
};

/**
 * Creates a deterministic generator: mulberry32 (Tommy Ettinger, public domain). For tests, jitter
 * and simulations, not for secrets.
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

/** Returns an integer in [0, below). */
export function randomBelow(random: Random, below: number): number {
  return Math.floor((random.u32() / 2 ** 32) * below);
}
