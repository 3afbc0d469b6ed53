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
  warm,
} from "../../control/client/index.ts";
import {
  defineCommand,
  optional,
  repeated,
  required,
  requiredArgument,
  restArguments,
  toggle,
} from "../command.ts";
import { Asking, READ_EXITS } from "../ctl/ask.ts";
import { commandFlags, ownedFlags, ownerOf, readFlags, seconds } from "../ctl/connect.ts";
import { membersOf } from "../ctl/documents.ts";
import { BLOCKS_HELP, blockName, blockNameOrInput, readBlocks, readCommand } from "../ctl/input.ts";
import { CTL_EXITS, sendCommand } from "../ctl/send-command.ts";
import { integer, text } from "../kinds.ts";
import { printJson } from "../terminal.ts";

export const ctlPinCommand = defineCommand({
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

export const ctlUnpinCommand = defineCommand({
  description: [
    "Takes one of an owner's pins from each block. Another owner's pins stay; without a pin of " +
      "this owner the block is as it should be already. Nothing is evicted by it: the blocks age " +
      "again.",
  ],
  arguments: { blocks: restArguments(blockNameOrInput, BLOCKS_HELP) },
  flags: ownedFlags,
  examples: [
    { words: "ctl unpin 1234567890", what: "the pin of whoever the agent takes the caller for" },
    { words: "ctl unpin --owner team-a -", what: "team-a's pins of the blocks on standard input" },
  ],
  exits: CTL_EXITS,
  async run({ flags, arguments: { blocks }, ...rest }) {
    const wish = unpin(await readBlocks(blocks), ownerOf(flags));
    return sendCommand({ name: "ctl unpin", flags, ...rest }, wish);
  },
});

export const ctlRetainCommand = defineCommand({
  description: [
    "Prefers blocks over others without a promise: they stay while there is room that nobody " +
      "needs more. The priority is halved with each idle period; where room is short, the lowest " +
      "go first. It counts against no budget.",
  ],
  arguments: { blocks: restArguments(blockNameOrInput, BLOCKS_HELP) },
  flags: {
    priority: required(integer({ min: 0, max: 99 }), "1 to 99, or 0: take the preference back"),
    idle: optional(seconds, "the idle period; the agent's own unless given"),
    ...ownedFlags,
  },
  examples: [
    { words: "ctl retain --priority 50 1234567890", what: "a block that is likely to come again" },
    {
      words: "ctl retain --priority 99 --idle 10m -",
      what: "blocks on standard input, for a while",
    },
  ],
  exits: CTL_EXITS,
  async run({ flags, arguments: { blocks }, ...rest }) {
    const idle = flags.idle === null ? {} : { retain_seconds: flags.idle };
    const members = { ...idle, ...ownerOf(flags) };
    const wish = retain(await readBlocks(blocks), flags.priority, members);
    return sendCommand({ name: "ctl retain", flags, ...rest }, wish);
  },
});

export const ctlPruneCommand = defineCommand({
  description: [
    "Drops from all tiers what builds upon a block; the block itself stays. What pins, leases, " +
      "sessions or engines hold stays too, with what it builds upon: it is listed with its " +
      "holder.",
  ],
  arguments: { after: requiredArgument(blockName, "the last block that stays") },
  flags: commandFlags,
  examples: [
    { words: "ctl prune 1234567890", what: "forget what follows this block" },
    { words: "ctl prune --deadline 10m 1234567890", what: "with time for millions of blocks" },
  ],
  exits: CTL_EXITS,
  async run({ flags, arguments: { after }, ...rest }) {
    return sendCommand({ name: "ctl prune", flags, ...rest }, prune(after));
  },
});

export const ctlThinkCommand = defineCommand({
  description: [
    "Marks blocks as transient: they are never written to SSD, and a copy there is deleted. With " +
      "--purge those that are marked go at once; what is not marked is rejected and stays.",
  ],
  arguments: { blocks: restArguments(blockNameOrInput, BLOCKS_HELP) },
  flags: { purge: toggle("drop the marked ones now"), ...commandFlags },
  examples: [
    { words: "ctl think 444 555", what: "reasoning tokens, which nobody will ask for again" },
    { words: "ctl think --purge 444 555", what: "and now they may go" },
  ],
  exits: CTL_EXITS,
  async run({ flags, arguments: { blocks }, ...rest }) {
    const wish = think(await readBlocks(blocks), !flags.purge);
    return sendCommand({ name: "ctl think", flags, ...rest }, wish);
  },
});

export const ctlPauseCommand = defineCommand({
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

export const ctlRenewCommand = defineCommand({
  description: ["Lets a lease run for so long from now, whatever it had left."],
  arguments: { lease: requiredArgument(text("LEASE"), "name of the lease") },
  flags: { ttl: required(seconds, "how long from now"), ...commandFlags },
  examples: [{ words: "ctl renew --ttl 2h session-abc", what: "two hours more" }],
  exits: CTL_EXITS,
  async run({ flags, arguments: { lease }, ...rest }) {
    return sendCommand({ name: "ctl renew", flags, ...rest }, renewLease(lease, flags.ttl));
  },
});

export const ctlRevokeCommand = defineCommand({
  description: ["Ends a lease now. Its blocks are purged, except those that something else holds."],
  arguments: { lease: requiredArgument(text("LEASE"), "name of the lease") },
  flags: commandFlags,
  examples: [{ words: "ctl revoke session-abc", what: "the conversation is over" }],
  exits: CTL_EXITS,
  async run({ flags, arguments: { lease }, ...rest }) {
    return sendCommand({ name: "ctl revoke", flags, ...rest }, revokeLease(lease));
  },
});

export const ctlWarmCommand = defineCommand({
  description: [
    "Brings blocks from SSD, or from other hosts, up to RAM before anybody asks for them, with " +
      "the lowest priority. With --gpu they are then offered to the engine; deferred means that " +
      "it has not taken them.",
  ],
  arguments: { blocks: restArguments(blockNameOrInput, BLOCKS_HELP) },
  flags: {
    gpu: toggle("on to the GPU, where the engine takes them"),
    source: repeated(text("WORKER"), "a worker that may have them, asked before others"),
    ...commandFlags,
  },
  examples: [
    { words: "ctl warm 1234567890", what: "one block" },
    { words: "ctl warm --deadline 10m -", what: "the blocks on standard input, with progress" },
  ],
  exits: CTL_EXITS,
  async run({ flags, arguments: { blocks }, ...rest }) {
    const sources = flags.source.length === 0 ? {} : { sources: flags.source };
    const target = flags.gpu ? ({ target: "GPU" } as const) : {};
    const wish = warm(await readBlocks(blocks), { ...target, ...sources });
    return sendCommand({ name: "ctl warm", flags, ...rest }, wish);
  },
});

export const ctlFlushCommand = defineCommand({
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

export const ctlUnfenceCommand = defineCommand({
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

export const ctlSendCommand = defineCommand({
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
