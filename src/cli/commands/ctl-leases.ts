import { defineCommand } from "../command.ts";
import { holdFlags, printHolds, READ_EXITS, readFlags } from "../ctl/index.ts";

export const command = defineCommand({
  description: [
    "Lists the leases of what was paused: by whom, how many blocks, and how long they have left.",
  ],
  arguments: {},
  flags: { ...holdFlags, ...readFlags },
  examples: [
    { words: "ctl leases", what: "all leases" },
    { words: "ctl leases --owner router-1 --json", what: "one owner's, as the agent answers" },
  ],
  exits: READ_EXITS,
  async run({ flags, ...rest }) {
    const what = { path: "/v1/leases", list: "leases", kind: null };
    return printHolds({ name: "ctl leases", flags, ...rest }, what);
  },
});
