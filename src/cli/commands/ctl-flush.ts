import { flush } from "../../control/client/index.ts";
import { defineCommand } from "../command.ts";
import { CTL_EXITS, commandFlags, sendCommand } from "../ctl/index.ts";

export const command = defineCommand({
  description: [
    "Empties RAM and SSD of everything that nothing holds. Pinned, leased and used blocks stay, " +
      "with what they build upon; the answer says how many and who holds them.",
  ],
  arguments: {},
  flags: commandFlags,
  examples: [
    { words: "ctl flush", what: "the agent of this host" },
    { words: "ctl flush --deadline 5m --json", what: "a large one; the receipt on one line" },
  ],
  exits: CTL_EXITS,
  async run({ flags, ...rest }) {
    return sendCommand({ name: "ctl flush", flags, ...rest }, flush());
  },
});
