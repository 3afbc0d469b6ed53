import {
  flush,
  pause,
  pin,
  prune,
  renewLease,
  retain,
  revokeLease,
  think,
  unpin,
  type WireCommand,
  warm,
} from "../../control/client/index.ts";
import { integerKind, textKind } from "../../core/index.ts";
import {
  type ArgumentTable,
  type ArgumentValues,
  type Command,
  defineCommand,
  type FlagTable,
  type FlagValues,
  fileKind,
  nameKind,
  optional,
  repeated,
  required,
  requiredArgument,
  restArguments,
  toggle,
} from "../command.ts";
import { Asking, READ_EXITS } from "../ctl/ask.ts";
import { commandFlags, ownedFlags, readFlags, seconds } from "../ctl/connect.ts";
import { membersOf } from "../ctl/documents.ts";
import { BLOCKS_HELP, blockName, blockNameOrInput, readBlocks, readCommand } from "../ctl/input.ts";
import { CTL_EXITS, sendCommand } from "../ctl/send-command.ts";
import { printJson } from "../terminal.ts";

interface ControlCommand<Flags extends FlagTable, Arguments extends ArgumentTable>
  extends Pick<Command<Flags, Arguments>, "description" | "arguments" | "flags" | "examples"> {
  /** Returns the control command to send. */
  command(
    flags: FlagValues<Flags>,
    given: ArgumentValues<Arguments>,
  ): WireCommand | Promise<WireCommand>;
}

/** Defines a subcommand that sends one control command and prints its receipt. */
function control<const Flags extends typeof commandFlags, const Arguments extends ArgumentTable>(
  name: string,
  { command, ...rest }: ControlCommand<Flags, Arguments>,
): Command<Flags, Arguments> {
  return {
    ...rest,
    exits: CTL_EXITS,
    async run({ flags, arguments: given, ...context }) {
      // The compiler cannot infer that the flags of this command include `commandFlags`.
      const sending = flags as FlagValues<typeof commandFlags>;
      return sendCommand({ name, flags: sending, ...context }, await command(flags, given));
    },
  };
}

/** Returns the members that are not null. */
function givenOf<Members extends object>(members: Members): GivenOf<Members> {
  const given = Object.entries(members).filter(([, value]) => value !== null);
  return Object.fromEntries(given) as GivenOf<Members>;
}

type GivenOf<Members> = {
  readonly [Name in keyof Members]?: NonNullable<Members[Name]>;
};

const blockArguments = { blocks: restArguments(blockNameOrInput, BLOCKS_HELP) };

export const ctlPinCommand = control("ctl pin", {
  description: [
    "Keeps blocks and their ancestors on the host until the pin is removed or expires, also " +
      "across restarts. A pinned block may move from RAM to SSD. Pins are counted: a block that " +
      "one owner pinned twice must be unpinned twice.",
    "A block that is neither in RAM nor on SSD is `missing`, and nothing changes. Pins above " +
      "the budget are rejected with its figures.",
  ],
  arguments: blockArguments,
  flags: {
    ttl: optional(seconds, "time to live; without it the pin never expires"),
    ...ownedFlags,
  },
  examples: [
    { words: "ctl pin 1234567890 -42", what: "two blocks by the engine's hashes" },
    {
      words: "ctl pin --ttl 1h --owner team-a -",
      what: "blocks on standard input, for an hour",
    },
    {
      words: "ctl pin --nats nats://127.0.0.1:4222 --worker node-1 --json 111",
      what: "through NATS, the receipt on one line",
    },
  ],
  command: async ({ ttl, owner }, { blocks }) =>
    pin(await readBlocks(blocks), givenOf({ ttl_seconds: ttl, owner })),
});

export const ctlUnpinCommand = control("ctl unpin", {
  description: [
    "Removes one of an owner's pins from each block. Pins of other owners stay; a block " +
      "without a pin of this owner is `already` done. The command evicts nothing: the blocks " +
      "age normally again.",
  ],
  arguments: blockArguments,
  flags: ownedFlags,
  examples: [
    { words: "ctl unpin 1234567890", what: "the pin of the caller" },
    { words: "ctl unpin --owner team-a -", what: "team-a's pins of the blocks on standard input" },
  ],
  command: async ({ owner }, { blocks }) => unpin(await readBlocks(blocks), givenOf({ owner })),
});

export const ctlRetainCommand = control("ctl retain", {
  description: [
    "Soft-pins blocks: they are evicted after other blocks, without a guarantee. The priority " +
      "is halved with each idle period; under memory pressure the lowest priority is evicted " +
      "first. Soft pins do not count against a budget.",
  ],
  arguments: blockArguments,
  flags: {
    priority: required(integerKind({ min: 0, max: 99 }), "1 to 99, or 0 to remove the soft pin"),
    idle: optional(seconds, "the idle period; defaults to the agent's configuration"),
    ...ownedFlags,
  },
  examples: [
    { words: "ctl retain --priority 50 1234567890", what: "a block that is likely to be reused" },
    {
      words: "ctl retain --priority 99 --idle 10m -",
      what: "blocks on standard input, for a while",
    },
  ],
  command: async ({ priority, idle, owner }, { blocks }) =>
    retain(await readBlocks(blocks), priority, givenOf({ retain_seconds: idle, owner })),
});

export const ctlPruneCommand = control("ctl prune", {
  description: [
    "Removes the descendants of a block from all tiers; the block itself stays. Blocks that " +
      "pins, leases, sessions or engines protect stay too, with their ancestors, and are listed " +
      "with their holders.",
  ],
  arguments: { after: requiredArgument(blockName, "the last block that stays") },
  flags: commandFlags,
  examples: [
    { words: "ctl prune 1234567890", what: "remove all blocks after this one" },
    { words: "ctl prune --deadline 10m 1234567890", what: "with time for millions of blocks" },
  ],
  command: (_flags, { after }) => prune(after),
});

export const ctlThinkCommand = control("ctl think", {
  description: [
    "Marks blocks as transient: they are never written to SSD, and a copy there is deleted. " +
      "With --purge, marked blocks are removed at once; unmarked blocks are rejected and stay.",
  ],
  arguments: blockArguments,
  flags: { purge: toggle("drop the marked ones now"), ...commandFlags },
  examples: [
    { words: "ctl think 444 555", what: "reasoning tokens, which will not be reused" },
    { words: "ctl think --purge 444 555", what: "remove them" },
  ],
  command: async ({ purge }, { blocks }) => think(await readBlocks(blocks), !purge),
});

export const ctlPauseCommand = control("ctl pause", {
  description: [
    "Moves blocks from RAM to SSD at once and keeps them there under a lease. When the lease " +
      "ends, blocks without other protection are purged. `done` means that the blocks are on " +
      "disk.",
  ],
  arguments: blockArguments,
  flags: {
    lease: required(textKind("LEASE"), "name of the lease, to renew or revoke it by"),
    ttl: optional(seconds, "time to live; defaults to the maximum of the agent"),
    ...ownedFlags,
    owner: optional(nameKind, "owner of the lease; defaults to the issuer"),
  },
  examples: [
    {
      words: "ctl pause --lease session-abc --ttl 1h 666 777",
      what: "an idle conversation, for an hour",
    },
    { words: "ctl pause --lease session-abc -", what: "the blocks on standard input" },
  ],
  command: async ({ lease, ttl, owner }, { blocks }) =>
    pause(await readBlocks(blocks), lease, ttl, givenOf({ owner })),
});

export const ctlRenewCommand = control("ctl renew", {
  description: ["Sets the remaining time of a lease."],
  arguments: { lease: requiredArgument(textKind("LEASE"), "name of the lease") },
  flags: { ttl: required(seconds, "remaining time from now"), ...commandFlags },
  examples: [{ words: "ctl renew --ttl 2h session-abc", what: "two hours more" }],
  command: ({ ttl }, { lease }) => renewLease(lease, ttl),
});

export const ctlRevokeCommand = control("ctl revoke", {
  description: ["Ends a lease now. Its blocks are purged, except those with other protection."],
  arguments: { lease: requiredArgument(textKind("LEASE"), "name of the lease") },
  flags: commandFlags,
  examples: [{ words: "ctl revoke session-abc", what: "the conversation is over" }],
  command: (_flags, { lease }) => revokeLease(lease),
});

export const ctlWarmCommand = control("ctl warm", {
  description: [
    "Brings blocks from SSD or from peers to RAM in advance, with the lowest priority. With " +
      "--gpu they are then offered to the engine; `deferred` means that the engine has not taken " +
      "them.",
  ],
  arguments: blockArguments,
  flags: {
    gpu: toggle("offer the blocks to the engine's GPU"),
    source: repeated(textKind("WORKER"), "a worker that may have the blocks, tried first"),
    ...commandFlags,
  },
  examples: [
    { words: "ctl warm 1234567890", what: "one block" },
    { words: "ctl warm --deadline 10m -", what: "the blocks on standard input, with progress" },
  ],
  command: async ({ gpu, source }, { blocks }) =>
    warm(
      await readBlocks(blocks),
      givenOf({
        target: gpu ? ("GPU" as const) : null,
        sources: source.length > 0 ? source : null,
      }),
    ),
});

export const ctlFlushCommand = control("ctl flush", {
  description: [
    "Removes all unprotected blocks from RAM and SSD. Pinned, leased and used blocks stay, with " +
      "their ancestors; the receipt lists their number and holders.",
  ],
  arguments: {},
  flags: commandFlags,
  examples: [
    { words: "ctl flush", what: "the agent of this host" },
    { words: "ctl flush --deadline 5m --json", what: "a large one; the receipt on one line" },
  ],
  command: () => flush(),
});

export const ctlUnfenceCommand = defineCommand({
  description: [
    "Resets the highest epoch and sequence number of an issuer, and its proven name. The next " +
      "command of the issuer is accepted with any epoch. Needs the role purge.",
  ],
  arguments: { issuer: requiredArgument(textKind("ISSUER"), "name of the issuer") },
  flags: readFlags,
  examples: [{ words: "ctl unfence router-1", what: "after a command with a wrong epoch" }],
  exits: READ_EXITS,
  async run({ flags, arguments: { issuer }, ...rest }) {
    await using asking = await Asking.open({ name: "ctl unfence", flags, ...rest });
    const answer = await asking.post("/v1/unfence", { issuer });
    if (!answer.ok) return answer.exit;
    if (flags.json) printJson(rest.io, answer.document);
    else rest.io.out.write(`${membersOf(answer.document).scopes} scopes reset\n`);
    return "ok";
  },
});

export const ctlSendCommand = control("ctl send", {
  description: [
    "Sends a command from a JSON file, with 64-bit integers, and adds an id if it has none.",
  ],
  arguments: { file: requiredArgument(fileKind, "the command; - reads standard input") },
  flags: commandFlags,
  examples: [
    { words: "ctl send command.json", what: "to the agent of this host" },
    {
      words: "ctl send --nats nats://127.0.0.1:4222 --broadcast --json -",
      what: "from standard input to all workers; a receipt a line",
    },
  ],
  command: (_flags, { file }) => readCommand(file),
});
