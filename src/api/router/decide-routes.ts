import { Elysia, t } from "elysia";
import { HearthError } from "../../core/index.ts";
import type {
  CostTerms,
  Explanation,
  RouteDecision,
  RouteOutcome,
  Router,
  Target,
} from "../../router/index.ts";
import type { ApiOptions } from "../api.ts";
import { answerJson, isInteger, readObject } from "../body.ts";
import { described, jsonBody } from "../description.ts";
import { count, nullable, oneOf, snakeCase } from "../fields.ts";
import { problemOf, refuse } from "../problem.ts";
import { RequestError, readRouteRequest } from "./route-request.ts";

const JSON_HEADERS = { "content-type": "application/json" };
const OUTPUT_TOKENS_MAX = 2 ** 31;

/** Handles the body of a `POST /v1/route`. `signal` fires if the client disconnects. */
async function route(
  router: Router,
  busyStatus: number,
  body: Uint8Array,
  signal: AbortSignal,
): Promise<Response> {
  const request = requestIn(body);
  if (request instanceof Response) return request;
  const outcome = await router.bestWorker(request, signal).catch((thrown) => {
    // The client has disconnected and cannot read a response.
    if (signal.aborted) return null;
    throw thrown;
  });
  if (outcome === null) return problemOf(new HearthError("ABORTED", "the client disconnected"));
  if (outcome.kind !== "routed") return refusalOf(outcome, busyStatus);
  const { requestId } = request;
  return new Response(JSON.stringify(decisionOf(outcome, requestId)), { headers: JSON_HEADERS });
}

/** Parses the prompt in a body, or returns the error response. */
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
        fix: "retry later, or raise the limits (/busy_threshold)",
        headers: { "retry-after": "1" },
      });
    case "unknown_worker":
      return refuse("UNKNOWN_WORKER", why, { fix: "see /v1/workers" });
    default:
      return kind satisfies never;
  }
}

const done = t.Object({ request_id: t.String() });
const idParams = t.Object({
  id: t.String({ description: "Request id passed to /v1/route", examples: ["req-1"] }),
});
const NOT_LIVE = { 404: "The request is not live" };

function acknowledge(id: string, isLive: boolean) {
  if (isLive) return { request_id: id };
  return refuse("NOT_FOUND", `request ${id.slice(0, 100)} is not live`, {
    fix: "it ended, expired, or was routed by another router",
  });
}

const outputBody = jsonBody(t.Object({ tokens: t.Number({ minimum: 0 }) }));

const ROUTE = "/v1/route";

/**
 * Returns the routes that choose a worker and explain decisions. `direct` contains the handler of
 * `POST /v1/route`, which the server calls with the body's bytes; the framework only describes this
 * route.
 */
export function decideRoutes(
  router: Router,
  { busyStatus, onFault }: Pick<ApiOptions, "onFault"> & { readonly busyStatus: number },
) {
  const answer = (body: Uint8Array, signal: AbortSignal) =>
    route(router, busyStatus, body, signal).catch((fault) => {
      onFault(ROUTE, fault);
      return problemOf(fault);
    });
  const routes = new Elysia()
    .post(ROUTE, async ({ request }) => answer(await request.bytes(), request.signal), {
      parse: "none",
      response: routeReport,
      detail: {
        ...described(
          "Chooses the worker for a prompt; with a request id the prompt counts as load",
          {
            404: "The named worker is not available",
            503: "No worker of that model is available",
            529: "All workers are busy (`api.busy_status` may name another status)",
          },
        ),
        requestBody: routeRequestBody,
      },
    })
    .get(
      "/v1/explain/:id",
      ({ params: { id } }) => {
        const explanation = router.explain(id);
        if (explanation !== null) return explanationOf(explanation);
        return refuse("NOT_FOUND", `no decision is kept for ${id.slice(0, 100)}`, {
          fix: "the request had no request id, or its decision was replaced by newer ones",
        });
      },
      {
        params: idParams,
        response: explainReport,
        detail: described("Explains a decision: every candidate with each term of its cost", {
          404: "No decision is kept for that request",
        }),
      },
    );
  return { routes, direct: { [`POST ${ROUTE}`]: answer } };
}

/** Returns the routes by which clients report the progress of routed requests. */
export function requestRoutes(router: Router) {
  return new Elysia()
    .post(
      "/v1/requests/:id/prefill-complete",
      ({ params: { id } }) => acknowledge(id, router.markPrefillComplete(id)),
      {
        parse: "none",
        params: idParams,
        response: done,
        detail: described(
          "Reports the first output token: the prompt no longer counts as load",
          NOT_LIVE,
        ),
      },
    )
    .post("/v1/requests/:id/free", ({ params: { id } }) => acknowledge(id, router.free(id)), {
      parse: "none",
      params: idParams,
      response: done,
      detail: described(
        "Reports the end of a request: its blocks no longer count as load",
        NOT_LIVE,
      ),
    })
    .post(
      "/v1/requests/:id/output",
      async ({ params: { id }, request }) => {
        const body = await readObject(request);
        if (body instanceof Response) return body;
        if (isInteger(body.tokens, 0, OUTPUT_TOKENS_MAX)) {
          const answer = acknowledge(id, router.output(id, body.tokens));
          return answer instanceof Response ? answer : answerJson(answer);
        }
        return refuse("REQUEST_INVALID", "body: tokens must be an integer, 0 or more");
      },
      {
        parse: "none",
        params: idParams,
        response: done,
        detail: {
          ...described("Reports the output tokens so far", NOT_LIVE),
          requestBody: outputBody,
        },
      },
    );
}

const number = (description: string) => t.Number({ description });

const place = {
  worker: t.String({ description: "Worker id" }),
  rank: count("Data parallel rank"),
  url: nullable(t.String({ description: "URL of the worker's API; null: not known" })),
};

const termsReport = t.Object({
  device_blocks: number("Leading blocks on the device"),
  host_blocks: number("Following blocks in host memory"),
  disk_blocks: number("Following blocks on disk"),
  cached_tokens: number("Cached tokens, weighted by tier"),
  raw_prefill_tokens: number("Prompt tokens of the request plus those waiting at the worker"),
  decay: number("Factor of the cache credit; 1 if the worker has no more to prefill than others"),
  credit: number("Cache credit, in blocks"),
  active_blocks: number("Blocks of the worker's live requests"),
  additional_blocks: number("Blocks that this request would add"),
  active_requests: number("Live requests of the worker"),
  cost: number("Total cost; the lowest wins"),
});

/** Response body of `POST /v1/route`. */
const routeReport = t.Object({
  request_id: nullable(t.String({ description: "Request id; null: nothing is counted" })),
  ...place,
  prompt_tokens: count("Tokens of the prompt"),
  queued_ms: t.Number({ minimum: 0, description: "Time that the request waited for a worker" }),
  known: t.Boolean({
    description:
      "Whether all blocks of the worker are known; false: it may hold more of the prompt",
  }),
  prefill: nullable(t.Object(place, { description: "Worker of the prefill pool, if separate" })),
  terms: termsReport,
});

/**
 * Converts the terms to their JSON names. Written out by hand for speed, because every routing
 * request calls it.
 */
function termsOf(terms: CostTerms) {
  return {
    device_blocks: terms.deviceBlocks,
    host_blocks: terms.hostBlocks,
    disk_blocks: terms.diskBlocks,
    cached_tokens: terms.cachedTokens,
    raw_prefill_tokens: terms.rawPrefillTokens,
    decay: terms.decay,
    credit: terms.credit,
    active_blocks: terms.activeBlocks,
    additional_blocks: terms.additionalBlocks,
    active_requests: terms.activeRequests,
    cost: terms.cost,
  };
}

function placeOf({ worker, rank, url }: Target) {
  return { worker, rank, url };
}

function decisionOf(decision: RouteDecision, requestId: string | undefined) {
  const { target, prefill } = decision;
  return {
    request_id: requestId ?? null,
    ...placeOf(target),
    prompt_tokens: decision.promptTokens,
    queued_ms: decision.queuedMs,
    known: target.isKnown,
    prefill: prefill === null ? null : placeOf(prefill),
    terms: termsOf(decision.terms),
  };
}

const uint64 = t.Union([
  t.Number({ description: "64 bits" }),
  t.String({ description: "Decimal, or hex with 0x" }),
]);

/**
 * Request body of `POST /v1/route` and `POST /v1/loads`, which the server parses without the
 * framework.
 */
const routeBody = t.Object({
  model: t.String(),
  tokens: t.Optional(t.Array(count("Token id"))),
  block_hashes: t.Optional(
    t.Array(uint64, { description: "Replaces tokens: sequence hashes of the full blocks" }),
  ),
  block_tokens: t.Optional(count("Tokens per block of block_hashes")),
  prompt_tokens: t.Optional(count("Tokens of the whole prompt; requires block_hashes")),
  request_id: t.Optional(t.String({ description: "Without it the request is not recorded" })),
  lora_name: t.Optional(t.String()),
  cache_salt: t.Optional(t.String()),
  session_id: t.Optional(t.String({ description: "Session, for affinity and policies" })),
  priority: t.Optional(number("Larger values are served first if requests wait")),
  expected_output_tokens: t.Optional(count("Expected output tokens")),
  phase: t.Optional(oneOf(["prefill", "decode", "both"])),
  overrides: t.Optional(
    t.Object({
      overlap_score_weight: t.Optional(number("Overrides the setting")),
      temperature: t.Optional(number("Overrides the setting")),
      mode: t.Optional(t.String()),
      worker: t.Optional(t.String({ description: "Only this worker" })),
      rank: t.Optional(count("Only this rank of the worker")),
      allowed: t.Optional(t.Array(t.String())),
      excluded: t.Optional(t.Array(t.String())),
      seed: t.Optional(count("Seed that makes the choice deterministic")),
    }),
  ),
});

export const routeRequestBody = jsonBody(
  routeBody,
  { model: "m", tokens: [1, 2, 3, 4], request_id: "req-1", session_id: "s-9" },
  { model: "m", block_hashes: ["0x7b0bf7bf7fd01682"], block_tokens: 16 },
);

const target = { worker: t.String(), rank: count("Data parallel rank") };

/** Response body of `GET /v1/explain/:id`. */
const explainReport = t.Object({
  request_id: nullable(t.String()),
  time: t.String({ format: "date-time", description: "UTC" }),
  model: t.String(),
  mode: t.String(),
  prompt_tokens: count("Tokens of the prompt"),
  prompt_blocks: count("Blocks of the cost formula"),
  chosen: nullable(t.Object(target)),
  decided_by: t.String({ description: "`lowest_cost`, `tie_draw`, `softmax`, `affinity`, ..." }),
  draw: nullable(t.Number({ description: "Random number from 0 to 1; null if none was drawn" })),
  exact_blocks: count("Blocks up to which the index is exact"),
  queued_ms: t.Number({ minimum: 0 }),
  candidates: t.Array(
    t.Object({
      ...target,
      probability: t.Number({ description: "Probability of being chosen" }),
      terms: termsReport,
    }),
  ),
  filtered: t.Array(t.Object({ ...target, reason: t.String() }), {
    description: "Workers that were not candidates, with the reasons",
  }),
  actions: t.Array(
    t.Object({
      policy: t.String(),
      command: t.String(),
      worker: t.String(),
      dry_run: t.Boolean(),
      outcome: nullable(t.String({ description: "Receipt; null: none yet" })),
    }),
    { description: "Actions of policies for this request" },
  ),
});

function explanationOf(explanation: Explanation) {
  const { wallMs, candidates, filtered, actions, ...rest } = explanation;
  const placed = ({ worker, rank }: Target) => ({ worker, rank });
  return {
    ...snakeCase(rest),
    time: new Date(wallMs).toISOString(),
    candidates: candidates.map(({ target, probability, terms }) => {
      return { ...placed(target), probability, terms: termsOf(terms) };
    }),
    filtered: filtered.map(({ target, reason }) => ({ ...placed(target), reason })),
    actions: actions.map(({ isDryRun, ...action }) => ({ ...action, dry_run: isDryRun })),
  };
}
