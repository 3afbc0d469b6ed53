import { expect, test } from "bun:test";
import { describeNative } from "../../support/index.ts";
import { runTrial } from "./trial.ts";

describeNative("a short run of the lane test:proxy", () => {
  test("streams, cancellations and errors pass through a router process", async () => {
    const report = await runTrial({
      ...{ streams: 40, samples: 5, binary: null },
      onProgress: () => undefined,
    });
    expect(report.violations).toEqual([]);
    expect(report.figures).toMatchObject({ streams: 40, wrong_streams: 0, errors_told: 4 });
  });
});
