import { describe, expect, test } from "bun:test";
import { existsSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { ManualClock } from "./manual-clock.ts";
import { withTempDir } from "./temp-dir.ts";
import { waitFor } from "./wait.ts";

describe("ManualClock", () => {
  test("fires timers in the order in which they are due, at their own time", () => {
    const clock = new ManualClock();
    const fired: string[] = [];
    clock.after(30, () => fired.push(`late ${clock.monotonicMs()}`));
    clock.after(10, () => fired.push(`soon ${clock.monotonicMs()}`));
    clock.after(10, () => fired.push(`same ${clock.monotonicMs()}`));
    clock.advance(9);
    expect(fired).toEqual([]);
    clock.advance(21);
    expect(fired).toEqual(["soon 10", "same 10", "late 30"]);
    expect(clock.pending).toBe(0);
  });

  test("repeats until disposed, also from inside its own callback", () => {
    const clock = new ManualClock();
    let runs = 0;
    const timer = clock.every(100, () => {
      runs++;
      if (runs === 3) timer[Symbol.dispose]();
    });
    clock.advance(10_000);
    expect(runs).toBe(3);
  });

  test("a timer set by a timer fires in the same advance when it is due", () => {
    const clock = new ManualClock();
    let at = -1;
    clock.after(5, () => {
      clock.after(5, () => {
        at = clock.monotonicMs();
      });
    });
    clock.advance(10);
    expect(at).toBe(10);
  });

  test("a jump of the wall clock moves no duration", () => {
    const clock = new ManualClock(1_000);
    clock.jumpWall(3_600_000);
    expect(clock.wallMs()).toBe(3_601_000);
    expect(clock.monotonicMs()).toBe(0);
  });
});

describe("withTempDir", () => {
  test("removes the folder, also when the body throws", async () => {
    let seen = "";
    const failing = withTempDir((path) => {
      seen = path;
      writeFileSync(join(path, "file"), "x");
      throw new Error("from the body");
    });
    expect(failing).rejects.toThrow("from the body");
    await failing.catch(() => undefined);
    expect(existsSync(seen)).toBe(false);
  });
});

describe("waitFor", () => {
  test("gives back the first value that holds", async () => {
    let asked = 0;
    expect(await waitFor(() => (++asked > 3 ? asked : null))).toBe(4);
  });

  test("waitFor names its condition and keeps the last error", async () => {
    const waited = waitFor(() => JSON.parse("{"), 20, "the file", 0);
    const thrown = await waited.catch((error) => error);
    expect(thrown.message).toBe("the file did not hold within 20 ms");
    expect(thrown.cause).toBeInstanceOf(SyntaxError);
  });
});
