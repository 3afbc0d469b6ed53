import { expect, test } from "bun:test";
import { systemClock, TurnBudget } from "../../src/core/index.ts";
import { watchLoopLag } from "../../src/observability/index.ts";
import { waitFor } from "../support/index.ts";

test("work that no source announced counts as a long turn", async () => {
  const turns = new TurnBudget();
  using lag = watchLoopLag(systemClock, turns);
  await waitFor(() => turns.stats.turns > 2);
  const before = { announced: turns.stats.longTurns, all: lag.longTurns };
  setTimeout(() => {
    const endMs = performance.now() + 80;
    while (performance.now() < endMs);
  }, 0);
  await waitFor(() => lag.longestTurnSeconds() > 0.05);
  expect(lag.longTurns - before.all).toBeGreaterThan(turns.stats.longTurns - before.announced);
});
