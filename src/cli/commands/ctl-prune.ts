import { prune } from "../../control/client/index.ts";
import { defineCommand } from "../command.ts";
import { blockName, CTL_EXITS, commandFlags, sendCommand } from "../ctl/index.ts";
import { requiredArgument } from "../flags.ts";

export const command = defineCommand({
  description: [
    "Drops from all tiers what builds upon a block; the block itself stays. What pins, leases, " +
      "sessions or engines hold stays too, with what it builds upon: it is listed with its " +
      "holder.",
  ],
  arguments: { after: requiredArgument(blockName, "the last block that stays") },
  flags: commandFlags,
  examples: [
    { words: "ctl prune 1234567890", what: "forget what follows this block" },
    { words: "ctl prune --deadline 10m 1234567890", what: "with time for millions of blocks" },
  ],
  exits: CTL_EXITS,
  async run({ flags, arguments: { after }, ...rest }) {
    return sendCommand({ name: "ctl prune", flags, ...rest }, prune(after));
  },
});
