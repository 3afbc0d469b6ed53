import { tmpdir } from "node:os";
import { ensureHostExecutable } from "../../scripts/lib/executable.ts";
import { defineLane, needNats, oneOf, text, whole } from "../support/lane.ts";
import { CARRIERS } from "./chaos.ts";
import { tableOf } from "./report.ts";
import { runTrial } from "./trial.ts";

/** From this number of kills on, rates are judged. */
const LONG_KILLS_MIN = 50;

export const lane = defineLane({
  help: `
Starts an agent with RAM and SSD and a nats-server, which is killed and restarted, and sometimes
stopped, while routers send commands over TCP and WebSocket. Half of all commands come twice, out of
order, with unparsable ones between them; an engine reads from RAM throughout. At the end pins,
leases and marks must be what the receipts say. Then commands that a stream keeps while the agent is
down, or is killed.

  ./dev test:nats                         100 kills, a quarter of an hour
  ./dev test:nats --kills 10              fewer
  ./dev test:nats --seed 7                other moments
  ./dev test:nats --carrier ws            an agent connected over WebSocket; default: TCP
  ./dev test:nats --json                  the figures as one line of JSON on standard output
  ./dev test:nats --dir /mnt/nvme         on this file system; default: the temporary folder

From 50 kills on, reads are judged too: their p99 is at most twice that of the time without kills
(before and after), both as the median of windows of two seconds.

Exit codes: 0 all is well, or skipped; 1 a violation; 2 wrong usage.
`,
  options: {
    kills: whole(1, 100),
    seed: whole(0, 1),
    carrier: oneOf(CARRIERS, "tcp"),
    dir: text(tmpdir()),
  },
  async run({ kills, seed, carrier, dir }, host) {
    await needNats();
    const isLong = kills >= LONG_KILLS_MIN;
    const executable = await ensureHostExecutable();
    // The prefix is short, because the path of a Unix socket below the folder is limited.
    const folder = host.folder(dir);
    const { figures, violations } = await runTrial({
      ...{ executable, folder, kills, seed, carrier, thorough: isLong },
      calmMs: isLong ? 60_000 : 6_000,
      streamCommands: isLong ? 1_000 : 100,
      onProgress: (line) => host.say(line),
    });
    return { violations, json: { ...figures, violations }, text: tableOf(figures) };
  },
});
