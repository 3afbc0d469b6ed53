import { type Static, t } from "elysia";
import { afterQuery, bytes, count, limitQuery, nextNumber } from "./fields.ts";

const tierUse = t.Object({ blocks: count("Blocks"), bytes: bytes("Their length") });

/** A conversation: what of the path to its last block is where. */
export const sessionReport = t.Object({
  id: t.String({
    pattern: "^[0-9]{1,20}$",
    description: "The engine's number for it; 64 bits, as text so that no reader rounds it",
  }),
  namespace: t.String({ pattern: "^[0-9a-f]{64}$", description: "Namespace key, in hex" }),
  idle_seconds: t.Number({ minimum: 0, description: "Since its last commit" }),
  depth: count("Blocks on its path, also those that are on no tier any more"),
  ram: tierUse,
  ssd: tierUse,
});
export type SessionReport = Static<typeof sessionReport>;

const EXAMPLE = {
  id: "42",
  namespace: "ab".repeat(32),
  idle_seconds: 12.5,
  depth: 31,
  ram: { blocks: 8, bytes: 83_886_080 },
  ssd: { blocks: 31, bytes: 325_058_560 },
};

/** Body of `GET /v1/sessions`. */
export const sessionsReport = t.Object(
  {
    sessions: t.Array(sessionReport, { description: "The one committed to longest ago first" }),
    next: nextNumber,
  },
  { examples: [{ sessions: [EXAMPLE], next: null }] },
);
export type SessionsReport = Static<typeof sessionsReport>;

/** Body of `GET /v1/sessions/{id}`. */
export const sessionReports = t.Object(
  {
    sessions: t.Array(sessionReport, {
      description: "One for each namespace that has this number",
    }),
  },
  { examples: [{ sessions: [EXAMPLE] }] },
);

export const pageQuery = t.Object({
  limit: limitQuery("Sessions at most; a page is shorter where they are long"),
  after: afterQuery("`next` of the page before"),
});

export const sessionParams = t.Object({ id: t.String({ pattern: "^[0-9]{1,20}$" }) });
