import type { TransportName } from "../../src/peers/index.ts";
import { defineLane, LaneUsage, needStandIns, text, whole } from "../support/lane.ts";
import { reportOf, tableOf } from "./report.ts";
import { runFaults } from "./run.ts";

const TRANSPORTS: readonly TransportName[] = ["stream", "quic", "rdma"];

export const lane = defineLane({
  help: `
Fetches blocks over real transports, with real certificates, from peers that misbehave: senders
killed before, within and behind each frame; false lengths, addresses, generations and checksums;
flipped bits and other blocks' bytes; stalls, drips and cuts; a peer that hangs; one that floods; and
clients that vanish. No wrong byte may be served, no slot, reference or stream may leak, and with one
of three peers hung the 99th percentile is at most twice that of healthy peers.

  ./dev test:peers                        20,000 fetches over all transports
  ./dev test:peers --pulls 2000           a short run
  ./dev test:peers --transport stream     one transport, or several with commas
  ./dev test:peers --seed 7               other faults
  ./dev test:peers --json                 the result as JSON on one line

Exit codes: 0 all is well; 1 a promise was broken; 2 wrong usage.
`,
  options: { pulls: whole(100, 20_000), seed: whole(0, 1), transport: text(TRANSPORTS.join(",")) },
  async run({ pulls, seed, transport }, host) {
    const transports = transport.split(",") as TransportName[];
    const unknown = transports.find((name) => !TRANSPORTS.includes(name));
    if (unknown !== undefined) {
      throw new LaneUsage(`--transport ${unknown}: expected some of ${TRANSPORTS.join(", ")}`);
    }
    await needStandIns();
    const startMs = performance.now();
    const results = await runFaults({
      ...{ pulls, seed, transports },
      onPhase: (at) => host.say(`${at.transport}, ${at.phase}`),
    });
    const violations = results.flatMap((result) =>
      result.problems.map((problem) => `${result.transport}, ${result.phase}: ${problem}`),
    );
    const seconds = (performance.now() - startMs) / 1_000;
    return { violations, json: reportOf(results, seconds, seed), text: tableOf(results) };
  },
});
