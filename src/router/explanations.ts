import { costOf } from "./cost.ts";
import type { Candidate, Explanation, PolicyAction } from "./route.ts";
import { type Choice, type Eligibility, sharedByLowest, softmax } from "./scheduler.ts";
import type { Target } from "./workers.ts";

/** Inputs of a decision. The explanation is computed from them on request. */
interface DecisionRecord
  extends Pick<Explanation, "wallMs" | "model" | "mode" | "promptTokens" | "queuedMs"> {
  readonly requestId: string;
  readonly blockTokens: number;
  readonly exactTokens: number;
  readonly eligibility: Eligibility;
  /** Chosen worker and its costs. Null: no worker was chosen. */
  readonly choice: Choice | null;
}

interface Kept {
  readonly record: DecisionRecord;
  readonly actions: PolicyAction[];
}

const ACTIONS_MAX = 32;
/** Maximum candidates in all records together, 28 bytes each. */
const ROWS_MAX = 2 ** 19;

/** Explanations of the most recent decisions, by request id. The oldest is dropped at the limit. */
export class Explanations {
  readonly #max: number;
  readonly #kept = new Map<string, Kept>();
  #rows = 0;

  constructor(max: number) {
    this.#max = max;
  }

  keep(record: DecisionRecord): void {
    if (this.#max <= 0) return;
    this.#forget(record.requestId);
    const rows = record.eligibility.targets.length;
    while (this.#kept.size >= this.#max || (this.#kept.size > 0 && this.#rows + rows > ROWS_MAX)) {
      this.#forget(this.#kept.keys().next().value!);
    }
    this.#kept.set(record.requestId, { record, actions: [] });
    this.#rows += rows;
  }

  noteAction(requestId: string, action: PolicyAction): boolean {
    const kept = this.#kept.get(requestId);
    if (kept === undefined || kept.actions.length >= ACTIONS_MAX) return false;
    kept.actions.push(action);
    return true;
  }

  explain(requestId: string): Explanation | null {
    const kept = this.#kept.get(requestId);
    return kept === undefined ? null : explanationOf(kept);
  }

  #forget(requestId: string): void {
    const kept = this.#kept.get(requestId);
    if (kept === undefined) return;
    this.#kept.delete(requestId);
    this.#rows -= kept.record.eligibility.targets.length;
  }
}

function explanationOf({ record, actions }: Kept): Explanation {
  const { choice, eligibility, blockTokens, exactTokens, ...kept } = record;
  const { targets, reasons, candidates } = eligibility;
  return {
    ...kept,
    promptBlocks: Math.ceil(kept.promptTokens / blockTokens),
    chosen: choice === null ? null : { worker: choice.target.worker, rank: choice.target.rank },
    candidates: choice === null ? [] : candidatesOf(choice, candidates),
    filtered: targets.flatMap((target, at) => {
      const reason = reasons[at] ?? null;
      return reason === null ? [] : [{ target, reason }];
    }),
    decidedBy: choice?.decidedBy ?? "none",
    draw: choice?.draw ?? null,
    exactBlocks: Math.floor(exactTokens / blockTokens),
    actions,
  };
}

function candidatesOf(choice: Choice, targets: readonly Target[]): Candidate[] {
  const terms = targets.map((_, candidateIndex) =>
    costOf(choice.inputs.at(candidateIndex), choice.rules),
  );
  const chances = chancesOf(choice, targets, terms);
  return targets.map((target, at) => ({ target, terms: terms[at], probability: chances[at] }));
}

function chancesOf(
  { decidedBy, temperature, target: chosen, mode }: Choice,
  targets: readonly Target[],
  terms: readonly { readonly cost: number; readonly activeRequests: number }[],
): number[] {
  const costs = terms.map(({ cost }) => cost);
  if (decidedBy === "softmax") return softmax(costs, temperature);
  if (decidedBy === "random") return targets.map(() => 1 / targets.length);
  if (decidedBy === "least_loaded") {
    return sharedByLowest(terms.map(({ activeRequests }) => activeRequests));
  }
  if (decidedBy === "affinity" || decidedBy === "round_robin") {
    return targets.map(({ id }) => (id === chosen.id ? 1 : 0));
  }
  if (mode === "direct" && temperature > 0) return softmax(costs, temperature);
  return sharedByLowest(costs);
}
