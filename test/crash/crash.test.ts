import { expect, test } from "bun:test";
import { ensureFaultyExecutable } from "../../scripts/lib/executable.ts";
import { describeNative, withTempDir } from "../support/index.ts";
import { runCrash } from "./crash.ts";
import { violationsOf } from "./report.ts";
import type { Trial } from "./trial.ts";

/** `bun run test` asks for more. */
const CYCLES = Number(process.env.HEARTH_CRASH_CYCLES ?? 6);
const TIMEOUT_MS = 30_000 + CYCLES * 3_000;

/** A cycle with commands is longer: it waits for holds to end. */
const COMMAND_CYCLES = Math.max(6, Math.ceil(CYCLES / 5));

async function crashed(cycles: number, commands: boolean): Promise<Trial> {
  const executable = await ensureFaultyExecutable();
  // Other points for other sources, the same for the same.
  const seed = Bun.hash.crc32(await Bun.file(executable).bytes());
  const onProgress = () => undefined;
  const own = { executable, cycles, seed, point: null, commands, onProgress };
  const trial = await withTempDir((folder) => runCrash({ ...own, folder }));
  // How long a restart takes is for a machine that does nothing else to say.
  expect(violationsOf(trial, Number.POSITIVE_INFINITY)).toEqual([]);
  expect(trial.figures.restarts).toBeGreaterThan(0);
  expect(trial.figures.commits).toBeGreaterThan(0);
  return trial;
}

describeNative("an agent that is killed", () => {
  test(
    `serves what was committed and nothing else (${CYCLES} times)`,
    async () => {
      await crashed(CYCLES, false);
    },
    TIMEOUT_MS,
  );

  test(
    `keeps what it was told to keep, as long as it was told (${COMMAND_CYCLES} times)`,
    async () => {
      const { commands } = (await crashed(COMMAND_CYCLES, true)).figures;
      expect(commands?.audits).toBeGreaterThan(0);
      expect(commands?.double_effects).toBe(0);
    },
    30_000 + COMMAND_CYCLES * 6_000,
  );
});
