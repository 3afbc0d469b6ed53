/** `bun run test:netns`: five agents in network namespaces, and a network that fails them. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { scriptOptions } from "../../scripts/lib/arguments.ts";
import { ensureHostExecutable } from "../../scripts/lib/executable.ts";
import { systemClock } from "../../src/core/index.ts";
import { FROM_CHECKOUT } from "../app/agent-process.ts";
import { Fleet } from "./fleet.ts";
import { Network, netnsRefusal } from "./network.ts";
import { Reads } from "./reads.ts";
import {
  RECOVERY_MS,
  runScenario,
  SCENARIOS,
  type ScenarioName,
  type ScenarioResult,
} from "./scenarios.ts";

const NAMES = Object.keys(SCENARIOS) as ScenarioName[];

const TRANSPORTS = ["auto", "stream", "quic"];

const HELP = `
Starts five agents in network namespaces that know each other by certificate, stores blocks at each
and reads them at the others, byte by byte: over a good network, with 1 % of all packets lost and
50 ms each way, across a partition and after it, where packets go one way only, and while one host
is killed and replaced under the same worker id. No byte may be wrong, hosts that reach each other
must go on, and those that were apart must be back within two cooldowns of the breaker.

  bun run test:netns                           everything, about a minute
  bun run test:netns -- --scenario partition   one of ${NAMES.join(", ")}
  bun run test:netns -- --transport quic       one of ${TRANSPORTS.join(", ")}
  bun run test:netns -- --from-checkout        agents from the sources, not the executable
  bun run test:netns -- --json                 the report as one line of JSON on standard output

Packets pass through a switch in user space (tun devices), so the kernel needs no netem. Needs root,
\`ip\`, python3 and /dev/net/tun; without them it says so and ends with 0, with REQUIRE_NETNS=1 it
fails. Exit codes: 0 all is well, or skipped; 1 it is not; 2 wrong usage.
`;

const HOSTS = 5;
/** Of each agent's log, where something went wrong. */
const LINES_SHOWN = 8;

const options = scriptOptions(HELP, {
  scenario: { type: "string" },
  transport: { type: "string", default: "auto" },
  "from-checkout": { type: "boolean", default: false },
  json: { type: "boolean", default: false },
});

const chosen = NAMES.filter((name) => name === "healthy" || (options.scenario ?? name) === name);
if (options.scenario !== undefined && !NAMES.includes(options.scenario as ScenarioName)) {
  console.error(`--scenario is one of ${NAMES.join(", ")}`);
  process.exit(2);
}

const { transport } = options;
if (!TRANSPORTS.includes(transport)) {
  console.error(`--transport is one of ${TRANSPORTS.join(", ")}`);
  process.exit(2);
}

const why = netnsRefusal();
if (why !== null) {
  const isRequired = process.env.REQUIRE_NETNS === "1";
  console.error(`${isRequired ? "required" : "SKIPPED"}: no network namespaces here: ${why}`);
  if (options.json) console.log(JSON.stringify({ skipped: why }));
  process.exit(isRequired ? 1 : 0);
}

function say(text: string): void {
  console.error(`netns: ${text}`);
}

function lineOf({ name, hits, reads, wrong, slowestMs, recoveryMs }: ScenarioResult): string {
  const back = recoveryMs === null ? "" : `, back after ${recoveryMs} ms`;
  return `${name}: ${hits} of ${reads} came, ${wrong} wrong, slowest ${slowestMs} ms${back}`;
}

async function run(folder: string, command: readonly string[]): Promise<boolean> {
  const startMs = systemClock.monotonicMs();
  await using network = await Network.make(HOSTS);
  process.once("SIGINT", () => {
    network.remove();
    process.exit(130);
  });
  await using fleet = await Fleet.start({ network, folder, command, transport });
  const reads = new Reads(fleet);
  const results: ScenarioResult[] = [];
  for (const name of chosen) {
    const result = await runScenario(name, { network, fleet, reads });
    results.push(result);
    say(lineOf(result));
    for (const problem of result.problems) say(`  ${problem}`);
    if (result.problems.length === 0) continue;
    for (const line of fleet.lastLines(LINES_SHOWN)) say(`  ${line}`);
    break;
  }
  const report = {
    ...{ hosts: HOSTS, transport, network: "switch in user space" },
    recovery_bound_ms: RECOVERY_MS,
    ...{ reads: reads.total.reads, hits: reads.total.hits, wrong_bytes: reads.total.wrong },
    scenarios: results.map(({ wrong, slowestMs, recoveryMs, ...result }) => ({
      ...result,
      ...{ wrong_bytes: wrong, slowest_ms: slowestMs, recovery_ms: recoveryMs },
    })),
    traffic: await network.traffic(),
    seconds: Number(((systemClock.monotonicMs() - startMs) / 1_000).toFixed(1)),
  };
  if (options.json) console.log(JSON.stringify(report));
  else say(`${report.reads} reads, ${report.hits} came, ${report.wrong_bytes} wrong bytes`);
  return results.every(({ problems }) => problems.length === 0) && report.wrong_bytes === 0;
}

const command = options["from-checkout"] ? FROM_CHECKOUT : [await ensureHostExecutable()];
const folder = mkdtempSync(join(tmpdir(), "hearth-netns-"));
try {
  process.exitCode = (await run(folder, command)) ? 0 : 1;
} finally {
  rmSync(folder, { recursive: true, force: true });
}
process.exit();
