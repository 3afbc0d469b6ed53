import { tmpdir } from "node:os";
import { ensureFaultyExecutable } from "../../scripts/lib/executable.ts";
import { defineLane, flag, text, whole } from "../support/lane.ts";
import { runCrash } from "./crash.ts";
import { commandTable, progressLines, violationsOf } from "./report.ts";

/** On a machine that does nothing else. */
const RESTART_P99_MS_MAX = 400;

export const lane = defineLane({
  help: `
Kills the compiled executable again and again, at random moments under load and at every named point
around its system calls and commits, and verifies every byte that it serves after each restart.

  ./dev test:crash                           1,000 cycles
  ./dev test:crash --cycles 50               as continuous integration does
  ./dev test:crash --seed 7                  other moments
  ./dev test:crash --point index.committed   at this point alone, again and again
  ./dev test:crash --commands                with pins, leases and other commands, and a wall clock
                                             that jumps by up to ten years
  ./dev test:crash --dir /mnt/nvme           on this file system; default: the temporary folder

The last line of the output is JSON. Exit codes: 0 all is well; 1 wrong bytes, a purged block that
came back, a persisted or pinned one that is gone, a pin that ended early or late or came back,
a command with two effects, a restart that failed or was slow; 2 wrong usage.
`,
  endsWithJson: true,
  options: {
    cycles: whole(1, 1_000),
    seed: whole(0, 1),
    point: text(),
    commands: flag(),
    dir: text(tmpdir()),
  },
  async run({ cycles, seed, point, commands, dir }, host) {
    const executable = await ensureFaultyExecutable();
    const onProgress = progressLines("crash", cycles);
    const folder = host.folder(dir);
    const trial = await runCrash({ executable, folder, cycles, seed, point, commands, onProgress });
    const table = commandTable(trial.figures);
    return {
      violations: violationsOf(trial, RESTART_P99_MS_MAX),
      json: { cycles, ...trial.figures },
      ...(table === null ? {} : { text: table }),
    };
  },
});
