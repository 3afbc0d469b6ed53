import { t } from "elysia";
import type { Explanation, Target } from "../../router/index.ts";
import { count, nullable } from "../fields.ts";
import { TERMS_EXAMPLE, termsOf, termsReport } from "./route-report.ts";

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
export const explainReport = t.Object(properties, { examples: [EXAMPLE] });

export function explanationOf(explanation: Explanation) {
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
