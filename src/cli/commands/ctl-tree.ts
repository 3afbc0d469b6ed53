import { defineCommand } from "../command.ts";
import {
  Asking,
  blockName,
  bytesOf,
  holdersOf,
  listOf,
  type Members,
  nameOf,
  READ_EXITS,
  readFlags,
  readPages,
  secondsOf,
  textOf,
} from "../ctl/index.ts";
import { optional, optionalArgument, withDefault } from "../flags.ts";
import { integer, text } from "../kinds.ts";
import { printJson, printRows, type Row, withoutZeros } from "../output.ts";

const LIMIT_MAX = 10_000_000;

export const command = defineCommand({
  description: [
    "Shows blocks below a root, parents before their children: where each is, who holds it, how " +
      "often and when it was used last. Without a root all blocks without a parent are roots.",
  ],
  arguments: { root: optionalArgument(blockName, "the block to begin with") },
  flags: {
    depth: withDefault(integer({ min: 0, max: 1_000_000 }), 16, "levels below the root"),
    limit: withDefault(integer({ min: 1, max: LIMIT_MAX }), 100, "blocks at most"),
    after: optional(text("TEXT"), "go on behind the page that said so"),
    fields: optional(text("NAME,…"), "these members of each block alone"),
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
    // Whoever asks knows the engine's hash; it does not tell one layer from another.
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
