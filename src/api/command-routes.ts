import { Elysia, t } from "elysia";
import {
  answerTypeOf,
  COMMAND_LIMITS,
  decodeCommand,
  type Receipt,
  type Sender,
  SIGNATURE_HEADER,
} from "../control/index.ts";
import { yieldToLoop } from "../core/index.ts";
import type { Callers } from "./authorization.ts";
import { answerJson, readObject } from "./body.ts";
import { answerReceipt, commandBody, receiptAnswers } from "./command-schema.ts";
import { jsonBody } from "./description.ts";
import { oneOf } from "./fields.ts";
import { refuse } from "./problem.ts";
import type { ControlServices } from "./services.ts";

const NAME_CHARACTERS_MAX = COMMAND_LIMITS.nameBytesMax;

const waitQuery = t.Object({
  wait: t.Optional(
    oneOf(
      ["true", "false"],
      "`false`: answer 202 at once if the command takes longer; requires an `id`",
    ),
  ),
});

const idParams = t.Object({
  id: t.String({ minLength: 1, maxLength: NAME_CHARACTERS_MAX, examples: ["w-1"] }),
});

const issuerQuery = t.Object({
  issuer: t.Optional(
    t.String({
      maxLength: NAME_CHARACTERS_MAX,
      description: "Issuer of the command; default: any",
    }),
  ),
});

/** Returns the routes of commands and their receipts. Only the control plane parses the bodies. */
export function commandRoutes(control: ControlServices, callers: Callers, onFault: OnFault) {
  return new Elysia()
    .post(
      "/v1/commands",
      async ({ request, query: { wait = "true" } }) => {
        const body = await request.bytes();
        const contentType = request.headers.get("content-type");
        const type = answerTypeOf(request.headers.get("accept"), contentType);
        const sender = callers.senderOf(request);
        const signed = { signature: request.headers.get(SIGNATURE_HEADER) };
        if (wait === "true") {
          const source = callers.sourceOf(request);
          const receipt = await control.plane.submit(body, contentType, sender, {
            ...signed,
            source,
          });
          const answer = () => answerReceipt(receipt, type);
          // Encodes the receipt in a slice of its own, because many commands may end in one slice.
          return source.call(answer) ?? answer();
        }
        const place = placeOf(body, contentType, sender);
        if (place instanceof Response) return place;
        const done = control.plane.submit(body, contentType, sender, signed);
        const receipt = await firstReceipt(control, done, place, onFault);
        if (receipt.status !== "running") return answerReceipt(receipt, type);
        return answerReceipt(receipt, type, { status: 202, headers: { location: place.path } });
      },
      {
        parse: "none",
        query: waitQuery,
        detail: {
          summary: "Executes a command and answers with its receipt",
          requestBody: commandBody,
          responses: receiptAnswers,
        },
      },
    )
    .get(
      "/v1/commands/:id",
      ({ request, params: { id }, query: { issuer = null } }) => {
        const receipt = control.plane.find(id, issuer, callers.senderOf(request).account);
        if (receipt !== null) {
          const type = answerTypeOf(request.headers.get("accept"), null);
          return answerReceipt(receipt, type, { status: 200 });
        }
        return refuse("NOT_FOUND", "no command with this id is known here", {
          fix: "it was never received, has another issuer, or its receipt has expired",
        });
      },
      {
        params: idParams,
        query: issuerQuery,
        detail: {
          summary: "The receipt of a command, also while it is running",
          responses: {
            200: receiptAnswers[200],
            404: { description: "No such command is known here" },
          },
        },
      },
    );
}

type OnFault = (path: string, thrown: unknown) => void;

/** Path of a command's receipt, and the values in it. */
interface Place {
  readonly id: string;
  readonly issuer: string;
  readonly account: string | undefined;
  readonly path: string;
}

/**
 * Returns the path at which the receipt can be read later, or the error response if the command has
 * no id to find its receipt by.
 */
function placeOf(body: Uint8Array, contentType: string | null, sender: Sender): Place | Response {
  const decoded = decodeCommand(body, contentType);
  const head = decoded.ok ? decoded.command : decoded.head;
  if (head.id === null && decoded.ok) {
    return refuse("REQUEST_INVALID", "wait=false requires a command with an id", {
      fix: "add an `id` to the command, or remove wait=false",
    });
  }
  const id = head.id ?? "";
  const issuer = head.issuer ?? sender.name;
  const query = new URLSearchParams({ issuer });
  const path = `/v1/commands/${encodeURIComponent(id)}?${query}`;
  return { id, issuer, account: sender.account, path };
}

/**
 * Returns the final receipt if the command ends immediately, else the receipt of the running
 * command.
 */
async function firstReceipt(
  control: ControlServices,
  done: Promise<Receipt>,
  { id, issuer, account }: Place,
  onFault: OnFault,
): Promise<Receipt> {
  const soon = await Promise.race([done, yieldToLoop().then(() => null)]);
  if (soon !== null) return soon;
  const running = control.plane.find(id, issuer, account);
  if (running === null) return done;
  done.catch((thrown) => onFault("/v1/commands", thrown));
  return running;
}

const ISSUER_CHARACTERS_MAX = 128;

const unfenceSchema = t.Object({
  issuer: t.String({ minLength: 1, maxLength: ISSUER_CHARACTERS_MAX }),
});

const unfenceReport = t.Object({
  scopes: t.Number({
    description: "Accounts and transports in which the issuer had sent an epoch or proved its name",
  }),
});

/**
 * Returns the route that removes an issuer's stored epoch and number, so that the issuer can start
 * over.
 */
export function unfenceRoutes(control: ControlServices, callers: Callers) {
  return new Elysia().post(
    "/v1/unfence",
    async ({ request }) => {
      const body = await readObject(request);
      if (body instanceof Response) return body;
      const { issuer } = body;
      const isName = typeof issuer === "string" && issuer !== "";
      if (!isName || issuer.length > ISSUER_CHARACTERS_MAX) {
        const what = `issuer must be a string of 1 to ${ISSUER_CHARACTERS_MAX} characters`;
        return refuse("REQUEST_INVALID", what);
      }
      return answerJson({ scopes: control.plane.unfence(issuer, callers.senderOf(request)) });
    },
    {
      parse: "none",
      response: unfenceReport,
      detail: {
        summary: "Forgets an issuer's epoch, its last number and its proof of identity",
        requestBody: jsonBody(unfenceSchema),
      },
    },
  );
}
