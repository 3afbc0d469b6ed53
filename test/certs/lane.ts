import type { TransportMaker } from "../peers/transports/contract-kit.ts";
import { defineLane, needStandIns, oneOf, whole } from "../support/lane.ts";
import { type CertsReport, runCerts, violationsOf } from "./certs.ts";

const TRANSPORTS = ["stream", "quic", "rdma"] as const;
const REASON_CHARACTERS = 90;

export const lane = defineLane({
  help: `
Presents invalid credentials to a valid agent that listens, and to one that connects: expired ones,
of other authorities, with names that are nearly right, for other uses, none at all, and those that
were valid until the authority was removed. None may be accepted, each refusal must have a reason,
and no key may appear in a log or a fault. Valid credentials must be accepted before and after.

  ./dev test:certs                    all of them, over ${TRANSPORTS.join(", ")}
  ./dev test:certs --transport quic   over one transport
  ./dev test:certs --one-in 8         one in eight
  ./dev test:certs --json             the report as one line of JSON on standard output

Exit codes: 0 none was accepted; 1 one was, or a refusal has no reason; 2 wrong usage.
`,
  options: { transport: oneOf(TRANSPORTS), "one-in": whole(1, 1) },
  async run({ transport, "one-in": oneIn }) {
    await needStandIns();
    const makers = await Promise.all(
      TRANSPORTS.filter((name) => (transport ?? name) === name).map(async (name) => {
        const { maker } = await import(`../peers/transports/${name}-maker.ts`);
        return maker as TransportMaker;
      }),
    );
    const report = await runCerts({ makers, oneIn });
    const violations = violationsOf(report);
    const accepted = report.results.filter((result) => result.accepted).length;
    return {
      violations,
      json: { attempts: report.results.length, accepted, violations, ...report },
      text: tableOf(report, accepted),
    };
  },
});

function tableOf({ results, good, leaks, seconds }: CertsReport, accepted: number): string {
  const width = Math.max(...results.map(({ name }) => name.length));
  const lines = results.map(({ name, transport, direction, accepted: isIn, reason }) => {
    const verdict = isIn ? "ACCEPTED" : "refused";
    const shown = reason.replace(/[^ -~]/g, "?").slice(0, REASON_CHARACTERS);
    const cells = [name.padEnd(width), transport.padEnd(6), direction.padEnd(6), verdict.padEnd(8)];
    return `${cells.join("  ")}  ${shown}`;
  });
  const sum =
    `${results.length} attempts, ${accepted} accepted; ${good.accepted} of ${good.tried} valid ` +
    `ones accepted; ${leaks} secrets in logs; ${seconds} s`;
  return [...lines, sum].join("\n");
}
