/** `bun run test:certs`: presents invalid certificates to all transports in both directions. */
import { scriptOptions } from "../../scripts/lib/arguments.ts";
import { ensureHost, ensureStandIns } from "../../scripts/lib/native-build.ts";
import type { TransportMaker } from "../peers/transports/contract-kit.ts";
import { type CertsReport, runCerts, violationsOf } from "./certs.ts";

const TRANSPORTS = ["stream", "quic", "rdma"] as const;

const HELP = `
Shows bad credentials to a good host that listens, and to a good host that calls: expired ones, of
other authorities, with names that are nearly right, for other uses, none at all, and those that
were good until the authority was taken out. Nobody may get in, each refusal must have a reason, and
no key may stand in a log or a fault. Good credentials must get in before and after.

  bun run test:certs                       all of them, over ${TRANSPORTS.join(" and ")}
  bun run test:certs -- --transport quic   over one transport
  bun run test:certs -- --one-in 8         a few of them
  bun run test:certs -- --json             the report as one line of JSON on standard output

Exit codes: 0 nobody got in; 1 somebody did, or without a reason; 2 wrong usage.
`;

const REASON_CHARACTERS = 90;

const options = scriptOptions(HELP, {
  transport: { type: "string" },
  "one-in": { type: "string", default: "1" },
  json: { type: "boolean", default: false },
});

function fail(text: string): never {
  console.error(text);
  process.exit(2);
}

const oneIn = Number(options["one-in"]);
if (!Number.isSafeInteger(oneIn) || oneIn < 1) fail(`--one-in ${oneIn} is not an integer`);
const names = TRANSPORTS.filter(
  (name) => options.transport === undefined || options.transport === name,
);
if (names.length === 0) fail(`--transport is one of ${TRANSPORTS.join(", ")}`);
const library = await ensureHost();
const native =
  library.kind === "fresh" || library.kind === "built" ? await ensureStandIns() : library;
if (native.kind === "failed" || native.kind === "skipped") fail(`no native library: ${native.why}`);

function printTable({ results, good, leaks, seconds }: CertsReport): void {
  const width = Math.max(...results.map(({ name }) => name.length));
  for (const { name, transport, direction, accepted, reason } of results) {
    const verdict = accepted ? "ACCEPTED" : "refused";
    const shown = reason.replace(/[^ -~]/g, "?").slice(0, REASON_CHARACTERS);
    const cells = [name.padEnd(width), transport.padEnd(6), direction.padEnd(6), verdict.padEnd(8)];
    console.log(`${cells.join("  ")}  ${shown}`);
  }
  const accepted = results.filter((result) => result.accepted).length;
  console.log(
    `${results.length} attempts, ${accepted} accepted; ${good.accepted} of ${good.tried} good ` +
      `ones let in; ${leaks} secrets in logs; ${seconds} s`,
  );
}

const makers = await Promise.all(
  names.map(async (name) => {
    const { maker } = await import(`../peers/transports/${name}-maker.ts`);
    return maker as TransportMaker;
  }),
);
const report = await runCerts({ makers, oneIn });
const violations = violationsOf(report);
for (const violation of violations) console.error(violation);
if (options.json) {
  const accepted = report.results.filter((result) => result.accepted).length;
  console.log(JSON.stringify({ attempts: report.results.length, accepted, violations, ...report }));
} else printTable(report);
process.exit(violations.length === 0 ? 0 : 1);
