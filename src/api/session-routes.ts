import { Elysia, type Static, t } from "elysia";
import { described } from "./description.ts";
import { afterQuery, bytes, count, hex32, limitQuery, nextNumber } from "./fields.ts";
import { refuse } from "./problem.ts";
import type { ApiServices } from "./services.ts";

/** Returns the routes that list sessions. Only engines create and end sessions. */
export function sessionRoutes(services: ApiServices) {
  return new Elysia()
    .get(
      "/v1/sessions",
      ({ query: { after = 0, limit = 100 } }) => services.sessions(after, limit),
      {
        query: pageQuery,
        response: sessionsReport,
        detail: { summary: "Lists sessions that keep their last block" },
      },
    )
    .get(
      "/v1/sessions/:id",
      ({ params: { id } }) => {
        const sessions = services.session(BigInt(id));
        if (sessions.length > 0) return { sessions };
        return refuse("NOT_FOUND", `no session ${id} with a block`, {
          fix: "it was released, expired (engine.session_idle) or was evicted",
        });
      },
      {
        params: sessionParams,
        response: sessionReports,
        detail: described("Shows the tiers of one session's blocks", {
          404: "No session with this number holds a block",
        }),
      },
    );
}

const tierUse = t.Object({ blocks: count("Blocks"), bytes: bytes("Size of these blocks") });

/**
 * Schema of a session, with the tiers that have the blocks from its prompt's start to its last
 * block.
 */
const sessionReport = t.Object({
  id: t.String({
    pattern: "^[0-9]{1,20}$",
    description: "The engine's session number, 64 bits; text, so that no client rounds it",
  }),
  namespace: hex32("Namespace key, in hex"),
  idle_seconds: t.Number({ minimum: 0, description: "Time since its last commit" }),
  depth: count("Blocks on its path, including those no longer on any tier"),
  ram: tierUse,
  ssd: tierUse,
});
export type SessionReport = Static<typeof sessionReport>;

/** Response body of `GET /v1/sessions`. */
const sessionsReport = t.Object({
  sessions: t.Array(sessionReport, { description: "Longest idle first" }),
  next: nextNumber,
});
export type SessionsReport = Static<typeof sessionsReport>;

/** Response body of `GET /v1/sessions/{id}`. */
const sessionReports = t.Object({
  sessions: t.Array(sessionReport, { description: "One entry per namespace with this number" }),
});

const pageQuery = t.Object({
  limit: limitQuery("Maximum sessions; a page is shorter if sessions are long"),
  after: afterQuery("`next` of the previous page"),
});

const sessionParams = t.Object({ id: t.String({ pattern: "^[0-9]{1,20}$" }) });
