import { defineCommand } from "../command.ts";
import { holdFlags, printHolds, READ_EXITS, readFlags } from "../ctl/index.ts";
import { toggle } from "../flags.ts";

export const command = defineCommand({
  description: [
    "Lists the pins of the host, who has them and how long they last, and what room there is for " +
      "more. With --soft those that only prefer (see `hearth ctl retain`).",
  ],
  arguments: {},
  flags: { soft: toggle("soft pins instead of hard ones"), ...holdFlags, ...readFlags },
  examples: [
    { words: "ctl pins", what: "all pins, and the budget" },
    { words: "ctl pins --owner team-a --json", what: "one owner's, as the agent answers" },
  ],
  exits: READ_EXITS,
  async run({ flags, ...rest }) {
    const what = { path: "/v1/pins", list: "pins", kind: flags.soft ? "retain" : "pin" };
    return printHolds({ name: "ctl pins", flags, ...rest }, what);
  },
});
