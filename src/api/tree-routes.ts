import { Elysia } from "elysia";
import { type BlockName, readBlockName } from "../core/index.ts";
import { answerJson } from "./body.ts";
import { refuse } from "./problem.ts";
import type { ControlServices } from "./services.ts";
import { BLOCK_FIELDS, type BlockReport, blockOf, treeQuery, treeReport } from "./tree-report.ts";

/** The prefix tree as it is now. */
export function treeRoutes(control: ControlServices) {
  return new Elysia().get(
    "/v1/tree",
    async ({ query: { root: text, depth = 16, limit = 100, after = null, fields } }) => {
      const root = text === undefined ? null : readBlockName(text);
      if (text !== undefined && root === null) return refuseName("root", text);
      const wanted = fields === undefined ? null : fields.split(",");
      const unknown = wanted?.find((name) => !(BLOCK_FIELDS as readonly string[]).includes(name));
      if (unknown !== undefined) {
        return refuse("REQUEST_INVALID", `a block has no ${unknown.slice(0, 40)}`, {
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
      detail: { summary: "Blocks of the tree below a root: pins, locks, tiers, last use" },
    },
  );
}

/** The page says it of a root and of a place alike; at the beginning only a root can be missing. */
async function whyMissing(
  control: ControlServices,
  root: BlockName | null,
  after: string | null,
): Promise<Response> {
  const isPlace =
    after !== null && !(await control.tree({ root, depthMax: 0, limit: 1, after: null })).missing;
  return isPlace
    ? refuse("REQUEST_INVALID", "after is no page of this tree", {
        fix: "begin again without it: a page is good as long as the agent runs",
      })
    : refuse("NOT_FOUND", "the root is not known here", { fix: "ask GET /v1/explain why" });
}

/** Names of blocks in queries are text. */
export function refuseName(where: string, text: string): Response {
  return refuse("REQUEST_INVALID", `${where} is no block: ${JSON.stringify(text.slice(0, 80))}`, {
    fix: "give an engine hash in decimal, or a page key or digest of 64 hex digits",
  });
}

function picker(wanted: readonly string[]) {
  const names = new Set(wanted);
  return (block: BlockReport): Partial<BlockReport> =>
    Object.fromEntries(Object.entries(block).filter(([name]) => names.has(name)));
}
