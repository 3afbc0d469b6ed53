import { seededRandom } from "../../core/index.ts";
import { createPrefixIndex } from "../../router/index.ts";
import { benchDecide } from "../../workload/bench/index.ts";
import { defineCommand } from "../command.ts";
import { jsonFlag, withDefault } from "../flags.ts";
import { integer } from "../kinds.ts";
import { printRows } from "../output.ts";
import { routeOverHttp } from "../route-over-http.ts";

const INDEX_BYTES = 2 ** 32;

export const command = defineCommand({
  description: [
    "Measures decisions of the router in this process, from a prompt's tokens to the worker: " +
      "hashing, the look-up of what each worker holds, costs, the choice, and remembering it.",
    "Then a router in a process of its own is asked over HTTP, as fast as it answers.",
  ],
  arguments: {},
  flags: {
    workers: withDefault(integer({ min: 1, max: 4096 }), 128, "how many workers"),
    tokens: withDefault(integer({ min: 16, max: 2 ** 20 }), 15_000, "of each prompt"),
    live: withDefault(integer({ min: 1, max: 2 ** 16 }), 1_024, "requests that are live at a time"),
    heldBlocks: withDefault(
      integer({ max: 2 ** 22 }),
      20_000,
      "blocks of other prompts that each worker holds",
    ),
    decisions: withDefault(integer({ min: 1, max: 2 ** 24 }), 3_000, "how many are measured"),
    httpTokens: withDefault(integer({ min: 1, max: 2 ** 20 }), 1_000, "of prompts over HTTP"),
    httpSeconds: withDefault(integer({ max: 600 }), 5, "how long HTTP is measured; 0: not at all"),
    json: jsonFlag,
  },
  examples: [
    { words: "bench decide --workers 128 --json", what: "prompts of 15,000 tokens" },
    { words: "bench decide --workers 1024 --tokens 100000", what: "a large fleet, long prompts" },
  ],
  exits: ["interrupted"],
  async run({ flags, io, clock, interrupt }) {
    const signal = interrupt();
    const result = await benchDecide({
      clock,
      workers: flags.workers,
      promptTokens: flags.tokens,
      live: flags.live,
      heldBlocks: flags.heldBlocks,
      decisions: flags.decisions,
      makeIndex: (native) => {
        return createPrefixIndex({ native, random: seededRandom(2), bytesMax: INDEX_BYTES });
      },
      signal,
    });
    const { workers, httpTokens: promptTokens, httpSeconds } = flags;
    const http =
      httpSeconds === 0
        ? null
        : await routeOverHttp({ clock, workers, promptTokens, ms: httpSeconds * 1_000, signal });
    printRows(io, [{ ...result, ...http }], flags.json);
    return "ok";
  },
});
