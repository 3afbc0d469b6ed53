import { Elysia, t } from "elysia";
import { HearthError } from "../../core/index.ts";
import type { RouteOutcome, Router } from "../../router/index.ts";
import { answerJson, isInteger, readObject } from "../body.ts";
import { problemOf, refuse } from "../problem.ts";
import { explainReport, explanationOf } from "./explain-report.ts";
import { decisionOf, routeReport, routeRequestBody } from "./route-report.ts";
import { RequestError, readRouteRequest } from "./route-request.ts";

const JSON_HEADERS = { "content-type": "application/json" };
const OUTPUT_TOKENS_MAX = 2 ** 31;

/** Answers `POST /v1/route` from the bytes of its body: the framework is not in the way. */
export async function route(
  router: Router,
  body: Uint8Array,
  { busyStatus, signal }: { readonly busyStatus: number; readonly signal: AbortSignal },
): Promise<Response> {
  const request = requestIn(body);
  if (request instanceof Response) return request;
  const outcome = await router.bestWorker(request, signal).catch((thrown) => {
    // Whoever asked is gone, and reads no answer.
    if (signal.aborted) return null;
    throw thrown;
  });
  if (outcome === null) return problemOf(new HearthError("ABORTED", "the caller is gone"));
  if (outcome.kind !== "routed") return refusalOf(outcome, busyStatus);
  const { requestId } = request;
  return new Response(JSON.stringify(decisionOf(outcome, requestId)), { headers: JSON_HEADERS });
}

/** The prompt in a body, or the answer to one that holds none. */
export function requestIn(body: Uint8Array) {
  try {
    return readRouteRequest(body);
  } catch (thrown) {
    if (thrown instanceof RequestError) return refuse("REQUEST_INVALID", thrown.message);
    throw thrown;
  }
}

function refusalOf(outcome: Exclude<RouteOutcome, { kind: "routed" }>, busyStatus: number) {
  const { kind, why } = outcome;
  switch (kind) {
    case "none":
      return refuse("NO_WORKER", why, { fix: "see /v1/workers; register one, or wait for it" });
    case "busy":
      return refuse("ALL_BUSY", why, {
        status: busyStatus,
        fix: "try again later, or raise the limits (/busy_threshold)",
        headers: { "retry-after": "1" },
      });
    case "unknown_worker":
      return refuse("UNKNOWN_WORKER", why, { fix: "see /v1/workers" });
    default:
      return kind satisfies never;
  }
}

const done = t.Object({ request_id: t.String() }, { examples: [{ request_id: "req-1" }] });
const idParams = t.Object({ id: t.String({ description: "As it was given to /v1/route" }) });

function told(id: string, isLive: boolean) {
  if (isLive) return { request_id: id };
  return refuse("NOT_FOUND", `no request ${id.slice(0, 100)} is live`, {
    fix: "it ended, expired, or went by another router",
  });
}

const outputBody = {
  required: true,
  content: {
    "application/json": {
      schema: t.Object({ tokens: t.Number({ minimum: 0 }) }) as object,
      examples: { tokens: { value: { tokens: 64 } } },
    },
  },
};

/** Deciding, and how a decision came about. */
export function decideRoutes(router: Router, busyStatus: number) {
  return new Elysia()
    .post(
      "/v1/route",
      async ({ request }) =>
        route(router, await request.bytes(), { busyStatus, signal: request.signal }),
      {
        parse: "none",
        response: routeReport,
        detail: {
          summary: "The worker for a prompt; with a request id it counts as load from here on",
          requestBody: routeRequestBody,
        },
      },
    )
    .get(
      "/v1/explain/:id",
      ({ params: { id } }) => {
        const explanation = router.explain(id);
        if (explanation !== null) return explanationOf(explanation);
        return refuse("NOT_FOUND", `no decision of ${id.slice(0, 100)} is kept`, {
          fix: "it was a question without a request id, or is older than the latest ones",
        });
      },
      {
        params: idParams,
        response: explainReport,
        detail: {
          summary: "How a decision came about: every candidate with each term of its cost",
        },
      },
    );
}

/** What becomes of requests that were routed. */
export function requestRoutes(router: Router) {
  return new Elysia()
    .post(
      "/v1/requests/:id/prefill-complete",
      ({ params: { id } }) => told(id, router.markPrefillComplete(id)),
      {
        parse: "none",
        params: idParams,
        response: done,
        detail: { summary: "Its first output token came: the prompt is no load any more" },
      },
    )
    .post("/v1/requests/:id/free", ({ params: { id } }) => told(id, router.free(id)), {
      parse: "none",
      params: idParams,
      response: done,
      detail: { summary: "It ended: its blocks are no load any more" },
    })
    .post(
      "/v1/requests/:id/output",
      async ({ params: { id }, request }) => {
        const body = await readObject(request);
        if (body instanceof Response) return body;
        if (isInteger(body.tokens, 0, OUTPUT_TOKENS_MAX)) {
          const answer = told(id, router.output(id, body.tokens));
          return answer instanceof Response ? answer : answerJson(answer);
        }
        return refuse("REQUEST_INVALID", "body: tokens is a whole number, 0 or more");
      },
      {
        parse: "none",
        params: idParams,
        response: done,
        detail: {
          summary: "So much output it has by now",
          requestBody: outputBody,
        },
      },
    );
}
