import { ensureHostExecutable } from "../../scripts/lib/executable.ts";
import { FROM_CHECKOUT } from "../app/agent-process.ts";
import { defineLane, flag, type LaneHost, LaneSkip, oneOf } from "../support/lane.ts";
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
const TRANSPORTS = ["auto", "stream", "quic"] as const;
const HOSTS = 5;
/** Lines shown of each agent's log after a failure. */
const LINES_SHOWN = 8;

export const lane = defineLane({
  help: `
Starts five agents in network namespaces that know each other by certificate, stores blocks at each
and reads them at the others, byte by byte: over a good network, with 1 % of all packets lost and
50 ms each way, across a partition and after it, with packets that pass one way only, and while one
host is killed and replaced under the same worker id. No byte may be wrong, hosts that reach each
other must continue, and those that were apart must return within two cooldowns of the breaker.

  ./dev test:netns                           everything, about a minute
  ./dev test:netns --scenario partition      one of ${NAMES.join(", ")}
  ./dev test:netns --transport quic          one of ${TRANSPORTS.join(", ")}
  ./dev test:netns --from-checkout           agents from the sources, not the executable
  ./dev test:netns --json                    the report as one line of JSON on standard output

Packets pass through a switch in user space (tun devices), so the kernel needs no netem. Needs root,
\`ip\`, python3 and /dev/net/tun; without them it prints "skipped" and exits 0, with REQUIRE_NETNS=1
it exits 1. Exit codes: 0 all is well, or skipped; 1 it is not; 2 wrong usage.
`,
  options: {
    scenario: oneOf(NAMES),
    transport: oneOf(TRANSPORTS, "auto"),
    "from-checkout": flag(),
  },
  async run({ scenario, transport, "from-checkout": isCheckout }, host) {
    const why = netnsRefusal();
    if (why !== null) throw new LaneSkip(`no network namespaces here: ${why}`, "NETNS");
    const command = isCheckout ? FROM_CHECKOUT : [await ensureHostExecutable()];
    const folder = host.folder();
    const startMs = performance.now();
    await using network = await Network.make(HOSTS);
    process.once("SIGINT", () => network.remove());
    await using fleet = await Fleet.start({ network, folder, command, transport });
    const reads = new Reads(fleet);
    const chosen = NAMES.filter((name) => name === "healthy" || (scenario ?? name) === name);
    const results = await playAll(chosen, { network, fleet, reads }, host);
    const { total } = reads;
    const wrong = total.wrong > 0 ? [`${total.wrong} wrong bytes`] : [];
    return {
      violations: [
        ...results.flatMap(({ name, problems }) => problems.map((one) => `${name}: ${one}`)),
        ...wrong,
      ],
      json: {
        ...{ hosts: HOSTS, transport, network: "switch in user space" },
        recovery_bound_ms: RECOVERY_MS,
        ...{ reads: total.reads, hits: total.hits, wrong_bytes: total.wrong },
        scenarios: results.map(({ wrong, slowestMs, recoveryMs, ...result }) => ({
          ...result,
          ...{ wrong_bytes: wrong, slowest_ms: slowestMs, recovery_ms: recoveryMs },
        })),
        traffic: await network.traffic(),
        seconds: Number(((performance.now() - startMs) / 1_000).toFixed(1)),
      },
      text: `${total.reads} reads, ${total.hits} hits, ${total.wrong} wrong bytes`,
    };
  },
});

/** Stops after the first scenario with a problem. */
async function playAll(
  chosen: readonly ScenarioName[],
  stage: Parameters<typeof runScenario>[1],
  host: LaneHost,
): Promise<ScenarioResult[]> {
  const results: ScenarioResult[] = [];
  for (const name of chosen) {
    const result = await runScenario(name, stage);
    results.push(result);
    host.say(lineOf(result));
    for (const problem of result.problems) host.say(`  ${problem}`);
    if (result.problems.length === 0) continue;
    for (const line of stage.fleet.lastLines(LINES_SHOWN)) host.say(`  ${line}`);
    break;
  }
  return results;
}

function lineOf({ name, hits, reads, wrong, slowestMs, recoveryMs }: ScenarioResult): string {
  const back = recoveryMs === null ? "" : `, back after ${recoveryMs} ms`;
  return `${name}: ${hits} of ${reads} read, ${wrong} wrong, slowest ${slowestMs} ms${back}`;
}
