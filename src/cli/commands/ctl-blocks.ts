import { HearthError, integerKind, type Json, textKind } from "../../core/index.ts";
import {
  defineCommand,
  type ExitName,
  fileKind,
  fileText,
  nameKind,
  optional,
  optionalArgument,
  restArguments,
  toggle,
  withDefault,
} from "../command.ts";
import {
  type Answer,
  type AskContext,
  type AskFlags,
  Asking,
  READ_EXITS,
  readPages,
} from "../ctl/ask.ts";
import { readFlags } from "../ctl/connect.ts";
import {
  bytesOf,
  holdersOf,
  listOf,
  type Members,
  membersOf,
  nameOf,
  secondsOf,
  textOf,
} from "../ctl/documents.ts";
import { BLOCKS_HELP, blockName, blockNameOrInput, readBlocks } from "../ctl/input.ts";
import { type Io, printJson, printRows, type Row, withoutZeros } from "../terminal.ts";

const LIMIT_MAX = 10_000_000;

export const ctlTreeCommand = defineCommand({
  description: [
    "Shows the blocks below a root, parents before their children: tiers, holders, uses and " +
      "idle time. Without a root, it starts at all blocks without a parent.",
  ],
  arguments: { root: optionalArgument(blockName, "the root block") },
  flags: {
    depth: withDefault(integerKind({ min: 0, max: 1_000_000 }), 16, "levels below the root"),
    limit: withDefault(integerKind({ min: 1, max: LIMIT_MAX }), 100, "blocks at most"),
    after: optional(textKind("TEXT"), "continue after the page that printed this"),
    fields: optional(textKind("NAME,…"), "only these members of each block"),
    ...readFlags,
  },
  examples: [
    { words: "ctl tree", what: "all roots and what builds upon them" },
    { words: "ctl tree 1234567890 --depth 2", what: "a block, its children and theirs" },
    { words: "ctl tree --fields digest,tiers,pins --limit 10000 --json", what: "for scripts" },
  ],
  exits: READ_EXITS,
  async run({ flags, arguments: { root }, ...rest }) {
    const { io } = rest;
    const { depth, limit, after, fields, json } = flags;
    await using asking = await Asking.open({ name: "ctl tree", flags, ...rest });
    const query = { root: root === null ? null : String(root), depth, fields };
    const rows: Row[] = [];
    const toRow = fields === null ? blockRow : (block: Members) => pickedRow(block, fields);
    const pages = await readPages(
      asking,
      { path: "/v1/tree", query, after, limit, list: "blocks" },
      (page) => {
        if (json) printJson(io, page);
        else rows.push(...listOf(page, "blocks").map(toRow));
      },
    );
    if (!pages.ok) return pages.exit;
    printRows(io, fields === null ? withoutZeros(rows, ["pins", "locks"]) : rows, false);
    if (!json && rows.length === 0) io.err.write("there are no blocks\n");
    if (pages.next !== null && !json) io.err.write(`there are more: --after ${pages.next}\n`);
    return "ok";
  },
});

function blockRow(block: Members): Row {
  const { depth, digest, layer, tiers, bytes, pins, locks, uses, idle_seconds, held_by } = block;
  const alias: unknown = Array.isArray(block.aliases) ? block.aliases[0] : undefined;
  const isWhole = layer === undefined || layer === 0xffff_ffff;
  return {
    depth: Number(depth ?? 0),
    // Shows the engine's hash if the block has one, because users know it. The hash does not
    // identify a layer.
    block: isWhole ? nameOf(alias ?? digest) : `${nameOf(digest)}/${textOf(layer)}`,
    tiers: textOf(tiers),
    bytes: bytesOf(bytes),
    pins: Number(pins ?? 0),
    locks: Number(locks ?? 0),
    uses: Number(uses ?? 0),
    idle: secondsOf(idle_seconds),
    "held by": holdersOf(held_by),
  };
}

function pickedRow(block: Members, fields: string): Row {
  return Object.fromEntries(
    fields
      .split(",")
      .map((name) => [name, name === "held_by" ? holdersOf(block[name]) : textOf(block[name])]),
  );
}

const ROWS_MAX = 20;

const TOKEN_MAX = 2 ** 32 - 1;

const KEY_DIGITS = 64;

const NAMESPACE = /^[0-9a-f]{1,64}$/;

export const ctlExplainCommand = defineCommand({
  description: [
    "Shows which blocks of a prompt are resident and on which tier, and why the first missing " +
      "block is missing: never stored, evicted, purged, in another namespace, or damaged. The " +
      "prompt is a list of blocks, or of tokens with their namespace.",
  ],
  arguments: { blocks: restArguments(blockNameOrInput, BLOCKS_HELP) },
  flags: {
    tokens: optional(fileKind, "the prompt's tokens, numbers separated by blanks or commas"),
    namespace: optional(
      textKind("HEX"),
      "with --tokens: key of the namespace in hex, or a prefix of it (see `hearth ctl status`)",
    ),
    blockTokens: optional(integerKind({ min: 1, max: 65_536 }), "with --tokens: tokens of a block"),
    layer: optional(integerKind({ min: 0, max: TOKEN_MAX }), "with --tokens: only this layer"),
    ...readFlags,
  },
  examples: [
    { words: "ctl explain 111 222 333", what: "three blocks, the first ones first" },
    {
      words: "ctl explain --tokens prompt.txt --block-tokens 64 --namespace $KEY",
      what: "a prompt",
    },
  ],
  exits: READ_EXITS,
  async run({ flags, arguments: { blocks }, ...rest }) {
    const given = await bodyOf(flags, blocks);
    await using asking = await Asking.open({ name: "ctl explain", flags, ...rest });
    const whole = await withNamespace(asking, given);
    if (!whole.ok) return whole.exit;
    const body = whole.document;
    const answer = await asking.post("/v1/explain", body);
    if (!answer.ok) return answer.exit;
    if (flags.json) printJson(rest.io, answer.document);
    else printExplanation(rest.io, answer.document);
    return "ok";
  },
});

interface Prompt {
  readonly tokens: string | null;
  readonly namespace: string | null;
  readonly blockTokens: number | null;
  readonly layer: number | null;
}

async function bodyOf(flags: Prompt, blocks: readonly (number | bigint | string)[]): Promise<Json> {
  const { tokens: file, namespace, blockTokens, layer } = flags;
  if (file === null) return { names: [...(await readBlocks(blocks))] };
  if (blocks.length > 0) throw new HearthError("USAGE", "give blocks or --tokens, not both");
  if (namespace === null || blockTokens === null) {
    throw new HearthError("USAGE", "--tokens needs --namespace and --block-tokens");
  }
  const key = namespace.toLowerCase();
  if (!NAMESPACE.test(key))
    throw new HearthError("USAGE", "--namespace must be up to 64 hex digits");
  const tokens = await tokensIn(file);
  return {
    tokens,
    namespace: key,
    block_tokens: blockTokens,
    ...(layer === null ? {} : { layer }),
  };
}

/**
 * Replaces an abbreviated namespace key in `body` by the full key. Throws USAGE if several keys
 * begin with it.
 */
async function withNamespace(asking: Asking, body: Json): Promise<Answer> {
  const { namespace: start } = membersOf(body);
  const isWhole = typeof start !== "string" || start.length === KEY_DIGITS;
  if (isWhole) return { ok: true, document: body };
  const answer = await asking.get("/v1/status");
  if (!answer.ok) return answer;
  const { namespaces } = membersOf(answer.document);
  const keys = Array.isArray(namespaces) ? namespaces.map(String) : [];
  const [namespace, other] = keys.filter((key) => key.startsWith(start));
  if (namespace !== undefined && other === undefined) {
    return { ok: true, document: { ...(body as { [key: string]: Json }), namespace } };
  }
  const how = namespace === undefined ? "no namespace" : "more than one namespace";
  throw new HearthError("USAGE", `${how} of the agent begins with ${start}`, {
    fix: "see `hearth ctl status` for their keys",
  });
}

async function tokensIn(file: string): Promise<number[]> {
  const words = (await fileText(file)).split(/[\s,[\]]+/).filter((word) => word !== "");
  return words.map((word) => {
    const token = Number(word);
    if (/^[0-9]{1,10}$/.test(word) && token <= TOKEN_MAX) return token;
    throw new HearthError("USAGE", `${file} holds "${word.slice(0, 40)}", which is not a token`);
  });
}

/** Prints the leading blocks of a prompt, and the first missing one with the reason. */
function printExplanation(io: Io, document: Json): void {
  const { leading, miss, peers } = membersOf(document);
  const blocks = listOf(document, "blocks");
  printRows(
    io,
    blocks.slice(0, ROWS_MAX).map(({ name, tier }, index) => ({
      index,
      block: nameOf(name),
      tier: tier === null ? "missing" : textOf(tier),
    })),
    false,
  );
  if (blocks.length > ROWS_MAX) io.out.write(`and ${blocks.length - ROWS_MAX} more\n`);
  io.out.write(`${textOf(leading)} of ${blocks.length} blocks hit in a row\n`);
  if (miss === null || miss === undefined) return;
  const { index, kind, text: words } = membersOf(miss);
  const block = blocks[Number(index)];
  const name = block === undefined ? "" : ` (${nameOf(block.name)})`;
  io.out.write(`block ${textOf(index)}${name}: ${textOf(kind)}: ${textOf(words)}\n`);
  if (peers === null || peers === undefined) return;
  const { promised, why_not } = membersOf(peers);
  io.out.write(`peers are expected to have ${textOf(promised)} blocks from there on`);
  io.out.write(why_not === null ? "\n" : `: ${textOf(why_not)}\n`);
}

export const holdFlags = {
  owner: optional(nameKind, "only those of this owner"),
  limit: withDefault(integerKind({ min: 1, max: 10_000_000 }), 1_000, "entries at most"),
  after: optional(integerKind({ min: 0 }), "continue after this id"),
};

export const ctlPinsCommand = defineCommand({
  description: [
    "Lists the pins of the host with their owners and remaining time, and the pin budget. With " +
      "--soft it lists soft pins (see `hearth ctl retain`).",
  ],
  arguments: {},
  flags: { soft: toggle("soft pins instead of hard ones"), ...holdFlags, ...readFlags },
  examples: [
    { words: "ctl pins", what: "all pins, and the budget" },
    { words: "ctl pins --owner team-a --json", what: "one owner's, as the agent answers" },
  ],
  exits: READ_EXITS,
  async run({ flags, ...rest }) {
    const what = { path: "/v1/pins", list: "pins", kind: flags.soft ? "retain" : "pin" };
    return printHolds({ name: "ctl pins", flags, ...rest }, what);
  },
});

export const ctlLeasesCommand = defineCommand({
  description: ["Lists the leases of paused blocks: owner, number of blocks, and remaining time."],
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

interface HoldFlags extends AskFlags {
  readonly owner: string | null;
  readonly limit: number;
  readonly after: number | null;
}

interface HoldList {
  readonly path: string;
  /** Name of the list in a reply. */
  readonly list: string;
  readonly kind: string | null;
}

/**
 * Prints a table of pins or leases, then the budget. With `--json` prints the agent's replies, one
 * page per line.
 */
export async function printHolds(
  context: AskContext & { readonly flags: HoldFlags },
  { path, list, kind }: HoldList,
): Promise<ExitName> {
  const { io, flags } = context;
  const { owner, limit, after, json } = flags;
  await using asking = await Asking.open(context);
  const rows: Row[] = [];
  let budget: Members = {};
  const pages = await readPages(
    asking,
    { path, query: { owner, kind }, after, limit, list },
    (page) => {
      if (json) printJson(io, page);
      rows.push(...listOf(page, list).map(holdRow));
      budget = membersOf(membersOf(page).budget);
    },
  );
  if (!pages.ok) return pages.exit;
  if (json) return "ok";
  printRows(io, rows, false);
  if (rows.length === 0) io.err.write(`there are no ${list}\n`);
  if (pages.next !== null) io.err.write(`there are more: --after ${pages.next}\n`);
  io.out.write(budgetLines(budget));
  return "ok";
}

function holdRow(hold: Members): Row {
  const { id, kind, owner, name, blocks, bytes, remaining_seconds, priority, priority_now } = hold;
  const isSoft = kind === "retain";
  return {
    id: textOf(id),
    ...(kind === "lease" ? { lease: textOf(name) } : {}),
    owner: textOf(owner),
    blocks: textOf(blocks),
    bytes: bytesOf(bytes),
    left: secondsOf(remaining_seconds),
    ...(isSoft
      ? {
          priority: textOf(priority),
          now: decimalOf(priority_now),
          halves: secondsOf(hold.retain_seconds),
        }
      : {}),
  };
}

/** Formats a number with few decimals (`12.5`): a decayed priority has many irrelevant digits. */
function decimalOf(value: unknown): string {
  return typeof value === "number" ? String(Number(value.toFixed(1))) : textOf(value);
}

function budgetLines(budget: Members): string {
  const line = (who: string, used: unknown, all: unknown) =>
    `${who.padEnd(6)} ${bytesOf(used)} of ${bytesOf(all)} of the pin and lease budget\n`;
  const { host_used_bytes, host_budget_bytes, owner_used_bytes, owner_budget_bytes } = budget;
  if (host_budget_bytes === undefined) return "";
  const owner =
    owner_budget_bytes === undefined ? "" : line("owner", owner_used_bytes, owner_budget_bytes);
  return `${line("host", host_used_bytes, host_budget_bytes)}${owner}`;
}
