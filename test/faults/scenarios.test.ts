import { expect, test } from "bun:test";
import { describeNative, noteSkip } from "../support/index.ts";
import { SCENARIOS } from "./scenarios.ts";

/** A disk that hangs for half a minute is for `bun run test:faults`. */
const BRIEF = ["io-uring-denied", "io-uring-demanded-and-denied", "memlock-too-small"];

describeNative("an agent on a host that allows less", () => {
  for (const name of BRIEF) {
    test(name, async () => {
      const scenario = SCENARIOS.find((one) => one.name === name)!;
      const { violations, skipped } = await scenario.run();
      if (skipped !== undefined) noteSkip(name, skipped);
      expect(violations).toEqual([]);
    }, 60_000);
  }
});
