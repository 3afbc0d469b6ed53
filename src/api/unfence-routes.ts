import { Elysia, t } from "elysia";
import { answerJson, readObject } from "./body.ts";
import type { Callers } from "./callers.ts";
import { refuse } from "./problem.ts";
import type { ControlServices } from "./services.ts";

const ISSUER_CHARACTERS_MAX = 128;

const unfenceSchema = t.Object({
  issuer: t.String({ minLength: 1, maxLength: ISSUER_CHARACTERS_MAX }),
});

const unfenceReport = t.Object(
  {
    scopes: t.Number({
      description: "Accounts and transports in which it had shown an epoch, or proved its name",
    }),
  },
  { examples: [{ scopes: 1 }] },
);

/** Lets an issuer start over. */
export function unfenceRoutes(control: ControlServices, callers: Callers) {
  return new Elysia().post(
    "/v1/unfence",
    async ({ request }) => {
      const body = await readObject(request);
      if (body instanceof Response) return body;
      const { issuer } = body;
      const isName = typeof issuer === "string" && issuer !== "";
      if (!isName || issuer.length > ISSUER_CHARACTERS_MAX) {
        const what = `issuer is text of 1 to ${ISSUER_CHARACTERS_MAX} characters`;
        return refuse("REQUEST_INVALID", what);
      }
      return answerJson({ scopes: control.unfence(issuer, callers.senderOf(request)) });
    },
    {
      parse: "none",
      response: unfenceReport,
      detail: {
        summary: "Forgets the epoch and number that an issuer has shown, and that it proved itself",
        requestBody: {
          required: true,
          content: {
            "application/json": {
              schema: unfenceSchema as object,
              examples: { issuer: { summary: "A router", value: { issuer: "router-1" } } },
            },
          },
        },
      },
    },
  );
}
