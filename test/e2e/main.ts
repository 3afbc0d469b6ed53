/** `bun run test:e2e`: commands from a real broker to real agents, seen through their engines. */
import { scriptOptions } from "../../scripts/lib/arguments.ts";
import { ensureHostExecutable } from "../../scripts/lib/executable.ts";
import { NatsServer } from "../../scripts/lib/nats-process.ts";
import { ensureNatsServer } from "../../scripts/lib/nats-server.ts";
import { stringifyJson } from "../../src/core/index.ts";
import { CARRIERS, type Carrier, faultsOf, play, type Row } from "./e2e.ts";
import { SCENARIOS } from "./scenarios/index.ts";

const HELP = `
Starts a nats-server and agents with RAM and SSD, sends each lifecycle command in the words in which
routers send it, and looks at what became of the blocks through the engine plane: over TCP and over
WebSocket.

  bun run test:e2e                              everything, some minutes
  bun run test:e2e -- --scenario "Pin flow"     one scenario
  bun run test:e2e -- --carrier ws              agents connected in one way (tcp or ws)
  bun run test:e2e -- --json                    rows as one line of JSON, with each receipt

Exit codes: 0 all is well; 1 something is not as it should be; 2 wrong usage, or no nats-server.
`;

const options = scriptOptions(HELP, {
  scenario: { type: "string" },
  carrier: { type: "string" },
  json: { type: "boolean", default: false },
});

function fail(text: string): never {
  console.error(text);
  process.exit(2);
}

const names = SCENARIOS.map(({ name }) => name);
const { scenario, carrier, json } = options;
if (scenario !== undefined && !names.includes(scenario)) {
  fail(`--scenario ${scenario} is none of: ${names.join("; ")}`);
}
if (carrier !== undefined && !CARRIERS.includes(carrier as Carrier)) {
  fail(`--carrier ${carrier} is none of ${CARRIERS.join(", ")}`);
}
const nats = await ensureNatsServer();
if (nats.kind === "skipped") fail(nats.why);

const rows: Row[] = [];
const executable = await ensureHostExecutable();
{
  await using server = await NatsServer.start({ jetStream: true });
  for (const one of CARRIERS) {
    for (const played of SCENARIOS) {
      if (carrier !== undefined && one !== carrier) continue;
      if (scenario !== undefined && played.name !== scenario) continue;
      const row = await play(played, one, { executable, server });
      rows.push(row);
      if (!json) print(row);
    }
  }
}
const faults = rows.flatMap(faultsOf);
for (const fault of faults) console.error(fault);
const claims = rows.reduce((sum, row) => sum + row.claims, 0);
const sum = { scenarios: rows.length, claims, faults: faults.length };
console.log(json ? stringifyJson({ ...sum, rows }) : stringifyJson(sum));
process.exit(faults.length === 0 ? 0 : 1);

function print({ scenario, kind, carrier, claims, failed, broken, ms }: Row): void {
  const verdict = broken === null && failed.length === 0 ? "ok" : "FAILED";
  const cells = [kind.padEnd(12), scenario.padEnd(36), carrier.padEnd(4)];
  const figures = `${claims - failed.length} of ${claims}`.padStart(8);
  console.log(`${cells.join("  ")}  ${figures}  ${`${ms}`.padStart(6)} ms  ${verdict}`);
}
