/** `./dev bench:engines`: what users gain from Hearth on real vLLM. */
import { scriptOptions } from "../../scripts/lib/arguments.ts";
import { multiTurn } from "./lanes/multi-turn.ts";
import { runMain, wholeNumber } from "./run.ts";

const HELP = `
Plays 48 conversations of 6 turns with shared system prompts on real vLLM with a KV cache that holds
two of them: alone, with Hearth, and with vLLM's own offloading, which gets the same RAM. Turns are
interleaved between the three. Prints mean and p99 time to the first token, and tokens computed.

  ./dev bench:engines
  ./dev bench:engines --seed 7 --model-seed 3    other prompts, other weights
  ./dev bench:engines --quick                    few conversations: for development
  ./dev bench:engines --json                     the result as JSON on standard output

Exit codes: 0 Hearth is best on each, or skipped; 1 it is not; 2 wrong usage.
`;

const { seed, quick, json, ...given } = scriptOptions(HELP, {
  seed: { type: "string", default: "1" },
  "model-seed": { type: "string", default: "1" },
  quick: { type: "boolean", default: false },
  json: { type: "boolean", default: false },
});

await runMain({
  ...{ engine: "vllm", lanes: [["multi-turn", multiTurn]], minutes: 0 },
  ...{ isQuick: quick, isJson: json },
  seed: wholeNumber("seed", seed, 0),
  modelSeed: wholeNumber("model-seed", given["model-seed"], 0),
});
