import { pin } from "../../control/client/index.ts";
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
import { optional, restArguments } from "../flags.ts";

export const command = defineCommand({
  description: [
    "Keeps blocks, and all that they build upon, on the host until the pin is taken back or its " +
      "time is over, also across restarts. RAM may be given up for SSD. Pins are counted: what " +
      "one owner pinned twice must be unpinned twice.",
    "A block that is on neither RAM nor SSD is missing, and nothing changes. Pins have a budget; " +
      "beyond it they are rejected with its figures.",
  ],
  arguments: { blocks: restArguments(blockNameOrInput, BLOCKS_HELP) },
  flags: {
    ttl: optional(seconds, "how long; without it until it is unpinned"),
    ...ownedFlags,
  },
  examples: [
    { words: "ctl pin 1234567890 -42", what: "two blocks by the engine's hashes" },
    {
      words: "ctl pin --ttl 1h --owner team-a -",
      what: "those on standard input, for an hour",
    },
    {
      words: "ctl pin --nats nats://127.0.0.1:4222 --worker node-1 --json 111",
      what: "through NATS, the receipt on one line",
    },
  ],
  exits: CTL_EXITS,
  async run({ flags, arguments: { blocks }, ...rest }) {
    const ttl = flags.ttl === null ? {} : { ttl_seconds: flags.ttl };
    const wish = pin(await readBlocks(blocks), { ...ttl, ...ownerOf(flags) });
    return sendCommand({ name: "ctl pin", flags, ...rest }, wish);
  },
});
