import { ensureHostExecutable } from "../../scripts/lib/executable.ts";
import { NatsServer } from "../../scripts/lib/nats-process.ts";
import { defineLane, needNats, oneOf } from "../support/lane.ts";
import { CARRIERS, faultsOf, play, type Row } from "./e2e.ts";
import { SCENARIOS } from "./scenarios/index.ts";

export const lane = defineLane({
  help: `
Starts a nats-server and agents with RAM and SSD, sends each lifecycle command in the form in which
routers send it, and checks its effect on the blocks through the engine plane: over TCP and over
WebSocket.

  ./dev test:e2e                              everything, some minutes
  ./dev test:e2e --scenario "Pin flow"        one scenario
  ./dev test:e2e --carrier ws                 agents connected in one way (tcp or ws)
  ./dev test:e2e --json                       rows as one line of JSON, with each receipt

Exit codes: 0 all is well, or skipped; 1 a claim does not hold; 2 wrong usage.
`,
  options: { scenario: oneOf(SCENARIOS.map(({ name }) => name)), carrier: oneOf(CARRIERS) },
  async run({ scenario, carrier }, host) {
    await needNats();
    const executable = await ensureHostExecutable();
    await using server = await NatsServer.start({ jetStream: true });
    const rows: Row[] = [];
    for (const one of CARRIERS.filter((name) => (carrier ?? name) === name)) {
      for (const played of SCENARIOS.filter(({ name }) => (scenario ?? name) === name)) {
        const row = await play(played, one, { executable, server });
        rows.push(row);
        host.print(lineOf(row));
      }
    }
    const violations = rows.flatMap(faultsOf);
    const claims = rows.reduce((sum, row) => sum + row.claims, 0);
    const sum = { scenarios: rows.length, claims, faults: violations.length };
    const text = `${sum.scenarios} scenarios, ${sum.claims} claims, ${sum.faults} faults`;
    return { violations, json: { ...sum, rows }, text };
  },
});

function lineOf({ scenario, kind, carrier, claims, failed, broken, ms }: Row): string {
  const verdict = broken === null && failed.length === 0 ? "ok" : "FAILED";
  const cells = [kind.padEnd(12), scenario.padEnd(36), carrier.padEnd(4)];
  const figures = `${claims - failed.length} of ${claims}`.padStart(8);
  return `${cells.join("  ")}  ${figures}  ${`${ms}`.padStart(6)} ms  ${verdict}`;
}
