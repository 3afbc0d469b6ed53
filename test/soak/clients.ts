/** `bun run test:clients`: clients that die or stop at random points of a slot's life. */

import { scriptOptions } from "../../scripts/lib/arguments.ts";
import { ensureHost } from "../../scripts/lib/native-build.ts";
import { findPython } from "../../scripts/lib/python.ts";
import { runSoak, type SoakReport, violationsOf } from "./soak.ts";

const HELP = `
Starts an agent and lets clients live with it that are killed, stopped or leave at random points,
while a reader proves every byte it can get.

  bun run test:clients                          1,000 clients, about ten seconds
  bun run test:clients -- --cycles 10000        the long run
  bun run test:clients -- --binary dist/hearth  with the executable instead of the sources
  bun run test:clients -- --seed 7              other lives

From 5,000 clients on the agent's memory is judged, after 8,000 others that do not count; where it
seems to grow the run goes on up to three times as long, to tell a leak from what comes and goes.

The last line of the output is JSON. Exit codes: 0 all is well; 1 wrong bytes, leaked slots or
memory, or an answer that must not be; 2 wrong usage.
`;

const options = scriptOptions(HELP, {
  cycles: { type: "string", default: "1000" },
  seed: { type: "string", default: "1" },
  binary: { type: "string" },
});

function fail(text: string): never {
  console.error(text);
  process.exit(2);
}

const cycles = Number(options.cycles);
if (!Number.isSafeInteger(cycles) || cycles < 1)
  fail(`--cycles ${options.cycles} is no whole number`);
const python = findPython();
if (python.kind !== "ready") fail(`no clients without Python: ${python.why}`);
const native = options.binary === undefined ? await ensureHost() : null;
if (native?.kind === "failed" || native?.kind === "skipped") fail(`no agent: ${native.why}`);

const { isTTY } = process.stderr;
let nextLine = 1_000;
const report: SoakReport = await runSoak({
  python: python.path,
  binary: options.binary ?? null,
  cycles,
  seed: options.seed,
  onProgress(done, residentMb) {
    const line = `clients: ${done} of ${cycles}, agent ${residentMb.toFixed(1)} MB`;
    if (isTTY) process.stderr.write(`\r${line} `);
    else if (done >= nextLine) {
      process.stderr.write(`${line}\n`);
      nextLine += 1_000;
    }
  },
});
if (isTTY) process.stderr.write("\n");
const violations = violationsOf(report);
for (const violation of violations) console.error(`violation: ${violation}`);
console.log(JSON.stringify(report.figures));
process.exit(violations.length === 0 ? 0 : 1);
