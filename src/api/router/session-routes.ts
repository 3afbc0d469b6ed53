import { Elysia, t } from "elysia";
import type { PolicyMarks } from "../../router/index.ts";
import { refuse } from "../problem.ts";

/** As a session id is known here at most; agents see it in the name of a lease. */
const SESSION_CHARS_MAX = 256;

const params = t.Object({ id: t.String({ description: "The `session_id` of /v1/route" }) });
const told = t.Object({ session_id: t.String() }, { examples: [{ session_id: "chat-9" }] });

/** What clients know of their sessions and policies use. Of an unknown one it is nothing. */
export function sessionRoutes(marks: PolicyMarks) {
  const telling = (id: string, tell: (id: string) => void) => {
    if (id.length > SESSION_CHARS_MAX) {
      return refuse(
        "REQUEST_INVALID",
        `a session's id has at most ${SESSION_CHARS_MAX} characters`,
      );
    }
    tell(id);
    return { session_id: id };
  };
  return new Elysia()
    .post(
      "/v1/sessions/:id/returning",
      ({ params: { id } }) => telling(id, (session) => marks.returning(session)),
      {
        ...{ parse: "none", params, response: told },
        detail: { summary: "Its user is about to ask: what was paused of it is fetched now" },
      },
    )
    .post(
      "/v1/sessions/:id/end",
      ({ params: { id } }) => telling(id, (session) => marks.sessionEnded(session)),
      {
        ...{ parse: "none", params, response: told },
        detail: { summary: "It is over: leases of what was paused of it are revoked" },
      },
    );
}
