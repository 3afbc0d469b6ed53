import { expect, test } from "bun:test";
import { describeNative, describeNats, hearthExecutable, withTempDir } from "../support/index.ts";
import { CARRIERS } from "./chaos.ts";
import { runTrial } from "./trial.ts";

const KILLS = 3;
const TIMEOUT_MS = 240_000;

describeNative("an agent whose broker is killed", () => {
  describeNats("an agent whose broker is killed", () => {
    test(
      `carries out each command once (${KILLS} times)`,
      async () => {
        const executable = await hearthExecutable();
        // Other moments for other sources, the same for the same.
        const seed = Bun.hash.crc32(await Bun.file(executable).bytes());
        const carrier = CARRIERS[seed % CARRIERS.length]!;
        const { figures, violations } = await withTempDir((folder) =>
          runTrial({
            ...{ executable, folder, kills: KILLS, seed, carrier, calmMs: 2_000 },
            ...{ streamCommands: 60, thorough: false, onProgress: () => undefined },
          }),
        );
        expect(violations).toEqual([]);
        expect(figures).toMatchObject({ kills: KILLS, double_effects: 0, lost: 0 });
        expect(figures.poison_answered).toBeGreaterThan(0);
        expect(figures.stream).toMatchObject({ stream_commands: 60, stream_replies: 20 });
      },
      TIMEOUT_MS,
    );
  });
});
