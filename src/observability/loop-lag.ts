import type { Clock } from "../core/index.ts";

const SAMPLE_MS = 250;
const SAMPLES = 60;

/** Watches how late timers fire, which is how long the event loop was busy with one thing. */
export interface LoopLag extends Disposable {
  /** The longest delay of the last 15 s, in seconds. */
  longestSeconds(): number;
}

export function watchLoopLag(clock: Clock): LoopLag {
  const lateMs = new Float64Array(SAMPLES);
  let at = 0;
  let expectedMs = clock.monotonicMs() + SAMPLE_MS;
  const timer = clock.every(SAMPLE_MS, () => {
    const nowMs = clock.monotonicMs();
    lateMs[at] = Math.max(0, nowMs - expectedMs);
    at = (at + 1) % SAMPLES;
    expectedMs = nowMs + SAMPLE_MS;
  });
  return {
    longestSeconds() {
      // What is going on now counts too: a scrape may be the first thing to run after a long wait.
      const nowLateMs = Math.max(0, clock.monotonicMs() - expectedMs);
      return lateMs.reduce((longest, ms) => Math.max(longest, ms), nowLateMs) / 1_000;
    },
    [Symbol.dispose]: () => timer[Symbol.dispose](),
  };
}
