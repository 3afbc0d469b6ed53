import { expect, test } from "bun:test";
import { describeNative } from "../support/index.ts";
import { reportOf, tableOf } from "./report.ts";
import { runFaults } from "./run.ts";

const PULLS = 200;

describeNative("pulls from hosts that die, send invalid data, hang and flood, briefly", () => {
  test.each(["stream", "quic", "rdma"] as const)(
    "over %s",
    async (transport) => {
      const options = { pulls: PULLS, seed: 1, transports: [transport], onPhase: () => undefined };
      const results = await runFaults(options);
      // Speed depends on the other load of this machine.
      const problems = results.flatMap((result) => result.problems);
      expect(problems.filter((problem) => !problem.startsWith("p99"))).toEqual([]);
      expect(results.map(({ phase }) => phase)).toHaveLength(7);
      expect(results.find(({ phase }) => phase === "lies")!.corruptSeen).toBeGreaterThan(0);
      expect(tableOf(results).split("\n")).toHaveLength(8);
      expect(reportOf(results, 1, 1)).toMatchObject({ wrong_bytes: 0 });
    },
    120_000,
  );
});
