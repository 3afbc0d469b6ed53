import { defineCommand } from "../command.ts";
import { Asking, membersOf, READ_EXITS, readFlags } from "../ctl/index.ts";
import { requiredArgument } from "../flags.ts";
import { text } from "../kinds.ts";
import { printJson } from "../output.ts";

export const command = defineCommand({
  description: [
    "Forgets the highest epoch and number that an issuer has shown, and that it proved its name. " +
      "Its next command is taken, whatever its epoch. Needs the role purge.",
  ],
  arguments: { issuer: requiredArgument(text("ISSUER"), "name of the issuer") },
  flags: readFlags,
  examples: [
    { words: "ctl unfence router-1", what: "after a command with an epoch that nobody meant" },
  ],
  exits: READ_EXITS,
  async run({ flags, arguments: { issuer }, ...rest }) {
    await using asking = await Asking.open({ name: "ctl unfence", flags, ...rest });
    const answer = await asking.post("/v1/unfence", { issuer });
    if (!answer.ok) return answer.exit;
    if (flags.json) printJson(rest.io, answer.document);
    else rest.io.out.write(`${membersOf(answer.document).scopes} scopes forgotten\n`);
    return "ok";
  },
});
