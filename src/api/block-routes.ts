import { Elysia, t } from "elysia";
import { type Json, LAYER_ALL } from "../core/index.ts";
import type { Callers } from "./authorization.ts";
import { answerJson, isInteger, readObject } from "./body.ts";
import { refuse } from "./problem.ts";
import type { ApiServices, PurgeRequest } from "./services.ts";

const PURGED_MAX = 10_000;
const LAYER_MAX = LAYER_ALL - 1;
const DIGEST = /^[0-9a-f]{64}$/;
const DIGEST_EXAMPLE = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

const purgeSchema = t.Object({
  blocks: t.Array(
    t.Object({
      digest: t.String({ pattern: DIGEST.source, description: "32 bytes in hex" }),
      layer: t.Optional(
        t.Number({
          minimum: 0,
          maximum: LAYER_MAX,
          multipleOf: 1,
          description: "Left out: the block with all layers",
        }),
      ),
    }),
    { minItems: 1, maxItems: PURGED_MAX },
  ),
});

const purgeReport = t.Object(
  {
    outcomes: t.Array(
      t.Union([t.Literal("done"), t.Literal("missing"), t.Literal("held"), t.Literal("failed")]),
      { description: "One for each block, in the order of the request" },
    ),
  },
  { examples: [{ outcomes: ["done", "held"] }] },
);

const persistReport = t.Object(
  {
    written: t.Number({ description: "Blocks written for this request" }),
    skipped: t.Number({ description: "Blocks that SSD does not take now" }),
    durable: t.Boolean({ description: "What is on SSD now survives a loss of power" }),
  },
  { examples: [{ written: 12, skipped: 0, durable: true }] },
);

const purgeDetail = {
  summary:
    "Removes blocks from RAM and SSD; what is answered `done` or `missing` does not come " +
    "back after a crash of any kind",
  requestBody: {
    required: true,
    content: {
      "application/json": {
        schema: purgeSchema as object,
        examples: {
          blocks: {
            summary: "A block with all layers, and one layer of it",
            value: { blocks: [{ digest: DIGEST_EXAMPLE }, { digest: DIGEST_EXAMPLE, layer: 7 }] },
          },
        },
      },
    },
  },
};

/** What operators do with blocks. The answers come when it is done. */
export function blockRoutes(services: ApiServices, callers: Callers) {
  return new Elysia()
    .post(
      "/v1/purge",
      async ({ request }) => {
        const body = await readObject(request);
        if (body instanceof Response) return body;
        const blocks = blocksIn(body);
        if (blocks instanceof Response) return blocks;
        return answerJson({ outcomes: await services.purge(blocks, callers.senderOf(request)) });
      },
      // The framework answers a body that it refuses with all of it, which may take many seconds.
      { parse: "none", response: purgeReport, detail: purgeDetail },
    )
    .post("/v1/persist", ({ request }) => services.persist(callers.senderOf(request)), {
      parse: "none",
      response: persistReport,
      detail: { summary: "Writes to SSD what RAM alone holds, and makes it durable" },
    });
}

function blocksIn({ blocks }: Readonly<Record<string, Json>>): PurgeRequest[] | Response {
  if (!Array.isArray(blocks) || blocks.length === 0 || blocks.length > PURGED_MAX) {
    return refuse("REQUEST_INVALID", `blocks is a list of 1 to ${PURGED_MAX} blocks`);
  }
  const read: PurgeRequest[] = [];
  for (const [index, one] of blocks.entries()) {
    const isObject = typeof one === "object" && one !== null && !Array.isArray(one);
    if (!isObject) return refuse("REQUEST_INVALID", `blocks[${index}] is no object with a digest`);
    const { digest, layer } = one;
    if (typeof digest !== "string" || !DIGEST.test(digest)) {
      return refuse("REQUEST_INVALID", `blocks[${index}].digest is no 64 hex digits in lower case`);
    }
    if (layer !== undefined && !isInteger(layer, 0, LAYER_MAX)) {
      const what = `blocks[${index}].layer is no integer from 0 to ${LAYER_MAX}`;
      return refuse("REQUEST_INVALID", what);
    }
    read.push(layer === undefined ? { digest } : { digest, layer });
  }
  return read;
}
