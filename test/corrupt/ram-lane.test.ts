import { expect, test } from "bun:test";
import { describeNative, withTempDir } from "../support/index.ts";
import { isClean, runRamLane } from "./ram-lane.ts";

const COUNT = 60;

describeNative("bits flipped in the arena of a live agent", () => {
  test("lead to one miss at most, then to a good block, and never blame the drive", async () => {
    await withTempDir(async (dir) => {
      const options = { count: COUNT, seed: 3, dir, onProgress: () => undefined };
      const report = await runRamLane(options);
      expect(report).toMatchObject({ flipped: COUNT, wrong: 0, driveBlamed: 0, failures: [] });
      expect(report.missed).toBeGreaterThan(0);
      expect(isClean(report)).toBe(true);
    });
  });
});
