import { Elysia, t } from "elysia";
import type { Callers } from "./callers.ts";
import type { ApiServices } from "./services.ts";

const PURGED_MAX = 10_000;

const purgeBody = t.Object({
  blocks: t.Array(
    t.Object({
      digest: t.String({ pattern: "^[0-9a-f]{64}$", description: "32 bytes in hex" }),
      layer: t.Optional(
        t.Number({
          minimum: 0,
          maximum: 0xffff_fffe,
          multipleOf: 1,
          description: "Left out: the block with all layers",
        }),
      ),
    }),
    { minItems: 1, maxItems: PURGED_MAX },
  ),
});

const purgeReport = t.Object({
  outcomes: t.Array(
    t.Union([t.Literal("done"), t.Literal("missing"), t.Literal("held"), t.Literal("failed")]),
    { description: "One for each block, in the order of the request" },
  ),
});

const persistReport = t.Object({
  written: t.Number({ description: "Blocks written for this request" }),
  skipped: t.Number({ description: "Blocks that SSD does not take now" }),
  durable: t.Boolean({ description: "What is on SSD now survives a loss of power" }),
});

/** What operators do with blocks. The answers come when it is done. */
export function blockRoutes(services: ApiServices, callers: Callers) {
  return new Elysia()
    .post(
      "/v1/purge",
      async ({ body, request }) => ({
        outcomes: await services.purge(body.blocks, callers.senderOf(request)),
      }),
      {
        body: purgeBody,
        response: purgeReport,
        detail: {
          summary:
            "Removes blocks from RAM and SSD; what is answered `done` or `missing` does not come " +
            "back after a crash of any kind",
        },
      },
    )
    .post("/v1/persist", ({ request }) => services.persist(callers.senderOf(request)), {
      response: persistReport,
      detail: { summary: "Writes to SSD what RAM alone holds, and makes it durable" },
    });
}
