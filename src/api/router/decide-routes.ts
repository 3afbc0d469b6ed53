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
import { answerJson, isInteger, readObject } from "../body.ts";
import { count, nullable } from "../fields.ts";
import { problemOf, refuse } from "../problem.ts";
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

const number = (description: string) => t.Number({ description });

const place = {
  worker: t.String({ description: "Worker id" }),
  rank: count("Data parallel rank"),
  url: nullable(t.String({ description: "Of its API; null: not known here" })),
};

const termsReport = t.Object({
  device_blocks: number("Blocks held on the device, from the first on"),
  host_blocks: number("Behind them, blocks held in host memory"),
  disk_blocks: number("Behind those, blocks held on disk"),
  cached_tokens: number("Tokens that need not be computed, by their worth"),
  raw_prefill_tokens: number("Prompt tokens and those that wait there already"),
  decay: number("Of the credit, 1 where the worker has no more to prefill than others"),
  credit: number("For what is held, in blocks"),
  active_blocks: number("Blocks of its live requests"),
  additional_blocks: number("Blocks that this request would add"),
  active_requests: number("Live requests"),
  cost: number("Lower wins"),
});

const TERMS_EXAMPLE = {
  device_blocks: 40,
  host_blocks: 12,
  disk_blocks: 0,
  cached_tokens: 784,
  raw_prefill_tokens: 1_000,
  decay: 1,
  credit: 49,
  active_blocks: 120,
  additional_blocks: 23,
  active_requests: 0,
  cost: 156.5,
};

/** Body of the answer to `POST /v1/route`. */
const routeReport = t.Object(
  {
    request_id: nullable(t.String({ description: "Null: a question only, nothing is counted" })),
    ...place,
    prompt_tokens: count("Tokens of the prompt"),
    queued_ms: t.Number({ minimum: 0, description: "How long it waited for a worker" }),
    known: t.Boolean({
      description: "Whether all that the worker holds is known; false: it may hold more of this",
    }),
    prefill: nullable(t.Object(place, { description: "Of the prefill pool, where that is apart" })),
    terms: termsReport,
  },
  {
    examples: [
      {
        request_id: "req-1",
        worker: "gpu-01",
        rank: 0,
        url: "http://10.0.0.2:8000",
        prompt_tokens: 1_000,
        queued_ms: 0,
        known: true,
        prefill: null,
        terms: TERMS_EXAMPLE,
      },
    ],
  },
);

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
  t.String({ description: "In decimal, or in hex behind 0x" }),
]);

/** Body of `POST /v1/route` and `POST /v1/loads`; it is read by hand. */
const routeBody = t.Object({
  model: t.String(),
  tokens: t.Optional(t.Array(count("Token id"))),
  block_hashes: t.Optional(
    t.Array(uint64, { description: "Instead of tokens: sequence hashes of the full blocks" }),
  ),
  block_tokens: t.Optional(count("Tokens in a block of block_hashes")),
  prompt_tokens: t.Optional(count("Of the whole prompt, with block_hashes")),
  request_id: t.Optional(t.String({ description: "Left out: nothing is remembered" })),
  lora_name: t.Optional(t.String()),
  cache_salt: t.Optional(t.String()),
  session_id: t.Optional(t.String({ description: "For affinity, and for policies" })),
  priority: t.Optional(number("Larger goes first where requests wait")),
  expected_output_tokens: t.Optional(count("How long the answer is likely to get")),
  phase: t.Optional(t.Union([t.Literal("prefill"), t.Literal("decode"), t.Literal("both")])),
  overrides: t.Optional(
    t.Object({
      overlap_score_weight: t.Optional(number("Instead of the setting's")),
      temperature: t.Optional(number("Instead of the setting's")),
      mode: t.Optional(t.String()),
      worker: t.Optional(t.String({ description: "This one and no other" })),
      rank: t.Optional(count("And this rank of it")),
      allowed: t.Optional(t.Array(t.String())),
      excluded: t.Optional(t.Array(t.String())),
      seed: t.Optional(count("Makes the choice depend on nothing else that is drawn")),
    }),
  ),
});

export const routeRequestBody = {
  required: true,
  content: {
    "application/json": {
      schema: routeBody as object,
      examples: {
        tokens: {
          summary: "A prompt as tokens, counted as load",
          value: { model: "m", tokens: [1, 2, 3, 4], request_id: "req-1", session_id: "s-9" },
        },
        hashes: {
          summary: "A prompt as hashes of its blocks, a question only",
          value: { model: "m", block_hashes: ["0x7b0bf7bf7fd01682"], block_tokens: 16 },
        },
      },
    },
  },
};

const target = { worker: t.String(), rank: count("Data parallel rank") };

const properties = {
  request_id: nullable(t.String()),
  time: t.String({ format: "date-time", description: "UTC" }),
  model: t.String(),
  mode: t.String(),
  prompt_tokens: count("Tokens of the prompt"),
  prompt_blocks: count("Blocks of the cost formula"),
  chosen: nullable(t.Object(target)),
  decided_by: t.String({ description: "`lowest_cost`, `tie_draw`, `softmax`, `affinity`, ..." }),
  draw: nullable(t.Number({ description: "The number drawn, 0 to 1; null where none was" })),
  exact_blocks: count("Up to there, what is held is known exactly"),
  queued_ms: t.Number({ minimum: 0 }),
  candidates: t.Array(
    t.Object({
      ...target,
      probability: t.Number({ description: "Of being chosen" }),
      terms: termsReport,
    }),
  ),
  filtered: t.Array(t.Object({ ...target, reason: t.String() }), {
    description: "Workers that were no candidates, and why",
  }),
  actions: t.Array(
    t.Object({
      policy: t.String(),
      command: t.String(),
      worker: t.String(),
      dry_run: t.Boolean(),
      outcome: nullable(t.String({ description: "Null: no receipt came yet" })),
    }),
    { description: "What policies did because of it" },
  ),
};

const EXAMPLE = {
  request_id: "req-1",
  time: "2026-01-01T00:00:00.000Z",
  ...{ model: "m", mode: "kv", prompt_tokens: 1_000, prompt_blocks: 63 },
  chosen: { worker: "gpu-01", rank: 0 },
  ...{ decided_by: "lowest_cost", draw: 0.25, exact_blocks: 63, queued_ms: 0 },
  candidates: [{ worker: "gpu-01", rank: 0, probability: 1, terms: TERMS_EXAMPLE }],
  filtered: [{ worker: "gpu-02", rank: 0, reason: "busy_blocks" }],
  actions: [
    {
      ...{ policy: "cold_worker", command: "Warm", worker: "gpu-01" },
      ...{ dry_run: false, outcome: "40 done" },
    },
  ],
};

/** Body of `GET /v1/explain/:id`. */
const explainReport = t.Object(properties, { examples: [EXAMPLE] });

function explanationOf(explanation: Explanation) {
  const { candidates, filtered, actions } = explanation;
  const place = ({ worker, rank }: Target) => ({ worker, rank });
  return {
    request_id: explanation.requestId,
    time: new Date(explanation.wallMs).toISOString(),
    model: explanation.model,
    mode: explanation.mode,
    prompt_tokens: explanation.promptTokens,
    prompt_blocks: explanation.promptBlocks,
    chosen: explanation.chosen,
    decided_by: explanation.decidedBy,
    draw: explanation.draw,
    exact_blocks: explanation.exactBlocks,
    queued_ms: explanation.queuedMs,
    candidates: candidates.map((one) => ({
      ...place(one.target),
      probability: one.probability,
      terms: termsOf(one.terms),
    })),
    filtered: filtered.map((one) => ({ ...place(one.target), reason: one.reason })),
    actions: actions.map((one) => ({
      policy: one.policy,
      command: one.command,
      worker: one.worker,
      dry_run: one.isDryRun,
      outcome: one.outcome,
    })),
  };
}
