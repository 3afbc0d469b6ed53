import { readdirSync, readFileSync, statSync } from "node:fs";
import { type Clock, LONG_TURN_MS, loopTurns, type TurnBudget } from "../core/index.ts";
import type { Health } from "./health.ts";

/** Interval of the probe timer; 100 timers a second cost 0.1 % of a core. */
const PROBE_MS = 10;
/** Lateness of a timer in an idle event loop. */
const TIMER_MS = 1;
const BUCKET_MS = 250;
const BUCKETS = 60;

/** Measures how long the event loop is blocked. */
export interface LoopLag extends Disposable {
  /** The longest timer delay of the last 15 s, in seconds. */
  longestSeconds(): number;
  /**
   * The longest turn of the event loop in the last 15 s, in seconds: from the first input that the
   * turn handles to the next turn, or a longer timer delay, which covers work that no source
   * announced. Includes time in which the process waited for a processor.
   */
  longestTurnSeconds(): number;
  /** The most processor time of the loop's thread in one turn of the last 15 s, in seconds. */
  longestTurnCpuSeconds(): number;
  /** Turns since the start in which the thread used more than 5 ms of processor time. */
  readonly longTurns: number;
}

export function watchLoopLag(clock: Clock, turns: TurnBudget = loopTurns): LoopLag {
  const lateMs = new Float64Array(BUCKETS);
  const turnMs = new Float64Array(BUCKETS);
  const turnCpuMs = new Float64Array(BUCKETS);
  const longTurnsBefore = turns.stats.longTurns;
  /** Timer delays that are due to work of more than 5 ms which no source announced. */
  let longDelays = 0;
  let announcedMs = turns.stats.cpuMs;
  let usedMs = turns.cpuNowMs;
  let at = 0;
  let nowMs = clock.monotonicMs();
  let bucketMs = nowMs;
  let expectedMs = nowMs + PROBE_MS;
  const listening = turns.onTurn((ms, cpuMs) => {
    turnMs[at] = Math.max(turnMs[at]!, ms);
    turnCpuMs[at] = Math.max(turnCpuMs[at]!, cpuMs);
  });
  const timer = clock.every(PROBE_MS, () => {
    // Starts the measurement of the turn, whatever else the turn does.
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
    lateMs[at] = Math.max(lateMs[at]!, delayMs);
    turnMs[at] = Math.max(turnMs[at]!, delayMs - TIMER_MS);
    // Processor time between two probes in which no turn was open.
    const [announced, used] = [turns.stats.cpuMs, turns.cpuNowMs];
    const otherMs = Math.min(delayMs - TIMER_MS, used - usedMs - (announced - announcedMs));
    [announcedMs, usedMs] = [announced, used];
    turnCpuMs[at] = Math.max(turnCpuMs[at]!, otherMs);
    if (otherMs > LONG_TURN_MS) longDelays++;
    expectedMs = nowMs + PROBE_MS;
  });
  const longest = (buckets: Float64Array, sinceMs: number) =>
    buckets.reduce((most, ms) => Math.max(most, ms), Math.max(0, sinceMs)) / 1_000;
  return {
    // Includes the delay in progress: a scrape may be the first task after a long block.
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
/** How long the problem stays raised after the last shortage. */
const RAISED_MS = 30_000;
/** A process is short of descriptors if fewer than this share of its limit is free. */
const FREE_SHARE = 1 / 16;
const FREE_MIN = 16;

/** File descriptors of this process. */
export interface DescriptorUse {
  readonly open: number;
  /** The soft limit RLIMIT_NOFILE. */
  readonly limit: number;
  /** Whether accepting connections or opening files is about to fail. */
  readonly isShort: boolean;
}

/** Whether a lack of descriptors may have caused the failure of a connection. */
export function isShortOfDescriptors(): boolean {
  return descriptorUse()?.isShort ?? false;
}

/** Null if the kernel does not show the figures, as in a container without /proc. */
export function descriptorUse(): DescriptorUse | null {
  const open = openDescriptors();
  const limit = LIMIT;
  if (open === null || limit === null) return null;
  const free = Math.max(FREE_MIN, Math.floor(limit * FREE_SHARE));
  return { open, limit, isShort: open > limit - free };
}

/** Since Linux 6.2 the size of the directory is the number; before, the entries are counted. */
function openDescriptors(): number | null {
  try {
    const { size } = statSync(FOLDER);
    return size > 0 ? size : readdirSync(FOLDER).length;
  } catch (thrown) {
    // Reading the directory needs a descriptor, too.
    return (thrown as NodeJS.ErrnoException).code === "EMFILE" ? LIMIT : null;
  }
}

/** Read at the start, because reading needs a descriptor; the agent never changes the limit. */
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

/** Raises FD_LIMIT while the process is short of descriptors. */
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

/** Raises FD_LIMIT for a limited time. */
export function raiseDescriptorLimit(
  health: Pick<Health, "raise">,
  now: DescriptorUse | null = descriptorUse(),
): void {
  const details =
    now === null ? "no descriptor is free" : `${now.open} of ${now.limit} descriptors are open`;
  health.raise("FD_LIMIT", details, { forMs: RAISED_MS });
}
