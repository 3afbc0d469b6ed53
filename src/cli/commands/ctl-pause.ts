import { pause } from "../../control/client/index.ts";
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
import { text } from "../kinds.ts";

export const command = defineCommand({
  description: [
    "Moves blocks from RAM to SSD at once and keeps them there under a lease. When the lease " +
      "ends, what nothing else holds is purged. `done` means that they are on disk.",
  ],
  arguments: { blocks: restArguments(blockNameOrInput, BLOCKS_HELP) },
  flags: {
    lease: required(text("LEASE"), "name of the lease, to renew or revoke it by"),
    ttl: optional(seconds, "how long; as long as the agent allows unless given"),
    ...ownedFlags,
    owner: optional(text("NAME"), "whose lease; the issuer's unless given"),
  },
  examples: [
    {
      words: "ctl pause --lease session-abc --ttl 1h 666 777",
      what: "an idle conversation, for an hour",
    },
    { words: "ctl pause --lease session-abc -", what: "the blocks on standard input" },
  ],
  exits: CTL_EXITS,
  async run({ flags, arguments: { blocks }, ...rest }) {
    const names = await readBlocks(blocks);
    const wish = pause(names, flags.lease, flags.ttl, ownerOf(flags));
    return sendCommand({ name: "ctl pause", flags, ...rest }, wish);
  },
});
