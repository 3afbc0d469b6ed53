import { expect, test } from "bun:test";
import { describeNats } from "../support/index.ts";
import { runChaos } from "./run.ts";

describeNats("routers under chaos", () => {
  test("after each fault every index is what the workers have, and all count alike", async () => {
    const rounds = await runChaos({
      ...{ seed: 20261123, rounds: 4, untilMs: Number.POSITIVE_INFINITY, workers: 3, routers: 2 },
      patienceMs: 20_000,
    });
    expect(rounds.flatMap(({ differences }) => differences)).toEqual([]);
    expect(rounds.length).toBe(4);
  });
});
