import type { Selection } from "../choice/index.ts";
import { type CostInput, costOf, sharedByLowest, softmax } from "../choice/index.ts";
import type { Candidate, Explanation, FilterReason, PolicyAction } from "../route.ts";
import type { RouterMode } from "../settings.ts";
import type { Target } from "../workers.ts";
import type { Choice } from "./chooser.ts";

/** A decision as it is kept: small, and worked out when somebody asks. */
export interface DecisionRecord {
  readonly requestId: string;
  readonly wallMs: number;
  readonly model: string;
  readonly mode: RouterMode;
  readonly promptTokens: number;
  readonly blockTokens: number;
  readonly exactTokens: number;
  readonly queuedMs: number;
  readonly selection: Selection;
  /** Null: nobody was chosen. */
  readonly choice: Choice | null;
}

interface Kept {
  readonly record: DecisionRecord;
  /** Seven words a candidate. */
  readonly inputs: Uint32Array;
  readonly actions: PolicyAction[];
}

const INPUT_WORDS = 7;
const ACTIONS_MAX = 32;
/** Candidates of all that are kept, some 50 bytes each. */
const ROWS_MAX = 2 ** 19;

/** The latest decisions, by request. */
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
    const rows = record.selection.targets.length;
    while (this.#kept.size >= this.#max || (this.#kept.size > 0 && this.#rows + rows > ROWS_MAX)) {
      this.#forget(this.#kept.keys().next().value!);
    }
    const { choice } = record;
    const inputs = packInputs(choice?.inputs ?? []);
    const light = { ...record, choice: choice === null ? null : { ...choice, inputs: [] } };
    this.#kept.set(record.requestId, { record: light, inputs, actions: [] });
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
    this.#rows -= kept.record.selection.targets.length;
  }
}

function explanationOf({ record, inputs, actions }: Kept): Explanation {
  const { choice, selection, blockTokens, promptTokens } = record;
  return {
    requestId: record.requestId,
    wallMs: record.wallMs,
    model: record.model,
    mode: record.mode,
    promptTokens,
    promptBlocks: Math.ceil(promptTokens / blockTokens),
    chosen: choice === null ? null : { worker: choice.target.worker, rank: choice.target.rank },
    candidates: choice === null ? [] : candidatesOf(choice, selection, inputs),
    filtered: filteredOf(selection),
    decidedBy: choice?.decidedBy ?? "none",
    draw: choice?.draw ?? null,
    exactBlocks: Math.floor(record.exactTokens / blockTokens),
    queuedMs: record.queuedMs,
    actions,
  };
}

function candidatesOf(choice: Choice, selection: Selection, inputs: Uint32Array): Candidate[] {
  const terms = selection.candidates.map((_, at) => costOf(inputAt(inputs, at), choice.rules));
  const targets = selection.candidates.map((place) => selection.targets[place]!);
  const chances = chancesOf(choice, targets, terms);
  return targets.map((target, at) => ({ target, terms: terms[at]!, probability: chances[at]! }));
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

function filteredOf({ targets, reasons }: Selection) {
  const filtered: { target: Target; reason: FilterReason }[] = [];
  for (const [at, reason] of reasons.entries()) {
    if (reason !== null) filtered.push({ target: targets[at]!, reason });
  }
  return filtered;
}

function packInputs(inputs: readonly CostInput[]): Uint32Array {
  const packed = new Uint32Array(inputs.length * INPUT_WORDS);
  let at = 0;
  for (const input of inputs) {
    packed[at++] = input.deviceTokens;
    packed[at++] = input.hostTokens;
    packed[at++] = input.diskTokens;
    packed[at++] = input.prefillTokens;
    packed[at++] = input.activeBlocks;
    packed[at++] = input.additionalBlocks;
    packed[at++] = input.activeRequests;
  }
  return packed;
}

function inputAt(packed: Uint32Array, place: number): CostInput {
  const from = place * INPUT_WORDS;
  return {
    deviceTokens: packed[from]!,
    hostTokens: packed[from + 1]!,
    diskTokens: packed[from + 2]!,
    prefillTokens: packed[from + 3]!,
    activeBlocks: packed[from + 4]!,
    additionalBlocks: packed[from + 5]!,
    activeRequests: packed[from + 6]!,
  };
}
