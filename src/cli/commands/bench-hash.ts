import { loadNative } from "../../native/index.ts";
import { benchHash } from "../../workload/bench/index.ts";
import { defineCommand } from "../command.ts";
import { jsonFlag, withDefault } from "../flags.ts";
import { integer } from "../kinds.ts";
import { printRecord } from "../output.ts";

export const command = defineCommand({
  description: [
    "Times the digests of all blocks of one prompt, made in one pass, against one plain " +
      "BLAKE3 over the same bytes in the same run. Figures are medians.",
    "blake3_gbps: plain BLAKE3, GB/s on one core. prompt_15k_us: all digests of the prompt, in " +
      "microseconds. blocks: how many digests that are. plain_us: the plain hash. ratio: the one " +
      "over the other.",
  ],
  arguments: {},
  flags: {
    runs: withDefault(integer({ min: 1, max: 100_000 }), 1_000, "measurements of each of the two"),
    json: jsonFlag,
  },
  examples: [
    { words: "bench hash", what: "a prompt of 15,000 tokens in blocks of 64" },
    { words: "bench hash --json", what: "the same as one line of JSON" },
  ],
  exits: ["hostCannot"],
  async run({ flags, io }) {
    const { blake3Gbps, promptUs, blocks, plainUs, ratio } = benchHash(loadNative(), flags);
    const record = {
      blake3_gbps: blake3Gbps,
      prompt_15k_us: promptUs,
      blocks,
      plain_us: plainUs,
      ratio,
    };
    printRecord(io, record, flags.json);
    return "ok";
  },
});
