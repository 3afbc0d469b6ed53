import { t } from "elysia";
import type { Explanation, Target } from "../../router/index.ts";
import { count, nullable } from "../fields.ts";
import { termsOf, termsReport } from "./route-report.ts";

const target = { worker: t.String(), rank: count("Data parallel rank") };

/** Body of `GET /v1/explain/:id`. */
export const explainReport = t.Object({
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
});

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
