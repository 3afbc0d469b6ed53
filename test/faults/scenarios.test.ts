import { expect, test } from "bun:test";
import { describeNative, noteSkip } from "../support/index.ts";
import { SCENARIOS } from "./scenarios.ts";

describeNative("a whole agent", () => {
  // A disk that hangs for half a minute is for `./dev test:faults`.
  for (const { name, run } of SCENARIOS.filter((one) => one.name !== "frozen-disk")) {
    test(name, async () => {
      const { violations, skipped } = await run();
      if (skipped !== undefined) noteSkip(name, skipped);
      expect(violations).toEqual([]);
    });
  }
});
