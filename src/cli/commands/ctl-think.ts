import { think } from "../../control/client/index.ts";
import { defineCommand } from "../command.ts";
import {
  BLOCKS_HELP,
  blockNameOrInput,
  CTL_EXITS,
  commandFlags,
  readBlocks,
  sendCommand,
} from "../ctl/index.ts";
import { restArguments, toggle } from "../flags.ts";

export const command = defineCommand({
  description: [
    "Marks blocks as transient: they are never written to SSD, and a copy there is deleted. With " +
      "--purge those that are marked go at once; what is not marked is rejected and stays.",
  ],
  arguments: { blocks: restArguments(blockNameOrInput, BLOCKS_HELP) },
  flags: { purge: toggle("drop the marked ones now"), ...commandFlags },
  examples: [
    { words: "ctl think 444 555", what: "reasoning tokens, which nobody will ask for again" },
    { words: "ctl think --purge 444 555", what: "and now they may go" },
  ],
  exits: CTL_EXITS,
  async run({ flags, arguments: { blocks }, ...rest }) {
    const wish = think(await readBlocks(blocks), !flags.purge);
    return sendCommand({ name: "ctl think", flags, ...rest }, wish);
  },
});
