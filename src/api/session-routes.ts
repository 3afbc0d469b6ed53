import { Elysia, type Static, t } from "elysia";
import { afterQuery, bytes, count, limitQuery, nextNumber } from "./fields.ts";
import { refuse } from "./problem.ts";
import type { ApiServices } from "./services.ts";

/** What there is to know of conversations; they begin and end on the engine plane alone. */
export function sessionRoutes(services: ApiServices) {
  return new Elysia()
    .get(
      "/v1/sessions",
      ({ query: { after = 0, limit = 100 } }) => services.sessions(after, limit),
      {
        query: pageQuery,
        response: sessionsReport,
        detail: { summary: "Conversations that hold their last block, a page at a time" },
      },
    )
    .get(
      "/v1/sessions/:id",
      ({ params: { id } }) => {
        const sessions = services.session(BigInt(id));
        if (sessions.length > 0) return { sessions };
        return refuse("NOT_FOUND", `no session ${id} holds a block`, {
          fix: "it was released, went idle or gave way to others: see engine.session_idle",
        });
      },
      {
        params: sessionParams,
        response: sessionReports,
        detail: { summary: "What of one conversation is where" },
      },
    );
}

const tierUse = t.Object({ blocks: count("Blocks"), bytes: bytes("Their length") });

/** A conversation: what of the path to its last block is where. */
const sessionReport = t.Object({
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
const sessionsReport = t.Object(
  {
    sessions: t.Array(sessionReport, { description: "The one committed to longest ago first" }),
    next: nextNumber,
  },
  { examples: [{ sessions: [EXAMPLE], next: null }] },
);
export type SessionsReport = Static<typeof sessionsReport>;

/** Body of `GET /v1/sessions/{id}`. */
const sessionReports = t.Object(
  {
    sessions: t.Array(sessionReport, {
      description: "One for each namespace that has this number",
    }),
  },
  { examples: [{ sessions: [EXAMPLE] }] },
);

const pageQuery = t.Object({
  limit: limitQuery("Sessions at most; a page is shorter where they are long"),
  after: afterQuery("`next` of the page before"),
});

const sessionParams = t.Object({ id: t.String({ pattern: "^[0-9]{1,20}$" }) });
