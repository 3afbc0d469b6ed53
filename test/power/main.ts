/** `bun run test:power`: the power goes under load, and what is there when it is back. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { scriptOptions } from "../../scripts/lib/arguments.ts";
import { ensureFaultyExecutable } from "../../scripts/lib/executable.ts";
import { findPython } from "../../scripts/lib/python.ts";
import { progressLines, report } from "../crash/report.ts";
import { LoopDisk, whyNoPowerLoss } from "./loop-disk.ts";
import { runPower } from "./power.ts";

const HELP = `
Has an agent keep its blocks and its index on an ext4 file system in a file, shuts that down under
load without flushing its journal, kills the agent, mounts it again and proves what is answered: no
wrong byte, all that was acknowledged as persisted, nothing that was acknowledged as purged.

  bun run test:power                              200 cycles
  bun run test:power -- --cycles 20 --seed 7      fewer, at other moments

Needs root and loop devices. Without them it says so and ends with 0; with REQUIRE_POWER=1 it fails.
The last line of the output is JSON. Exit codes: 0 all is well, or skipped; 1 it is not; 2 wrong
usage.
`;

const options = scriptOptions(HELP, {
  cycles: { type: "string", default: "200" },
  seed: { type: "string", default: "1" },
  /** The last line is JSON with and without it. */
  json: { type: "boolean" },
});

const [cycles, seed] = [Number(options.cycles), Number(options.seed)];
if (!Number.isSafeInteger(cycles) || cycles < 1 || !Number.isSafeInteger(seed)) {
  console.error("--cycles and --seed are whole numbers");
  process.exit(2);
}

const python = findPython();
const why = python.kind === "ready" ? await whyNoPowerLoss(python.path) : python.why;
if (python.kind !== "ready" || why !== null) {
  const isRequired = process.env.REQUIRE_POWER === "1";
  console.error(
    `${isRequired ? "required" : "SKIPPED"}: no loss of power can be tried here: ${why}`,
  );
  console.log(JSON.stringify({ skipped: why }));
  process.exit(isRequired ? 1 : 0);
}

const executable = await ensureFaultyExecutable();
const folder = mkdtempSync(join(tmpdir(), "hearth-power-"));
try {
  using disk = new LoopDisk(python.path);
  const onProgress = progressLines("power", cycles);
  const trial = await runPower({ executable, folder, disk, cycles, seed, onProgress });
  process.exitCode = report(trial, cycles, Number.POSITIVE_INFINITY);
} finally {
  rmSync(folder, { recursive: true, force: true });
}
