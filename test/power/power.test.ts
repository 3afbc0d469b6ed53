import { expect, test } from "bun:test";
import { ensureFaultyExecutable } from "../../scripts/lib/executable.ts";
import { findPython } from "../../scripts/lib/python.ts";
import { violationsOf } from "../crash/report.ts";
import { describeNative, noteSkip, withTempDir } from "../support/index.ts";
import { LoopDisk, whyNoPowerLoss } from "./loop-disk.ts";
import { runPower } from "./power.ts";

const CYCLES = 4;
const TIMEOUT_MS = 60_000;

const python = findPython();
const why = python.kind === "ready" ? await whyNoPowerLoss(python.path) : python.why;
const mayRun = python.kind === "ready" && why === null;
if (!mayRun) noteSkip("loss of power", `${why}`);

describeNative("an agent whose power goes", () => {
  test.skipIf(!mayRun && process.env.REQUIRE_POWER !== "1")(
    "has what was persisted, and not what was purged",
    async () => {
      if (python.kind !== "ready" || why !== null) throw new Error(`${why}`);
      const executable = await ensureFaultyExecutable();
      using disk = new LoopDisk(python.path);
      const onProgress = () => undefined;
      const trial = await withTempDir((folder) =>
        runPower({ executable, folder, disk, cycles: CYCLES, seed: 1, onProgress }),
      );
      expect(violationsOf(trial, Number.POSITIVE_INFINITY)).toEqual([]);
      expect(trial.figures.restarts).toBeGreaterThan(0);
      expect(trial.figures.commits).toBeGreaterThan(0);
    },
    TIMEOUT_MS,
  );
});
