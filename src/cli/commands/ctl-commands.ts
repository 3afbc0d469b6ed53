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
import { integerKind, textKind } from "../../core/index.ts";
import {
  defineCommand,
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
import { commandFlags, ownedFlags, ownerOf, readFlags, seconds } from "../ctl/connect.ts";
import { membersOf } from "../ctl/documents.ts";
import { BLOCKS_HELP, blockName, blockNameOrInput, readBlocks, readCommand } from "../ctl/input.ts";
import { CTL_EXITS, sendCommand } from "../ctl/send-command.ts";
import { printJson } from "../terminal.ts";

export const ctlPinCommand = defineCommand({
  description: [
    "Keeps blocks and their ancestors on the host until the pin is removed or expires, also " +
      "across restarts. A pinned block may move from RAM to SSD. Pins are counted: a block that " +
      "one owner pinned twice must be unpinned twice.",
    "A block that is neither in RAM nor on SSD is `missing`, and nothing changes. Pins above " +
      "the budget are rejected with its figures.",
  ],
  arguments: { blocks: restArguments(blockNameOrInput, BLOCKS_HELP) },
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
  exits: CTL_EXITS,
  async run({ flags, arguments: { blocks }, ...rest }) {
    const ttl = flags.ttl === null ? {} : { ttl_seconds: flags.ttl };
    const wish = pin(await readBlocks(blocks), { ...ttl, ...ownerOf(flags) });
    return sendCommand({ name: "ctl pin", flags, ...rest }, wish);
  },
});

export const ctlUnpinCommand = defineCommand({
  description: [
    "Removes one of an owner's pins from each block. Pins of other owners stay; a block " +
      "without a pin of this owner is `already` done. The command evicts nothing: the blocks " +
      "age normally again.",
  ],
  arguments: { blocks: restArguments(blockNameOrInput, BLOCKS_HELP) },
  flags: ownedFlags,
  examples: [
    { words: "ctl unpin 1234567890", what: "the pin of the caller" },
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
    "Soft-pins blocks: they are evicted after other blocks, without a guarantee. The priority " +
      "is halved with each idle period; under memory pressure the lowest priority is evicted " +
      "first. Soft pins do not count against a budget.",
  ],
  arguments: { blocks: restArguments(blockNameOrInput, BLOCKS_HELP) },
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
  exits: CTL_EXITS,
  async run({ flags, arguments: { after }, ...rest }) {
    return sendCommand({ name: "ctl prune", flags, ...rest }, prune(after));
  },
});

export const ctlThinkCommand = defineCommand({
  description: [
    "Marks blocks as transient: they are never written to SSD, and a copy there is deleted. " +
      "With --purge, marked blocks are removed at once; unmarked blocks are rejected and stay.",
  ],
  arguments: { blocks: restArguments(blockNameOrInput, BLOCKS_HELP) },
  flags: { purge: toggle("drop the marked ones now"), ...commandFlags },
  examples: [
    { words: "ctl think 444 555", what: "reasoning tokens, which will not be reused" },
    { words: "ctl think --purge 444 555", what: "remove them" },
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
      "ends, blocks without other protection are purged. `done` means that the blocks are on " +
      "disk.",
  ],
  arguments: { blocks: restArguments(blockNameOrInput, BLOCKS_HELP) },
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
  exits: CTL_EXITS,
  async run({ flags, arguments: { blocks }, ...rest }) {
    const names = await readBlocks(blocks);
    const wish = pause(names, flags.lease, flags.ttl, ownerOf(flags));
    return sendCommand({ name: "ctl pause", flags, ...rest }, wish);
  },
});

export const ctlRenewCommand = defineCommand({
  description: ["Sets the remaining time of a lease."],
  arguments: { lease: requiredArgument(textKind("LEASE"), "name of the lease") },
  flags: { ttl: required(seconds, "remaining time from now"), ...commandFlags },
  examples: [{ words: "ctl renew --ttl 2h session-abc", what: "two hours more" }],
  exits: CTL_EXITS,
  async run({ flags, arguments: { lease }, ...rest }) {
    return sendCommand({ name: "ctl renew", flags, ...rest }, renewLease(lease, flags.ttl));
  },
});

export const ctlRevokeCommand = defineCommand({
  description: ["Ends a lease now. Its blocks are purged, except those with other protection."],
  arguments: { lease: requiredArgument(textKind("LEASE"), "name of the lease") },
  flags: commandFlags,
  examples: [{ words: "ctl revoke session-abc", what: "the conversation is over" }],
  exits: CTL_EXITS,
  async run({ flags, arguments: { lease }, ...rest }) {
    return sendCommand({ name: "ctl revoke", flags, ...rest }, revokeLease(lease));
  },
});

export const ctlWarmCommand = defineCommand({
  description: [
    "Brings blocks from SSD or from peers to RAM in advance, with the lowest priority. With " +
      "--gpu they are then offered to the engine; `deferred` means that the engine has not taken " +
      "them.",
  ],
  arguments: { blocks: restArguments(blockNameOrInput, BLOCKS_HELP) },
  flags: {
    gpu: toggle("offer the blocks to the engine's GPU"),
    source: repeated(textKind("WORKER"), "a worker that may have the blocks, tried first"),
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
    "Removes all unprotected blocks from RAM and SSD. Pinned, leased and used blocks stay, with " +
      "their ancestors; the receipt lists their number and holders.",
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

export const ctlSendCommand = defineCommand({
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
  exits: CTL_EXITS,
  async run({ flags, arguments: { file }, ...rest }) {
    const raw = await readCommand(file);
    return sendCommand({ name: "ctl send", flags, ...rest }, raw);
  },
});
