import { heapStats } from "bun:jsc";
import { expect, test } from "bun:test";
import type { WorkerId } from "../../../src/core/index.ts";
import { block, PullKit } from "./pull-kit.ts";

const A_ROUND = 1_500;

function promises(): number {
  Bun.gc(true);
  return heapStats().objectTypeCounts.Promise ?? 0;
}

test("fetches and queries leave nothing behind in memory", async () => {
  await using kit = new PullKit({ hosts: ["a", "b"] });
  const signal = new AbortController().signal;
  const request = { op: "has" as const, namespace: new Uint8Array(32), blocks: [block(1)] };
  const options = { deadlineMs: 1_000, signal };
  const round = async (from: number) => {
    for (let i = 0; i < A_ROUND; i += 50) {
      await kit.kinds(
        kit.pull(
          Array.from({ length: 50 }, (_, j) => from + i + j),
          { signal },
        ),
      );
      const asks = Array.from({ length: 50 }, () =>
        kit.puller.ask("a" as WorkerId, request, options),
      );
      await kit.settle(Promise.all(asks));
    }
  };
  await round(0);
  const before = promises();
  await round(A_ROUND);
  expect(promises() - before).toBeLessThan(A_ROUND / 4);
});
