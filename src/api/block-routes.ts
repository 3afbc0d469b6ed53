import { Elysia, t } from "elysia";
import { type Json, LAYER_ALL, runInTurns } from "../core/index.ts";
import type { Callers } from "./authorization.ts";
import { answerJson, isInteger, readObject } from "./body.ts";
import { described, jsonBody } from "./description.ts";
import { oneOf } from "./fields.ts";
import { refuse } from "./problem.ts";
import type { ApiServices, PurgeRequest } from "./services.ts";

const PURGED_MAX = 10_000;
/** Blocks validated per piece of work. Parsing the longest body has then already taken 4 ms. */
const PIECE = 256;
const LAYER_MAX = LAYER_ALL - 1;
const DIGEST = /^[0-9a-f]{64}$/;

const purgeSchema = t.Object({
  blocks: t.Array(
    t.Object({
      digest: t.String({ pattern: DIGEST.source, description: "32 bytes in hex" }),
      layer: t.Optional(
        t.Number({
          minimum: 0,
          maximum: LAYER_MAX,
          multipleOf: 1,
          description: "Default: the block with all layers",
        }),
      ),
    }),
    { minItems: 1, maxItems: PURGED_MAX },
  ),
});

const purgeReport = t.Object({
  outcomes: t.Array(oneOf(["done", "missing", "held", "failed"]), {
    description: "Outcome of each block, in the order of the request",
  }),
});

const persistReport = t.Object({
  written: t.Number({ description: "Blocks written for this request" }),
  skipped: t.Number({ description: "Blocks that the SSD does not accept now" }),
  durable: t.Boolean({ description: "Whether all blocks on SSD survive a power loss" }),
});

const purgeDetail = {
  summary:
    "Removes blocks from RAM and SSD; blocks answered `done` or `missing` do not return " +
    "after a crash of any kind",
  requestBody: jsonBody(purgeSchema),
};

/**
 * Returns the routes of block operations for operators. Each responds when the operation is
 * complete.
 */
export function blockRoutes(services: ApiServices, callers: Callers) {
  return new Elysia()
    .post(
      "/v1/purge",
      async ({ request }) => {
        const body = await readObject(request);
        if (body instanceof Response) return body;
        const blocks = await runInTurns(callers.sourceOf(request), blocksIn(body));
        if (blocks instanceof Response) return blocks;
        return answerJson({ outcomes: await services.purge(blocks, callers.senderOf(request)) });
      },
      // The framework does not validate this body, because its validation error would repeat the
      // whole body and could take many seconds.
      { parse: "none", response: purgeReport, detail: purgeDetail },
    )
    .post("/v1/persist", ({ request }) => services.persist(callers.senderOf(request)), {
      parse: "none",
      response: persistReport,
      detail: described("Writes blocks that only RAM holds to SSD, durably", {
        501: "The agent has no SSD tier",
      }),
    });
}

/**
 * Reads the blocks in pieces, because reading a full list takes longer than one event-loop slice.
 */
function* blocksIn({
  blocks,
}: Readonly<Record<string, Json>>): Generator<void, PurgeRequest[] | Response> {
  if (!Array.isArray(blocks) || blocks.length === 0 || blocks.length > PURGED_MAX) {
    return refuse("REQUEST_INVALID", `blocks must be a list of 1 to ${PURGED_MAX} blocks`);
  }
  const read: PurgeRequest[] = [];
  for (const [index, one] of blocks.entries()) {
    const isObject = typeof one === "object" && one !== null && !Array.isArray(one);
    if (!isObject)
      return refuse("REQUEST_INVALID", `blocks[${index}] is not an object with a digest`);
    const { digest, layer } = one;
    if (typeof digest !== "string" || !DIGEST.test(digest)) {
      return refuse(
        "REQUEST_INVALID",
        `blocks[${index}].digest is not 64 hex digits in lower case`,
      );
    }
    if (layer !== undefined && !isInteger(layer, 0, LAYER_MAX)) {
      const what = `blocks[${index}].layer is not an integer from 0 to ${LAYER_MAX}`;
      return refuse("REQUEST_INVALID", what);
    }
    read.push(layer === undefined ? { digest } : { digest, layer });
    if (read.length % PIECE === 0) yield;
  }
  return read;
}
