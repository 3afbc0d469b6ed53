/** `bun run test:nats`: a broker killed over and over, and what agents make of it. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { scriptOptions } from "../../scripts/lib/arguments.ts";
import { ensureHostExecutable } from "../../scripts/lib/executable.ts";
import { ensureNatsServer } from "../../scripts/lib/nats-server.ts";
import { CARRIERS } from "./chaos.ts";
import { tableOf } from "./report.ts";
import { runTrial } from "./trial.ts";

const HELP = `
Starts an agent with RAM and SSD and a nats-server, which is killed and started again, and stands
still at times, while routers send commands over TCP and WebSocket. Half of all commands come twice,
out of order, with poison between them; an engine reads from RAM all the time. At the end pins,
leases and marks must be what the receipts say. Then commands that a stream keeps while the agent is
down, or is killed.

  bun run test:nats                         100 kills, a quarter of an hour
  bun run test:nats -- --kills 10           fewer
  bun run test:nats -- --seed 7             other moments
  bun run test:nats -- --carrier ws         an agent connected over WebSocket; else TCP
  bun run test:nats -- --json               the figures as one line of JSON on standard output
  bun run test:nats -- --dir /mnt/nvme      on this file system; else the temporary folder

From 50 kills on, reads are judged too: their p99 is at most twice that of the time without kills
(before them and after), both as the median of windows of two seconds.

Exit codes: 0 all is well; 1 a violation; 2 wrong usage, or no nats-server.
`;

const options = scriptOptions(HELP, {
  kills: { type: "string", default: "100" },
  seed: { type: "string", default: "1" },
  carrier: { type: "string", default: "tcp" },
  dir: { type: "string", default: tmpdir() },
  json: { type: "boolean", default: false },
});

function fail(text: string): never {
  console.error(text);
  process.exit(2);
}

const [kills, seed] = [Number(options.kills), Number(options.seed)];
if (!Number.isSafeInteger(kills) || kills < 1 || !Number.isSafeInteger(seed)) {
  fail("--kills and --seed are whole numbers");
}
const carrier = CARRIERS.find((one) => one === options.carrier);
if (carrier === undefined) fail(`--carrier is one of ${CARRIERS.join(", ")}`);
const nats = await ensureNatsServer();
if (nats.kind === "skipped") fail(nats.why);

/** From here on a run is for its figures. */
const LONG_KILLS_MIN = 50;
const isLong = kills >= LONG_KILLS_MIN;
const executable = await ensureHostExecutable();
// Short: the path of a socket lies in it.
const folder = mkdtempSync(join(options.dir, "hearth-nats-"));
try {
  const { figures, violations } = await runTrial({
    ...{ executable, folder, kills, seed, carrier, thorough: isLong },
    calmMs: isLong ? 60_000 : 6_000,
    streamCommands: isLong ? 1_000 : 100,
    onProgress: (text) => process.stderr.write(`nats: ${text}\n`),
  });
  for (const violation of violations) console.error(`violation: ${violation}`);
  console.log(options.json ? JSON.stringify({ ...figures, violations }) : tableOf(figures));
  process.exitCode = violations.length === 0 ? 0 : 1;
} finally {
  rmSync(folder, { recursive: true, force: true });
}
