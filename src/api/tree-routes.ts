import { Elysia, t } from "elysia";
import { type BlockName, readBlockName } from "../core/index.ts";
import { answerJson } from "./body.ts";
import { heldBy } from "./command-schema.ts";
import { described } from "./description.ts";
import { bytes, count, hex32, limitQuery, nullable, oneOf, seconds, snakeCase } from "./fields.ts";
import { refuse } from "./problem.ts";
import type { ControlServices } from "./services.ts";

/** Returns the route that lists the blocks of the prefix tree. */
export function treeRoutes(control: ControlServices) {
  return new Elysia().get(
    "/v1/tree",
    async ({ query: { root: text, depth = 16, limit = 100, after = null, fields } }) => {
      const root = text === undefined ? null : readBlockName(text);
      if (text !== undefined && root === null) return refuseName("root", text);
      const wanted = fields === undefined ? null : fields.split(",");
      const unknown = wanted?.find((name) => !BLOCK_FIELDS.includes(name));
      if (unknown !== undefined) {
        return refuse("REQUEST_INVALID", `unknown field ${unknown.slice(0, 40)}`, {
          fix: `use ${BLOCK_FIELDS.join(", ")}`,
        });
      }
      const page = await control.inspector.tree({ root, depthMax: depth, limit, after });
      if (page.missing) return whyMissing(control, root, after);
      const blocks = page.blocks.map((one) => snakeCase(one));
      const shown = wanted === null ? blocks : blocks.map(picker(wanted));
      return answerJson({ blocks: shown, next: page.next });
    },
    {
      query: treeQuery,
      response: treeReport,
      detail: described("Lists the blocks below a root with pins, locks, tiers and last use", {
        404: "The root block is not known here",
      }),
    },
  );
}

/**
 * Returns the error for a page that does not exist. Without `after`, the only possible reason is a
 * missing root.
 */
async function whyMissing(
  control: ControlServices,
  root: BlockName | null,
  after: string | null,
): Promise<Response> {
  const isPlace =
    after !== null &&
    !(await control.inspector.tree({ root, depthMax: 0, limit: 1, after: null })).missing;
  return isPlace
    ? refuse("REQUEST_INVALID", "after is not a page of this tree", {
        fix: "start again without `after`: pages are valid until the agent restarts",
      })
    : refuse("NOT_FOUND", "the root is not known here", { fix: "see GET /v1/explain" });
}

/** Returns the response that refuses a block name in a query. */
export function refuseName(where: string, text: string): Response {
  return refuse(
    "REQUEST_INVALID",
    `${where} is not a block name: ${JSON.stringify(text.slice(0, 80))}`,
    {
      fix: "use an engine hash in decimal, or a page key or digest of 64 hex digits",
    },
  );
}

function picker(wanted: readonly string[]) {
  const names = new Set(wanted);
  return (block: object) =>
    Object.fromEntries(Object.entries(block).filter(([name]) => names.has(name)));
}

export const TIERS = ["gpu", "ram", "ssd"] as const;

const block = t.Object({
  digest: nullable(hex32("Digest; null: the block is known only as a parent")),
  layer: count("Layer; 4294967295: all layers in one"),
  namespace: t.String({ description: "Namespace key, in hex" }),
  parent: nullable(hex32("Parent; null: none, or not known")),
  depth: count("Levels below the root of the answer"),
  bytes: bytes("Length"),
  tiers: t.Array(oneOf(TIERS), { description: "Tiers that hold the block" }),
  pins: count("Pins and leases on the block"),
  locks: count("Reads, writes and sessions that keep the block in place"),
  held_by: t.Array(heldBy),
  transient: t.Boolean({ description: "Whether the block is never written to SSD" }),
  uses: count("Requests for the block"),
  idle_seconds: nullable(seconds("Time since the last use, null: never used")),
  children: count("Direct descendants"),
  aliases: t.Array(t.String(), {
    description: "Names: engine hashes in decimal, page keys in hex",
  }),
});

/** Fields that the query parameter `fields` may name. */
const BLOCK_FIELDS = Object.keys(block.properties);

/** Response body of `GET /v1/tree`. */
const treeReport = t.Object({
  blocks: t.Array(t.Partial(block), { description: "Parents before their children" }),
  next: nullable(t.String({ description: "`after` of the next page; null: no more blocks" })),
});
const DEPTH_MAX = 1_000_000;
const DEPTH = 16;
const TEXT_MAX = 256;

const treeQuery = t.Object({
  root: t.Optional(
    t.String({
      maxLength: TEXT_MAX,
      description: "Engine hash, digest or page key; default: all blocks without a parent",
      examples: ["1234567890"],
    }),
  ),
  depth: t.Optional(
    t.Numeric({
      minimum: 0,
      maximum: DEPTH_MAX,
      multipleOf: 1,
      default: DEPTH,
      description: "Levels below the root",
    }),
  ),
  limit: limitQuery("Maximum blocks"),
  after: t.Optional(t.String({ maxLength: TEXT_MAX, description: "`next` of the previous page" })),
  fields: t.Optional(
    t.String({
      maxLength: TEXT_MAX,
      description: `Fields of each block, separated by commas: ${BLOCK_FIELDS.join(", ")}`,
      examples: ["digest,tiers,held_by"],
    }),
  ),
});
