/** `bun run test:crash`: an agent killed over and over, and what it answers afterwards. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { scriptOptions } from "../../scripts/lib/arguments.ts";
import { ensureFaultyExecutable } from "../../scripts/lib/executable.ts";
import { CrashRun } from "./crash.ts";
import { violationsOf } from "./violations.ts";

const HELP = `
Kills the compiled executable again and again, at random moments under load and at every named point
around its system calls and commits, and proves every byte it answers after each restart.

  bun run test:crash                              1,000 cycles
  bun run test:crash -- --cycles 50               as continuous integration does
  bun run test:crash -- --seed 7                  other moments
  bun run test:crash -- --point index.committed   at this point alone, again and again
  bun run test:crash -- --dir /mnt/nvme           on this file system; else the temporary folder
  bun run test:crash -- --json                    the last line is JSON

Exit codes: 0 all is well; 1 wrong bytes, a purged block that came back, a persisted one that is
gone, a restart that failed or was slow; 2 wrong usage.
`;

const options = scriptOptions(HELP, {
  cycles: { type: "string", default: "1000" },
  seed: { type: "string", default: "1" },
  point: { type: "string" },
  dir: { type: "string", default: tmpdir() },
  json: { type: "boolean", default: false },
});

const [cycles, seed] = [Number(options.cycles), Number(options.seed)];
if (!Number.isSafeInteger(cycles) || cycles < 1 || !Number.isSafeInteger(seed)) {
  console.error("--cycles and --seed are whole numbers");
  process.exit(2);
}

const executable = await ensureFaultyExecutable();
const folder = mkdtempSync(join(options.dir, "hearth-crash-"));
try {
  const run = new CrashRun({
    executable,
    folder,
    cycles,
    seed,
    point: options.point ?? null,
    onProgress(done, { seconds, restart_p99_ms }) {
      const isTimely = process.stderr.isTTY || done % 50 === 0;
      const text = `crash: ${done} of ${cycles} in ${seconds} s, p99 ${restart_p99_ms} ms`;
      if (isTimely) process.stderr.write(process.stderr.isTTY ? `\r${text} ` : `${text}\n`);
    },
  });
  const report = await run.run();
  if (process.stderr.isTTY) process.stderr.write("\n");
  const violations = violationsOf(report);
  for (const violation of violations) console.error(`violation: ${violation}`);
  console.log(JSON.stringify(report.figures, null, options.json ? 0 : 2));
  process.exitCode = violations.length === 0 ? 0 : 1;
} finally {
  rmSync(folder, { recursive: true, force: true });
}
