import { expect, test } from "bun:test";
import { ensureFaultyExecutable } from "../../scripts/lib/executable.ts";
import { describeNative, withTempDir } from "../support/index.ts";
import { runCrash } from "./crash.ts";
import { violationsOf } from "./report.ts";

/** `bun run test` asks for more. */
const CYCLES = Number(process.env.HEARTH_CRASH_CYCLES ?? 6);
const TIMEOUT_MS = 30_000 + CYCLES * 3_000;

describeNative("an agent that is killed", () => {
  test(
    `serves what was committed and nothing else (${CYCLES} times)`,
    async () => {
      const executable = await ensureFaultyExecutable();
      // Other points for other sources, the same for the same.
      const seed = Bun.hash.crc32(await Bun.file(executable).bytes());
      const onProgress = () => undefined;
      const own = { executable, cycles: CYCLES, seed, point: null, onProgress };
      const trial = await withTempDir((folder) => runCrash({ ...own, folder }));
      // How long a restart takes is for a machine that does nothing else to say.
      expect(violationsOf(trial, Number.POSITIVE_INFINITY)).toEqual([]);
      expect(trial.figures.restarts).toBeGreaterThan(0);
      expect(trial.figures.commits).toBeGreaterThan(0);
    },
    TIMEOUT_MS,
  );
});
