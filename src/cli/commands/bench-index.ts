import { benchIndex } from "../../workload/bench/index.ts";
import { defineCommand } from "../command.ts";
import { jsonFlag, withDefault } from "../flags.ts";
import { integer } from "../kinds.ts";
import { printRecord } from "../output.ts";

export const command = defineCommand({
  description: [
    "Fills a block table with chains of blocks that share prefixes and measures it: on one core, " +
      "without an engine, without bytes of blocks. The memory is what the process grows by.",
    "bytes_per_block: table, indexes, aliases and slots. match_64_p50_us: one lookup of 64 " +
      "keys, all present. insert_per_s: a block reserved, named and committed. churn_per_s: the " +
      "same with an eviction before each. evict_per_s: evictions alone.",
  ],
  arguments: {},
  flags: {
    blocks: withDefault(integer({ min: 1_000, max: 2 ** 26 }), 1_000_000, "blocks in the table"),
    seed: withDefault(integer({ min: 0, max: 2 ** 32 - 1 }), 1, "of the random keys"),
    json: jsonFlag,
  },
  examples: [
    { words: "bench index", what: "a table of a million blocks, about 0.5 GB of memory" },
    { words: "bench index --blocks 100000 --json", what: "a smaller one, as JSON" },
  ],
  exits: [],
  async run({ flags, io }) {
    const result = benchIndex({ blocks: flags.blocks, seed: flags.seed });
    printRecord(io, { ...result }, flags.json);
    return "ok";
  },
});
