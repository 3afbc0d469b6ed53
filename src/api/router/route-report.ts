import { t } from "elysia";
import type { CostTerms, RouteDecision, Target } from "../../router/index.ts";
import { count, nullable } from "../fields.ts";

const number = (description: string) => t.Number({ description });

const place = {
  worker: t.String({ description: "Worker id" }),
  rank: count("Data parallel rank"),
  url: nullable(t.String({ description: "Of its API; null: not known here" })),
};

export const termsReport = t.Object({
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

export const TERMS_EXAMPLE = {
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
export const routeReport = t.Object(
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

export function termsOf(terms: CostTerms) {
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

export function decisionOf(decision: RouteDecision, requestId: string | undefined) {
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
export const routeBody = t.Object({
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
