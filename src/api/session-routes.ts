import { Elysia } from "elysia";
import { refuse } from "./problem.ts";
import type { ApiServices } from "./services.ts";
import { pageQuery, sessionParams, sessionReports, sessionsReport } from "./session-report.ts";

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
