import { defineLane, flag, whole } from "../support/lane.ts";
import { multiTurn } from "./lanes/multi-turn.ts";
import { runEngines } from "./run.ts";

export const lane = defineLane({
  help: `
Plays 48 conversations of 6 turns with shared system prompts on real vLLM with a KV cache that holds
two of them: alone, with Hearth, and with vLLM's own offloading, which gets the same RAM. Turns are
interleaved between the three. Prints mean and p99 time to the first token, and tokens computed.

  ./dev bench:engines
  ./dev bench:engines --seed 7 --model-seed 3    other prompts, other weights
  ./dev bench:engines --quick                    few conversations: for development
  ./dev bench:engines --json                     the result as JSON on standard output

Exit codes: 0 Hearth is best on each, or skipped; 1 it is not; 2 wrong usage.
`,
  options: { seed: whole(0, 1), "model-seed": whole(0, 1), quick: flag() },
  run({ seed, "model-seed": modelSeed, quick: isQuick }, host) {
    const lanes = [["multi-turn", multiTurn]] as const;
    return runEngines({ engine: "vllm", lanes, seed, modelSeed, minutes: 0, isQuick }, host);
  },
});
