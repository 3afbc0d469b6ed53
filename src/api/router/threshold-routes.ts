import { Elysia, t } from "elysia";
import type { Json } from "../../core/index.ts";
import type { BusyThresholds, Router, WorkerTable } from "../../router/index.ts";
import { answerJson, readObject } from "../body.ts";
import { nullable } from "../fields.ts";
import { refuse } from "../problem.ts";

const thresholdReport = t.Object(
  {
    model: t.String(),
    active_decode_blocks_threshold: nullable(t.Number({ description: "Share of KV blocks" })),
    active_prefill_tokens_threshold: nullable(t.Number({ description: "Tokens" })),
  },
  {
    examples: [
      { model: "m", active_decode_blocks_threshold: 0.85, active_prefill_tokens_threshold: null },
    ],
  },
);

const thresholdsReport = t.Object(
  { thresholds: t.Array(thresholdReport) },
  { examples: [{ thresholds: [] }] },
);

const detail = {
  summary: "Sets thresholds of a model, or tells them where none is given",
  requestBody: {
    required: true,
    content: {
      "application/json": {
        schema: t.Object({
          model: t.String(),
          active_decode_blocks_threshold: t.Optional(t.Number()),
          active_prefill_tokens_threshold: t.Optional(t.Number()),
        }) as object,
        examples: { set: { value: { model: "m", active_decode_blocks_threshold: 0.85 } } },
      },
    },
  },
};

/** Dynamo's route of this name; null switches a threshold off. */
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
        detail: { summary: "Thresholds of all models that have some" },
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
  const { active_decode_blocks_threshold: blocks, active_prefill_tokens_threshold: tokens } = body;
  if (blocks !== undefined && blocks !== null && !isNumber(blocks, 1)) {
    return refuseRange("active_decode_blocks_threshold is a number from 0 to 1");
  }
  const isTokens =
    tokens === null || (isNumber(tokens, Number.MAX_SAFE_INTEGER) && Number.isInteger(tokens));
  if (tokens !== undefined && !isTokens) {
    return refuseRange("active_prefill_tokens_threshold is a whole number, 0 or more");
  }
  const isKnown =
    blocks === undefined && tokens === undefined
      ? table.targets.some((target) => target.model === model)
      : router.setThresholds(model, {
          ...(blocks === undefined ? {} : { activeDecodeBlocksThreshold: blocks }),
          ...(isTokens ? { activePrefillTokensThreshold: tokens } : {}),
        });
  if (isKnown) return answerJson(reportOf(model, router.thresholds(model)));
  return refuse("NOT_FOUND", `no worker of model ${model.slice(0, 100)} is known`);
}

/** 400 and not 422: that is what clients of the origin look for. */
function refuseRange(what: string): Response {
  return refuse("REQUEST_INVALID", `body: ${what}`, { status: 400 });
}

function isNumber(value: Json | undefined, max: number): value is number {
  return typeof value === "number" && value >= 0 && value <= max;
}

function reportOf(model: string, thresholds: BusyThresholds) {
  return {
    model,
    active_decode_blocks_threshold: thresholds.activeDecodeBlocksThreshold,
    active_prefill_tokens_threshold: thresholds.activePrefillTokensThreshold,
  };
}

function isSet(report: ReturnType<typeof reportOf>): boolean {
  const { active_decode_blocks_threshold: blocks, active_prefill_tokens_threshold: tokens } =
    report;
  return blocks !== null || tokens !== null;
}
