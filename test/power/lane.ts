import { ensureFaultyExecutable } from "../../scripts/lib/executable.ts";
import { progressLines, violationsOf } from "../crash/report.ts";
import { defineLane, LaneSkip, needPython, whole } from "../support/lane.ts";
import { LoopDisk, whyNoPowerLoss } from "./loop-disk.ts";
import { runPower } from "./power.ts";

export const lane = defineLane({
  help: `
Keeps an agent's blocks and index on an ext4 file system in a file, shuts that down under load
without flushing its journal, kills the agent, mounts the file system again and verifies the answers:
no wrong byte, every block that was acknowledged as persisted, none that was acknowledged as purged.

  ./dev test:power                       200 cycles
  ./dev test:power --cycles 20 --seed 7  fewer, at other moments

Needs root and loop devices. Without them it prints "skipped" and exits 0; with REQUIRE_POWER=1 it
exits 1. The last line of the output is JSON. Exit codes: 0 all is well, or skipped; 1 it is not;
2 wrong usage.
`,
  endsWithJson: true,
  options: { cycles: whole(1, 200), seed: whole(0, 1) },
  async run({ cycles, seed }, host) {
    const python = needPython();
    const why = await whyNoPowerLoss(python);
    if (why !== null) throw new LaneSkip(`no loss of power can be tried here: ${why}`, "POWER");
    const executable = await ensureFaultyExecutable();
    using disk = new LoopDisk(python);
    const onProgress = progressLines("power", cycles);
    const folder = host.folder();
    const trial = await runPower({ executable, folder, disk, cycles, seed, onProgress });
    const violations = violationsOf(trial, Number.POSITIVE_INFINITY);
    return { violations, json: { cycles, ...trial.figures } };
  },
});
