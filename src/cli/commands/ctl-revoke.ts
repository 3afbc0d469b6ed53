import { revokeLease } from "../../control/client/index.ts";
import { defineCommand } from "../command.ts";
import { CTL_EXITS, commandFlags, sendCommand } from "../ctl/index.ts";
import { requiredArgument } from "../flags.ts";
import { text } from "../kinds.ts";

export const command = defineCommand({
  description: ["Ends a lease now. Its blocks are purged, except those that something else holds."],
  arguments: { lease: requiredArgument(text("LEASE"), "name of the lease") },
  flags: commandFlags,
  examples: [{ words: "ctl revoke session-abc", what: "the conversation is over" }],
  exits: CTL_EXITS,
  async run({ flags, arguments: { lease }, ...rest }) {
    return sendCommand({ name: "ctl revoke", flags, ...rest }, revokeLease(lease));
  },
});
