import { expect, test } from "bun:test";
import { bundledTrace } from "../../../src/workload/traces/index.ts";
import { tally } from "./tally.ts";

test("the bundled trace is the one that is documented", async () => {
  const trace = await bundledTrace();
  expect(trace).toMatchObject({
    name: "mooncake_arxiv_first1000",
    format: "mooncake",
    blockTokens: 512,
  });
  const { requests, uses, distinct, hits, inputTokens } = await tally(trace);
  expect({ requests, uses, distinct, inputTokens }).toEqual({
    requests: 1000,
    uses: 19686,
    distinct: 12207,
    inputTokens: 9792030,
  });
  expect((hits / uses).toFixed(4)).toBe("0.3799");
});
