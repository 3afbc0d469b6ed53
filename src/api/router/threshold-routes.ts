import { Elysia, t } from "elysia";
import type { Json } from "../../core/index.ts";
import type { BusyThresholds, Router, WorkerTable } from "../../router/index.ts";
import { answerJson, readObject } from "../body.ts";
import { described, jsonBody } from "../description.ts";
import { nullable } from "../fields.ts";
import { refuse } from "../problem.ts";

const thresholdReport = t.Object({
  model: t.String(),
  active_decode_blocks_threshold: nullable(
    t.Number({ description: "Fraction of KV blocks", examples: [0.85] }),
  ),
  active_prefill_tokens_threshold: nullable(t.Number({ description: "Tokens" })),
  active_prefill_tokens_threshold_frac: t.Optional(
    t.Number({ description: "Fraction of a worker's batch_tokens_max" }),
  ),
});

const thresholdsReport = t.Object({ thresholds: t.Array(thresholdReport) });

const thresholdBody = t.Object({
  model: t.String(),
  active_decode_blocks_threshold: t.Optional(t.Number({ examples: [0.85] })),
  active_prefill_tokens_threshold: t.Optional(t.Number()),
  active_prefill_tokens_threshold_frac: t.Optional(t.Number()),
});

const detail = {
  ...described("Sets thresholds of a model, or returns them if none is given", {
    400: "A threshold is out of range",
    404: "No worker of that model is known",
  }),
  requestBody: jsonBody(thresholdBody),
};

/** Returns the route of busy thresholds, as Dynamo has it. Null disables a threshold. */
export function thresholdRoutes(router: Router, table: WorkerTable) {
  return new Elysia()
    .get(
      "/busy_threshold",
      () => ({
        thresholds: [...new Set(table.targets.map(({ model }) => model))]
          .map((model) => reportOf(model, router.thresholds(model)))
          .filter(isSet),
      }),
      {
        response: thresholdsReport,
        detail: { summary: "Lists the thresholds of all models that have any" },
      },
    )
    .post(
      "/busy_threshold",
      async ({ request }) => {
        const body = await readObject(request);
        return body instanceof Response ? body : answer(router, table, body);
      },
      { parse: "none", response: thresholdReport, detail },
    );
}

function answer(
  router: Router,
  table: WorkerTable,
  body: Readonly<Record<string, Json>>,
): Response {
  const { model } = body;
  if (typeof model !== "string") return refuseRange("model is missing");
  const changed: Record<string, number | null> = {};
  for (const [name, { field, range, holds }] of Object.entries(FIELDS)) {
    const value = body[name];
    if (value === undefined) continue;
    if (value !== null && (typeof value !== "number" || value < 0 || !holds(value))) {
      return refuseRange(`${name} is ${range}`);
    }
    changed[field] = value;
  }
  const isKnown =
    Object.keys(changed).length === 0
      ? table.targets.some((target) => target.model === model)
      : router.setThresholds(model, changed);
  if (isKnown) return answerJson(reportOf(model, router.thresholds(model)));
  return refuse("NOT_FOUND", `no known worker of model ${model.slice(0, 100)}`);
}

/** Names of the thresholds in JSON. */
const FIELDS = {
  active_decode_blocks_threshold: {
    field: "activeDecodeBlocksThreshold",
    range: "a number from 0 to 1",
    holds: (value: number) => value <= 1,
  },
  active_prefill_tokens_threshold: {
    field: "activePrefillTokensThreshold",
    range: "an integer, 0 or more",
    holds: Number.isSafeInteger,
  },
  active_prefill_tokens_threshold_frac: {
    field: "activePrefillTokensThresholdFrac",
    range: "a number from 0 to 1000",
    holds: (value: number) => value <= 1_000,
  },
} as const;

/** Returns a 400 response for a value out of range. Clients of Dynamo expect 400, not 422. */
function refuseRange(what: string): Response {
  return refuse("REQUEST_INVALID", `body: ${what}`, { status: 400 });
}

function reportOf(model: string, thresholds: BusyThresholds) {
  const frac = thresholds.activePrefillTokensThresholdFrac ?? null;
  return {
    model,
    active_decode_blocks_threshold: thresholds.activeDecodeBlocksThreshold,
    active_prefill_tokens_threshold: thresholds.activePrefillTokensThreshold,
    // This field is left out unless set, because clients of Dynamo know only the two fields above.
    ...(frac === null ? {} : { active_prefill_tokens_threshold_frac: frac }),
  };
}

function isSet({ model: _model, ...thresholds }: ReturnType<typeof reportOf>): boolean {
  return Object.values(thresholds).some((value) => value !== null);
}
