import { seededRandom } from "../../core/index.ts";
import { loadNative } from "../../native/index.ts";
import { createPrefixIndex } from "../../router/index.ts";
import { benchPrefix } from "../../workload/bench/index.ts";
import { bundledTrace, openTrace } from "../../workload/traces/index.ts";
import { defineCommand } from "../command.ts";
import { jsonFlag, optional, withDefault } from "../flags.ts";
import { bytes, integer, text } from "../kinds.ts";
import { printRecord } from "../output.ts";
import { createProgress } from "../progress.ts";

export const command = defineCommand({
  description: [
    "Fills the router's prefix index with what workers hold that serve the prompts of a trace, " +
      "for as many users as it takes, each block of the trace cut into four. Then prompts are " +
      "looked up, one by one and many in a call, and at last everything is removed, from the " +
      "ends of prompts. One thread; what is timed are calls of the index from TypeScript.",
    "bytes_per_holder_block: memory in use, for each pair of a block and a worker. " +
      "lookup_p50_ns, lookup_p99_ns: of single lookups. batch_lookup_ns: of each in a batch, " +
      "median. targets_per_lookup: how many workers the answer names. store_blocks_per_s, " +
      "remove_blocks_per_s: pairs.",
  ],
  arguments: {},
  flags: {
    trace: optional(text("FILE"), "whose prompts; by default the bundled one"),
    workers: withDefault(integer({ min: 1, max: 65_536 }), 128, "how many workers"),
    heldBlocks: withDefault(
      integer({ min: 1, max: 10 ** 9 }),
      10_000_000,
      "pairs of a block and a worker, at least",
    ),
    memory: withDefault(bytes({ min: 4096, max: 2 ** 37 }), 400_000_000, "that the index may use"),
    blocks: withDefault(integer({ min: 1, max: 4096 }), 69, "of each prompt that is looked up"),
    lookups: withDefault(integer({ min: 1, max: 10 ** 8 }), 200_000, "of each way"),
    batch: withDefault(integer({ min: 1, max: 4096 }), 64, "prompts in one call"),
    removalBlocks: withDefault(integer({ min: 1, max: 4096 }), 1, "that one removal names"),
    json: jsonFlag,
  },
  examples: [
    { words: "bench prefix", what: "ten million pairs on 128 workers" },
    { words: "bench prefix --json --held-blocks 1000000", what: "a tenth of it, as JSON" },
  ],
  exits: ["hostCannot", "interrupted"],
  async run({ flags, io, clock, interrupt }) {
    const random = seededRandom(1);
    const native = loadNative();
    using index = createPrefixIndex({ native, random, bytesMax: flags.memory });
    const progress = createProgress({ io, clock, json: flags.json });
    const result = await benchPrefix({
      trace: flags.trace === null ? await bundledTrace() : await openTrace(flags.trace),
      index,
      random,
      workers: flags.workers,
      heldBlocks: flags.heldBlocks,
      promptBlocks: flags.blocks,
      lookups: flags.lookups,
      batch: flags.batch,
      removalBlocks: flags.removalBlocks,
      signal: interrupt(),
      onProgress: (what) => progress.update(what),
    });
    progress.end();
    printRecord(io, { ...result }, flags.json);
    return "ok";
  },
});
