import { readdirSync, readFileSync, statSync } from "node:fs";
import { type Clock, LONG_TURN_MS, loopTurns, type TurnBudget } from "../core/index.ts";
import type { Health } from "./health.ts";

/** A timer that is late says so within this time; 100 timers a second cost 0.1 % of a core. */
const PROBE_MS = 10;
/** How late a timer may be whose loop does nothing. */
const TIMER_MS = 1;
const BUCKET_MS = 250;
const BUCKETS = 60;

/** Watches how long the event loop was busy with one thing. */
export interface LoopLag extends Disposable {
  /** The longest delay of a timer in the last 15 s, in seconds. */
  longestSeconds(): number;
  /**
   * The longest turn of the loop in the last 15 s, in seconds: from the first input that the turn
   * handles to the next turn, or the delay of a timer where that is more, as of work that no source
   * announced. Includes time in which the process waited for a processor.
   */
  longestTurnSeconds(): number;
  /** Turns longer than 5 ms since the start. */
  readonly longTurns: number;
}

export function watchLoopLag(clock: Clock, turns: TurnBudget = loopTurns): LoopLag {
  const lateMs = new Float64Array(BUCKETS);
  const turnMs = new Float64Array(BUCKETS);
  const longTurnsBefore = turns.stats.longTurns;
  /** Delays longer than 5 ms in which no turn was. */
  let longDelays = 0;
  let longTurnsSeen = longTurnsBefore;
  let at = 0;
  let nowMs = clock.monotonicMs();
  let bucketMs = nowMs;
  let expectedMs = nowMs + PROBE_MS;
  const listening = turns.onTurn((ms) => {
    turnMs[at] = Math.max(turnMs[at]!, ms);
  });
  const timer = clock.every(PROBE_MS, () => {
    // The turn is measured from here on, whatever else it does.
    turns.touch();
    nowMs = clock.monotonicMs();
    for (; nowMs - bucketMs >= BUCKET_MS; bucketMs += BUCKET_MS) {
      at = (at + 1) % BUCKETS;
      lateMs[at] = 0;
      turnMs[at] = 0;
      if (nowMs - bucketMs >= BUCKET_MS * BUCKETS) bucketMs = nowMs - BUCKET_MS * BUCKETS;
    }
    const delayMs = nowMs - expectedMs;
    lateMs[at] = Math.max(lateMs[at]!, delayMs);
    turnMs[at] = Math.max(turnMs[at]!, delayMs - TIMER_MS);
    const { longTurns } = turns.stats;
    if (delayMs - TIMER_MS > LONG_TURN_MS && longTurns === longTurnsSeen) longDelays++;
    longTurnsSeen = longTurns;
    expectedMs = nowMs + PROBE_MS;
  });
  const longest = (buckets: Float64Array, sinceMs: number) =>
    buckets.reduce((most, ms) => Math.max(most, ms), Math.max(0, sinceMs)) / 1_000;
  return {
    // What is going on now counts too: a scrape may be the first thing to run after a long wait.
    longestSeconds: () => longest(lateMs, clock.monotonicMs() - expectedMs),
    longestTurnSeconds: () => longest(turnMs, 0),
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
/** How long the condition stays after descriptors last ran short. */
const RAISED_MS = 30_000;
/** A process is short of descriptors when fewer than this part of its limit is free. */
const FREE_SHARE = 1 / 16;
const FREE_MIN = 16;

/** File descriptors of this process. */
export interface DescriptorUse {
  readonly open: number;
  /** RLIMIT_NOFILE, the soft one. */
  readonly limit: number;
  /** Whether accepting connections or opening files is about to fail. */
  readonly isShort: boolean;
}

/** Whether a connection that failed just now may have failed for want of a descriptor. */
export function isShortOfDescriptors(): boolean {
  return descriptorUse()?.isShort ?? false;
}

/** Null where the kernel shows none of it (a container without /proc). */
export function descriptorUse(): DescriptorUse | null {
  const open = openDescriptors();
  const limit = LIMIT;
  if (open === null || limit === null) return null;
  const free = Math.max(FREE_MIN, Math.floor(limit * FREE_SHARE));
  return { open, limit, isShort: open > limit - free };
}

/** Linux 6.2 has the number as the size of the folder; before that the entries are counted. */
function openDescriptors(): number | null {
  try {
    const { size } = statSync(FOLDER);
    return size > 0 ? size : readdirSync(FOLDER).length;
  } catch (thrown) {
    // Reading the folder takes a descriptor, too.
    return (thrown as NodeJS.ErrnoException).code === "EMFILE" ? LIMIT : null;
  }
}

/** Read at the start, since it takes a descriptor; nothing here changes it. */
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

/** Raises FD_LIMIT for a while. */
export function raiseDescriptorLimit(
  health: Pick<Health, "raise">,
  now: DescriptorUse | null = descriptorUse(),
): void {
  const details =
    now === null ? "no descriptor is free" : `${now.open} of ${now.limit} descriptors are open`;
  health.raise("FD_LIMIT", details, { forMs: RAISED_MS });
}
