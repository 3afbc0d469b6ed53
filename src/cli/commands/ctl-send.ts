import { defineCommand } from "../command.ts";
import { CTL_EXITS, commandFlags, readCommand, sendCommand } from "../ctl/index.ts";
import { requiredArgument } from "../flags.ts";
import { text } from "../kinds.ts";

export const command = defineCommand({
  description: [
    "Sends a command as it stands in a file, JSON with integers of 64 bits, and gives it an id " +
      "unless it has one.",
  ],
  arguments: { file: requiredArgument(text("FILE"), "the command; - reads standard input") },
  flags: commandFlags,
  examples: [
    { words: "ctl send command.json", what: "to the agent of this host" },
    {
      words: "ctl send --nats nats://127.0.0.1:4222 --broadcast --json -",
      what: "from standard input to all workers; a receipt a line",
    },
  ],
  exits: CTL_EXITS,
  async run({ flags, arguments: { file }, ...rest }) {
    const raw = await readCommand(file);
    return sendCommand({ name: "ctl send", flags, ...rest }, raw);
  },
});
