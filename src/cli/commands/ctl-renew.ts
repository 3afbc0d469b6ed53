import { renewLease } from "../../control/client/index.ts";
import { defineCommand } from "../command.ts";
import { CTL_EXITS, commandFlags, seconds, sendCommand } from "../ctl/index.ts";
import { required, requiredArgument } from "../flags.ts";
import { text } from "../kinds.ts";

export const command = defineCommand({
  description: ["Lets a lease run for so long from now, whatever it had left."],
  arguments: { lease: requiredArgument(text("LEASE"), "name of the lease") },
  flags: { ttl: required(seconds, "how long from now"), ...commandFlags },
  examples: [{ words: "ctl renew --ttl 2h session-abc", what: "two hours more" }],
  exits: CTL_EXITS,
  async run({ flags, arguments: { lease }, ...rest }) {
    return sendCommand({ name: "ctl renew", flags, ...rest }, renewLease(lease, flags.ttl));
  },
});
