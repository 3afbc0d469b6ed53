import { describe, expect, test } from "bun:test";
import { createBootClock, sleep, systemClock } from "../../src/core/index.ts";

describe("the boot clock", () => {
  test("the boot clock resolves fractions of a second", async () => {
    const offs: number[] = [];
    for (let i = 0; i < 12; i++) {
      const [startMs, startBootMs] = [systemClock.monotonicMs(), systemClock.bootMs()];
      await sleep(systemClock, 110);
      const wentMs = systemClock.monotonicMs() - startMs;
      offs.push(Math.abs(systemClock.bootMs() - startBootMs - wentMs));
    }
    // Each reading is true to 10 ms, and between two of them this process may have to wait.
    expect(offs.sort((a, b) => a - b)[6]).toBeLessThan(25);
  });

  test("the boot clock is right if the process waits between two readings", () => {
    let [nowMs, waits] = [0, 1];
    const bootMs = createBootClock(
      () => nowMs,
      () => {
        if (waits-- > 0) nowMs += 800;
        return 5_000 + nowMs;
      },
    );
    expect(bootMs()).toBe(5_000 + nowMs);
    nowMs += 150;
    waits = 1;
    expect(bootMs()).toBe(5_000 + nowMs);
    expect(nowMs).toBe(1_750);
  });

  test("the boot clock advances while the machine sleeps, and never goes back", () => {
    let [awakeMs, sleptMs, reads] = [0, 0, 0];
    const bootMs = createBootClock(
      () => awakeMs,
      () => {
        reads++;
        return Math.floor((5_000 + awakeMs + sleptMs) / 10) * 10;
      },
    );
    const seen = [bootMs()];
    for (let i = 0; i < 400; i++) {
      awakeMs += 7.3;
      if (i === 200) sleptMs = 3_600_000;
      seen.push(bootMs());
    }
    expect(seen).toEqual([...seen].sort((a, b) => a - b));
    expect(Math.abs(seen.at(-1)! - (5_000 + awakeMs + sleptMs))).toBeLessThanOrEqual(10);
    expect(reads).toBeLessThan(40);
  });
});
