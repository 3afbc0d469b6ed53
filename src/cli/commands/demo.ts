import { formatBytes } from "../../core/index.ts";
import { formatSummary, PREFILL_TOKENS_PER_S } from "../../replay/index.ts";
import { bundledTrace } from "../../traces/index.ts";
import { defineCommand } from "../command.ts";
import { jsonFlag, withDefault } from "../flags.ts";
import { bytes, integer } from "../kinds.ts";
import { printJson } from "../output.ts";
import { runReplay } from "../run-replay.ts";

const KIB = 1024;
const REQUESTS = 1000;

export const command = defineCommand({
  description: [
    "Starts an agent in a temporary folder and sends it a trace of real traffic: 1,000 " +
      "requests of Kimi users, recorded by Mooncake, in blocks of 512 tokens. An engine in " +
      "another process writes and reads the blocks through shared memory and proves every byte " +
      "it reads. Nothing is left behind.",
    "It takes --ram-blocks times --block-bytes of memory.",
  ],
  arguments: {},
  flags: {
    ramBlocks: withDefault(integer({ min: 300, max: 2 ** 22 }), 3000, "blocks that fit into RAM"),
    blockBytes: withDefault(bytes({ min: 64, max: 2 ** 28 }), 256 * KIB, "length of a block"),
    clients: withDefault(integer({ min: 1, max: 64 }), 1, "engines at the same time"),
    json: jsonFlag,
  },
  examples: [
    { words: "demo", what: "a live view, then the summary" },
    { words: "demo --ram-blocks 1000", what: "with less memory: fewer hits" },
    { words: "demo --json", what: "the summary as the last line" },
  ],
  exits: ["hostCannot", "wrongBytes", "interrupted"],
  async run({ flags, io, clock, interrupt }) {
    const { ramBlocks, blockBytes, clients, json } = flags;
    const trace = await bundledTrace();
    const room = `${ramBlocks} blocks of ${formatBytes(blockBytes)}`;
    if (!json) io.err.write(`${REQUESTS} recorded requests against an agent with ${room}\n`);
    const summary = await runReplay(
      { io, clock, interrupt },
      {
        trace,
        requests: REQUESTS,
        socketPath: null,
        ramBlocks,
        blockBytes,
        clients,
        speed: 0,
        requestsMax: Number.POSITIVE_INFINITY,
        json,
      },
    );
    if (json) printJson(io, summary);
    else io.out.write(`${formatSummary(summary, PREFILL_TOKENS_PER_S)}\n`);
    return summary.wrong_bytes === 0 ? "ok" : "wrongBytes";
  },
});
