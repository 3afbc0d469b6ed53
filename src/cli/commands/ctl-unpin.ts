import { unpin } from "../../control/client/index.ts";
import { defineCommand } from "../command.ts";
import {
  BLOCKS_HELP,
  blockNameOrInput,
  CTL_EXITS,
  ownedFlags,
  ownerOf,
  readBlocks,
  sendCommand,
} from "../ctl/index.ts";
import { restArguments } from "../flags.ts";

export const command = defineCommand({
  description: [
    "Takes one of an owner's pins from each block. Another owner's pins stay; without a pin of " +
      "this owner the block is as it should be already. Nothing is evicted by it: the blocks age " +
      "again.",
  ],
  arguments: { blocks: restArguments(blockNameOrInput, BLOCKS_HELP) },
  flags: ownedFlags,
  examples: [
    { words: "ctl unpin 1234567890", what: "the pin of whoever the agent takes the caller for" },
    { words: "ctl unpin --owner team-a -", what: "team-a's pins of the blocks on standard input" },
  ],
  exits: CTL_EXITS,
  async run({ flags, arguments: { blocks }, ...rest }) {
    const wish = unpin(await readBlocks(blocks), ownerOf(flags));
    return sendCommand({ name: "ctl unpin", flags, ...rest }, wish);
  },
});
