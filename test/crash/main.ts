/** `bun run test:crash`: an agent killed over and over, and what it answers afterwards. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { scriptOptions } from "../../scripts/lib/arguments.ts";
import { ensureFaultyExecutable } from "../../scripts/lib/executable.ts";
import { runCrash } from "./crash.ts";
import { printCommands, progressLines, report } from "./report.ts";

const HELP = `
Kills the compiled executable again and again, at random moments under load and at every named point
around its system calls and commits, and proves every byte it answers after each restart.

  bun run test:crash                              1,000 cycles
  bun run test:crash -- --cycles 50               as continuous integration does
  bun run test:crash -- --seed 7                  other moments
  bun run test:crash -- --point index.committed   at this point alone, again and again
  bun run test:crash -- --commands                pins, leases and other commands all the while,
                                                  and a wall clock that jumps by up to ten years
  bun run test:crash -- --dir /mnt/nvme           on this file system; else the temporary folder

The last line of the output is JSON. Exit codes: 0 all is well; 1 wrong bytes, a purged block that
came back, a persisted or pinned one that is gone, a hold that ended early or late or came back,
a command with two effects, a restart that failed or was slow; 2 wrong usage.
`;

const options = scriptOptions(HELP, {
  cycles: { type: "string", default: "1000" },
  seed: { type: "string", default: "1" },
  point: { type: "string" },
  commands: { type: "boolean", default: false },
  dir: { type: "string", default: tmpdir() },
  /** Nothing but the last line, which is JSON with and without it. */
  json: { type: "boolean" },
});

const [cycles, seed] = [Number(options.cycles), Number(options.seed)];
if (!Number.isSafeInteger(cycles) || cycles < 1 || !Number.isSafeInteger(seed)) {
  console.error("--cycles and --seed are whole numbers");
  process.exit(2);
}

/** On a machine that does nothing else. */
const RESTART_P99_MS_MAX = 400;
const executable = await ensureFaultyExecutable();
const folder = mkdtempSync(join(options.dir, "hearth-crash-"));
try {
  const point = options.point ?? null;
  const onProgress = progressLines("crash", cycles);
  const { commands } = options;
  const trial = await runCrash({ executable, folder, cycles, seed, point, commands, onProgress });
  if (!options.json) printCommands(trial.figures);
  process.exitCode = report(trial, cycles, RESTART_P99_MS_MAX);
} finally {
  rmSync(folder, { recursive: true, force: true });
}
