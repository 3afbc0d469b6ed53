import { retain } from "../../control/client/index.ts";
import { defineCommand } from "../command.ts";
import {
  BLOCKS_HELP,
  blockNameOrInput,
  CTL_EXITS,
  ownedFlags,
  ownerOf,
  readBlocks,
  seconds,
  sendCommand,
} from "../ctl/index.ts";
import { optional, required, restArguments } from "../flags.ts";
import { integer } from "../kinds.ts";

export const command = defineCommand({
  description: [
    "Prefers blocks over others without a promise: they stay while there is room that nobody " +
      "needs more. The priority is halved with each idle period; where room is short, the lowest " +
      "go first. It counts against no budget.",
  ],
  arguments: { blocks: restArguments(blockNameOrInput, BLOCKS_HELP) },
  flags: {
    priority: required(integer({ min: 0, max: 99 }), "1 to 99, or 0: take the preference back"),
    idle: optional(seconds, "the idle period; the agent's own unless given"),
    ...ownedFlags,
  },
  examples: [
    { words: "ctl retain --priority 50 1234567890", what: "a block that is likely to come again" },
    {
      words: "ctl retain --priority 99 --idle 10m -",
      what: "blocks on standard input, for a while",
    },
  ],
  exits: CTL_EXITS,
  async run({ flags, arguments: { blocks }, ...rest }) {
    const idle = flags.idle === null ? {} : { retain_seconds: flags.idle };
    const members = { ...idle, ...ownerOf(flags) };
    const wish = retain(await readBlocks(blocks), flags.priority, members);
    return sendCommand({ name: "ctl retain", flags, ...rest }, wish);
  },
});
