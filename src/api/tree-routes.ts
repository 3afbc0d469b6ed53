import { Elysia, type Static, t } from "elysia";
import { type BlockName, readBlockName } from "../core/index.ts";
import type { TreeBlock } from "../store/index.ts";
import { answerJson } from "./body.ts";
import { heldBy } from "./command-schema.ts";
import { bytes, count, limitQuery, nullable, seconds } from "./fields.ts";
import { refuse } from "./problem.ts";
import type { ControlServices } from "./services.ts";

/** Lists the blocks of the prefix tree. */
export function treeRoutes(control: ControlServices) {
  return new Elysia().get(
    "/v1/tree",
    async ({ query: { root: text, depth = 16, limit = 100, after = null, fields } }) => {
      const root = text === undefined ? null : readBlockName(text);
      if (text !== undefined && root === null) return refuseName("root", text);
      const wanted = fields === undefined ? null : fields.split(",");
      const unknown = wanted?.find((name) => !(BLOCK_FIELDS as readonly string[]).includes(name));
      if (unknown !== undefined) {
        return refuse("REQUEST_INVALID", `unknown field ${unknown.slice(0, 40)}`, {
          fix: `use ${BLOCK_FIELDS.join(", ")}`,
        });
      }
      const page = await control.tree({ root, depthMax: depth, limit, after });
      if (page.missing) return whyMissing(control, root, after);
      const blocks = page.blocks.map(blockOf);
      const shown = wanted === null ? blocks : blocks.map(picker(wanted));
      return answerJson({ blocks: shown, next: page.next });
    },
    {
      query: treeQuery,
      response: treeReport,
      detail: { summary: "Lists the blocks below a root with pins, locks, tiers and last use" },
    },
  );
}

/** The error of a missing page. A page without `after` can only lack its root. */
async function whyMissing(
  control: ControlServices,
  root: BlockName | null,
  after: string | null,
): Promise<Response> {
  const isPlace =
    after !== null && !(await control.tree({ root, depthMax: 0, limit: 1, after: null })).missing;
  return isPlace
    ? refuse("REQUEST_INVALID", "after is not a page of this tree", {
        fix: "start again without `after`: pages are valid until the agent restarts",
      })
    : refuse("NOT_FOUND", "the root is not known here", { fix: "see GET /v1/explain" });
}

/** Refuses a block name of a query, where names are text. */
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
  return (block: BlockReport): Partial<BlockReport> =>
    Object.fromEntries(Object.entries(block).filter(([name]) => names.has(name)));
}

const hex = (description: string) => t.String({ pattern: "^[0-9a-f]{64}$", description });
export const tier = t.Union([t.Literal("gpu"), t.Literal("ram"), t.Literal("ssd")]);

const block = t.Object({
  digest: nullable(hex("Digest; null: the block is known only as a parent")),
  layer: count("Layer; 4294967295: all layers in one"),
  namespace: t.String({ description: "Namespace key, in hex" }),
  parent: nullable(hex("Parent; null: none, or not known")),
  depth: count("Levels below the root of the answer"),
  bytes: bytes("Length"),
  tiers: t.Array(tier, { description: "Tiers that hold the block" }),
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
type BlockReport = Static<typeof block>;

/** Fields that the parameter `fields` may name. */
const BLOCK_FIELDS = Object.keys(block.properties) as readonly (keyof BlockReport)[];

const DIGEST = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

/** Body of `GET /v1/tree`. */
const treeReport = t.Object(
  {
    blocks: t.Array(t.Partial(block), { description: "Parents before their children" }),
    next: nullable(t.String({ description: "`after` of the next page; null: no more blocks" })),
  },
  {
    examples: [
      {
        blocks: [
          {
            digest: DIGEST,
            layer: 0xffff_ffff,
            namespace: "ab".repeat(32),
            parent: null,
            depth: 0,
            bytes: 10_485_760,
            tiers: ["ram", "ssd"],
            pins: 1,
            locks: 0,
            held_by: [{ kind: "pin", owner: "system-prompts" }],
            transient: false,
            uses: 12,
            idle_seconds: 3.5,
            children: 2,
            aliases: ["1234567890"],
          },
        ],
        next: null,
      },
    ],
  },
);
const DEPTH_MAX = 1_000_000;
const DEPTH = 16;
const TEXT_MAX = 256;

const treeQuery = t.Object({
  root: t.Optional(
    t.String({
      maxLength: TEXT_MAX,
      description: "Engine hash, digest or page key; default: all blocks without a parent",
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
    }),
  ),
});

function blockOf(block: TreeBlock): BlockReport {
  const { digest, layer, namespace, parent, depth, bytes, pins, locks } = block;
  const { transient, uses, children } = block;
  return {
    digest,
    layer,
    namespace,
    parent,
    depth,
    bytes,
    pins,
    locks,
    transient,
    uses,
    children,
    tiers: [...block.tiers],
    held_by: block.heldBy.map((one) => ({ ...one })),
    idle_seconds: block.idleSeconds,
    aliases: [...block.aliases],
  };
}
