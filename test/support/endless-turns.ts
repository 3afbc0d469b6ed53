import { TurnBudget } from "../../src/core/index.ts";

/** Time stands still in it: whatever comes is done in the turn in which it came. */
export const endlessTurns = new TurnBudget({ nowMs: () => 0, nextTurn: () => undefined });
