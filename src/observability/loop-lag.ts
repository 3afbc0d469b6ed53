import { type Clock, LONG_TURN_MS, loopTurns, type TurnBudget } from "../core/index.ts";

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
