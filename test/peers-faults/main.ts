/** `bun run test:peers`: pulls from hosts that die, send invalid data, hang and flood. */
import { scriptOptions } from "../../scripts/lib/arguments.ts";
import { ensureHost, ensureStandIns } from "../../scripts/lib/native-build.ts";
import { systemClock } from "../../src/core/index.ts";
import type { TransportName } from "../../src/peers/index.ts";
import { jsonOf, tableOf } from "./report.ts";
import { runFaults } from "./run.ts";

const HELP = `
Pulls blocks over real transports, with real certificates, from hosts that do not behave: senders
killed before, within and behind each frame; lies about lengths, addresses, generations and
checksums; turned bits and other blocks' bytes; stalls, drips and cuts; a host that hangs; one that
floods; and askers that vanish. No wrong byte may come out, no slot, loan or stream may stay taken,
and with one of three hosts hung the 99th percentile is at most twice that of healthy hosts.

  bun run test:peers                            20,000 pulls over all transports
  bun run test:peers -- --pulls 2000            a short run
  bun run test:peers -- --transport stream      one transport, or several with commas
  bun run test:peers -- --seed 7                other lies
  bun run test:peers -- --json                  the result as JSON on one line

Exit codes: 0 all is well; 1 a promise was broken; 2 wrong usage.
`;

const TRANSPORTS = ["stream", "quic", "rdma"];

const options = scriptOptions(HELP, {
  pulls: { type: "string", default: "20000" },
  transport: { type: "string", default: TRANSPORTS.join(",") },
  seed: { type: "string", default: "1" },
  json: { type: "boolean", default: false },
});

function fail(text: string): never {
  console.error(text);
  process.exit(2);
}

function wholeNumber(name: "pulls" | "seed", min: number): number {
  const value = Number(options[name]);
  if (Number.isSafeInteger(value) && value >= min) return value;
  return fail(`--${name} ${options[name]} is not an integer from ${min}`);
}

const pulls = wholeNumber("pulls", 100);
const seed = wholeNumber("seed", 0);
const transports = options.transport.split(",");
for (const name of transports)
  if (!TRANSPORTS.includes(name)) fail(`--transport ${name} is none of ${TRANSPORTS.join(", ")}`);
const library = await ensureHost();
const native =
  library.kind === "fresh" || library.kind === "built" ? await ensureStandIns() : library;
if (native.kind === "failed" || native.kind === "skipped") fail(`no pulls: ${native.why}`);

const began = systemClock.monotonicMs();
const results = await runFaults({
  ...{ pulls, seed, transports: transports as TransportName[] },
  onPhase: ({ transport, phase }) => process.stderr.write(`peers: ${transport}, ${phase}\n`),
});
const seconds = (systemClock.monotonicMs() - began) / 1_000;
console.log(options.json ? jsonOf(results, seconds, seed) : tableOf(results));
process.exit(results.some(({ problems }) => problems.length > 0) ? 1 : 0);
