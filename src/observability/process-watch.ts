import { readdirSync, readFileSync, statSync } from "node:fs";
import { type Clock, LONG_TURN_MS, loopTurns, type TurnBudget } from "../core/index.ts";
import type { Health } from "./health.ts";

/** Interval of the probe timer in ms. 100 timer calls per second use 0.1 % of a core. */
const PROBE_MS = 10;
/** Ms by which a timer is late even if the event loop is idle. */
const TIMER_MS = 1;
const BUCKET_MS = 250;
const BUCKETS = 60;

/** Measures how long the event loop is blocked. */
export interface LoopLag extends Disposable {
  /** Returns the longest delay of a timer in the last 15 s, in seconds. */
  longestSeconds(): number;
  /**
   * Returns the longest turn of the event loop in the last 15 s, in seconds. A turn lasts from the
   * first input that it handles to the next turn. Returns the longest timer delay instead if that
   * is longer, which covers work that no source announced. Includes time in which the process
   * waited for a processor.
   */
  longestTurnSeconds(): number;
  /**
   * Returns the most processor time that the event loop's thread used in one turn of the last 15 s,
   * in seconds.
   */
  longestTurnCpuSeconds(): number;
  /** Number of turns since the start in which the thread used more than 5 ms of processor time. */
  readonly longTurns: number;
}

export function watchLoopLag(clock: Clock, turns: TurnBudget = loopTurns): LoopLag {
  const lateMs = new Float64Array(BUCKETS);
  const turnMs = new Float64Array(BUCKETS);
  const turnCpuMs = new Float64Array(BUCKETS);
  const longTurnsBefore = turns.stats.longTurns;
  /** Number of timer delays caused by more than 5 ms of work that no source announced. */
  let longDelays = 0;
  let announcedMs = turns.stats.cpuMs;
  let usedMs = turns.cpuNowMs;
  let at = 0;
  let nowMs = clock.monotonicMs();
  let bucketMs = nowMs;
  let expectedMs = nowMs + PROBE_MS;
  const listening = turns.onTurn((ms, cpuMs) => {
    turnMs[at] = Math.max(turnMs[at], ms);
    turnCpuMs[at] = Math.max(turnCpuMs[at], cpuMs);
  });
  const timer = clock.every(PROBE_MS, () => {
    // Starts the measurement of this turn even if no source announces work.
    turns.touch();
    nowMs = clock.monotonicMs();
    for (; nowMs - bucketMs >= BUCKET_MS; bucketMs += BUCKET_MS) {
      at = (at + 1) % BUCKETS;
      lateMs[at] = 0;
      turnMs[at] = 0;
      turnCpuMs[at] = 0;
      if (nowMs - bucketMs >= BUCKET_MS * BUCKETS) bucketMs = nowMs - BUCKET_MS * BUCKETS;
    }
    const delayMs = nowMs - expectedMs;
    lateMs[at] = Math.max(lateMs[at], delayMs);
    turnMs[at] = Math.max(turnMs[at], delayMs - TIMER_MS);
    // Since the last probe, the two have grown by different amounts. The difference is the
    // processor time used outside of measured turns.
    const [announced, used] = [turns.stats.cpuMs, turns.cpuNowMs];
    const otherMs = Math.min(delayMs - TIMER_MS, used - usedMs - (announced - announcedMs));
    [announcedMs, usedMs] = [announced, used];
    turnCpuMs[at] = Math.max(turnCpuMs[at], otherMs);
    if (otherMs > LONG_TURN_MS) longDelays++;
    expectedMs = nowMs + PROBE_MS;
  });
  const longest = (buckets: Float64Array, sinceMs: number) =>
    buckets.reduce((most, ms) => Math.max(most, ms), Math.max(0, sinceMs)) / 1_000;
  return {
    // Includes the current delay, because a scrape may be the first task after the event loop was
    // blocked.
    longestSeconds: () => longest(lateMs, clock.monotonicMs() - expectedMs),
    longestTurnSeconds: () => longest(turnMs, 0),
    longestTurnCpuSeconds: () => longest(turnCpuMs, 0),
    get longTurns() {
      return turns.stats.longTurns - longTurnsBefore + longDelays;
    },
    [Symbol.dispose]: () => {
      timer[Symbol.dispose]();
      listening[Symbol.dispose]();
    },
  };
}

const FOLDER = "/proc/self/fd";
const LOOK_MS = 1_000;
/** Ms for which the problem stays current after the last shortage. */
const RAISED_MS = 30_000;
/** A process is short of file descriptors if less than this fraction of its limit is free. */
const FREE_SHARE = 1 / 16;
const FREE_MIN = 16;

/** Use of file descriptors by this process. */
export interface DescriptorUse {
  readonly open: number;
  /** Maximum open file descriptors: the soft limit RLIMIT_NOFILE. */
  readonly limit: number;
  /** True if accepting connections or opening files is likely to fail soon. */
  readonly isShort: boolean;
}

/** Returns true if a shortage of file descriptors may have caused the failure of a connection. */
export function isShortOfDescriptors(): boolean {
  return descriptorUse()?.isShort ?? false;
}

/**
 * Returns the use of file descriptors. Null if the kernel does not report it, as in a container
 * without /proc.
 */
export function descriptorUse(): DescriptorUse | null {
  const open = openDescriptors();
  const limit = LIMIT;
  if (open === null || limit === null) return null;
  const free = Math.max(FREE_MIN, Math.floor(limit * FREE_SHARE));
  return { open, limit, isShort: open > limit - free };
}

/**
 * Returns the number of open file descriptors. Since Linux 6.2, the size of the /proc directory is
 * that number; before, its entries are counted.
 */
function openDescriptors(): number | null {
  try {
    const { size } = statSync(FOLDER);
    return size > 0 ? size : readdirSync(FOLDER).length;
  } catch (thrown) {
    // Reading the directory also needs a descriptor, so EMFILE means that all are in use.
    return (thrown as NodeJS.ErrnoException).code === "EMFILE" ? LIMIT : null;
  }
}

/**
 * Limit on file descriptors. Read at the start, because reading it needs a descriptor; the agent
 * never changes it.
 */
const LIMIT = descriptorLimit();

function descriptorLimit(): number | null {
  try {
    const limits = readFileSync("/proc/self/limits", "utf8");
    const soft = /^Max open files\s+(\d+)/m.exec(limits)?.[1];
    return soft === undefined ? null : Number(soft);
  } catch {
    return null;
  }
}

/** Raises the health problem FD_LIMIT while the process is short of file descriptors. */
export function watchDescriptors(
  clock: Clock,
  health: Pick<Health, "raise">,
  use: typeof descriptorUse = descriptorUse,
): Disposable {
  return clock.every(LOOK_MS, () => {
    const now = use();
    if (now?.isShort === true) raiseDescriptorLimit(health, now);
  });
}

/** Raises the health problem FD_LIMIT for a limited time. */
export function raiseDescriptorLimit(
  health: Pick<Health, "raise">,
  now: DescriptorUse | null = descriptorUse(),
): void {
  const details =
    now === null ? "no descriptor is free" : `${now.open} of ${now.limit} descriptors are open`;
  health.raise("FD_LIMIT", details, { forMs: RAISED_MS });
}
