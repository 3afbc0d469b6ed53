import { describe, expect, test } from "bun:test";
import { ROOT } from "../../scripts/lib/paths.ts";
import { describeNative, describePython } from "../support/index.ts";
import { createMemoryLog } from "./memory-log.ts";
import { type SoakFigures, violationsOf } from "./soak.ts";

const CYCLES = 300;
const RUN_MS = 90_000;

const FIGURES: SoakFigures = {
  cycles: 10_000,
  killed: 6000,
  stopped: 1000,
  exited: 3000,
  wrong_bytes: 0,
  leaked_slots: 0,
  quarantined: 0,
  verified_blocks: 5000,
  agent_rss_start_mb: 80,
  agent_rss_end_mb: 81,
  drift_percent: 1.25,
  seconds: 30,
};

describePython("clients that die", () => {
  describeNative("at random points", () => {
    test(
      `${CYCLES} of them leave no wrong byte and no slot behind`,
      async () => {
        const words = [process.execPath, "test/lanes.ts", "clients", "--cycles", `${CYCLES}`];
        const child = Bun.spawn(words, { cwd: ROOT, stdout: "pipe", stderr: "pipe" });
        const [printed, complaints] = await Promise.all([
          new Response(child.stdout).text(),
          new Response(child.stderr).text(),
        ]);
        expect([await child.exited, complaints]).toEqual([0, expect.any(String)]);
        const figures = JSON.parse(printed.trim().split("\n").at(-1)!) as SoakFigures;
        expect(Object.keys(figures)).toEqual(Object.keys(FIGURES));
        expect(figures).toMatchObject({ wrong_bytes: 0, leaked_slots: 0, quarantined: 0 });
        expect(figures.cycles).toBe(CYCLES);
        expect(figures.killed + figures.stopped + figures.exited).toBe(CYCLES);
        for (const kind of ["killed", "stopped", "exited", "verified_blocks"] as const) {
          expect(figures[kind]).toBeGreaterThan(0);
        }
      },
      RUN_MS,
    );
  });
});

describe("a run is judged", () => {
  const judge = (figures: Partial<SoakFigures>, complaints: string[] = []) =>
    violationsOf({ figures: { ...FIGURES, ...figures }, complaints });

  test.each([
    ["wrong bytes", { wrong_bytes: 1 }],
    ["leaked slots", { leaked_slots: 2 }],
    ["slots stay quarantined", { quarantined: 3 }],
    ["no block was verified", { verified_blocks: 0 }],
    ["memory grew by 2 %", { drift_percent: 2 }],
  ])("by %s", (words, figures) => {
    expect(judge({})).toEqual([]);
    expect(judge(figures)).toEqual([expect.stringContaining(words)]);
  });

  test("by what clients and agent complained of; a short run not by its memory", () => {
    expect(judge({}, ["a client hangs"])).toEqual(["a client hangs"]);
    expect(judge({ cycles: 300, drift_percent: 20 })).toEqual([]);
  });

  test("memory that comes and goes is flat, memory that stays is not", () => {
    const driftOf = (bytesAt: (share: number) => number) => {
      const log = createMemoryLog(1000);
      for (let done = 0; done <= 1000; done++) log.note(done, bytesAt(done / 1000));
      return log.judge().driftPercent;
    };
    const breath = (share: number) => 80 + 4 * Math.sin(400 * share);
    expect(Math.abs(driftOf(breath))).toBeLessThan(0.2);
    expect(driftOf((share) => breath(share) + 3 * share)).toBeGreaterThan(2.5);
  });
});
