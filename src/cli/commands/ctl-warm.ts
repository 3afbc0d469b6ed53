import { warm } from "../../control/client/index.ts";
import { defineCommand } from "../command.ts";
import {
  BLOCKS_HELP,
  blockNameOrInput,
  CTL_EXITS,
  commandFlags,
  readBlocks,
  sendCommand,
} from "../ctl/index.ts";
import { repeated, restArguments, toggle } from "../flags.ts";
import { text } from "../kinds.ts";

export const command = defineCommand({
  description: [
    "Brings blocks from SSD, or from other hosts, up to RAM before anybody asks for them, with " +
      "the lowest priority. With --gpu they are then offered to the engine; deferred means that " +
      "it has not taken them.",
  ],
  arguments: { blocks: restArguments(blockNameOrInput, BLOCKS_HELP) },
  flags: {
    gpu: toggle("on to the GPU, where the engine takes them"),
    source: repeated(text("WORKER"), "a worker that may have them, asked before others"),
    ...commandFlags,
  },
  examples: [
    { words: "ctl warm 1234567890", what: "one block" },
    { words: "ctl warm --deadline 10m -", what: "the blocks on standard input, with progress" },
  ],
  exits: CTL_EXITS,
  async run({ flags, arguments: { blocks }, ...rest }) {
    const sources = flags.source.length === 0 ? {} : { sources: flags.source };
    const target = flags.gpu ? ({ target: "GPU" } as const) : {};
    const wish = warm(await readBlocks(blocks), { ...target, ...sources });
    return sendCommand({ name: "ctl warm", flags, ...rest }, wish);
  },
});
