import type { CostTerms } from "../route.ts";
import type { CostSettings } from "../settings.ts";
import type { CostInput, CostInputs } from "./cost-inputs.ts";

/** What a cost is computed from, beside the candidate itself: the same for all candidates. */
export interface CostRules {
  readonly cost: CostSettings;
  readonly blockTokens: number;
  readonly trackActiveBlocks: boolean;
  readonly trackPrefillTokens: boolean;
  readonly promptTokens: number;
  /** The least of the candidates' active prefill tokens. */
  readonly minPrefillTokens: number;
}

/** Credits of the tiers below the device where the cost has no settings of its own (Dynamo's). */
const HOST_CREDIT = 0.75;
const DISK_CREDIT = 0.25;

/**
 * The cost of sending a prompt to a candidate: lower is better. The formulas are those of
 * docs/router.md: `credits` is Dynamo's of 2026, `classic` its older one.
 */
export function costOf(input: CostInput, rules: CostRules): CostTerms {
  return fillTerms(emptyTerms(), input, rules);
}

/** Of every candidate, without making its terms. */
export function costsOf(inputs: CostInputs, rules: CostRules): number[] {
  const [input, terms] = [inputs.at(0), emptyTerms()];
  const costs = new Array<number>(inputs.count);
  for (let place = 0; place < costs.length; place++) {
    costs[place] = fillTerms(terms, inputs.at(place, input), rules).cost;
  }
  return costs;
}

type Filled<T> = { -readonly [Key in keyof T]: T[Key] };

function emptyTerms(): Filled<CostTerms> {
  return {
    deviceBlocks: 0,
    hostBlocks: 0,
    diskBlocks: 0,
    cachedTokens: 0,
    rawPrefillTokens: 0,
    decay: 1,
    credit: 0,
    activeBlocks: 0,
    additionalBlocks: 0,
    activeRequests: 0,
    cost: 0,
  };
}

function fillTerms(terms: Filled<CostTerms>, input: CostInput, rules: CostRules): CostTerms {
  const { cost, blockTokens, promptTokens } = rules;
  const isClassic = cost.kind === "classic";
  const hostCredit = isClassic ? HOST_CREDIT : cost.hostCredit;
  const diskCredit = isClassic ? DISK_CREDIT : cost.diskCredit;
  terms.deviceBlocks = input.deviceTokens / blockTokens;
  terms.hostBlocks = input.hostTokens / blockTokens;
  terms.diskBlocks = input.diskTokens / blockTokens;
  const below = hostCredit * terms.hostBlocks + diskCredit * terms.diskBlocks;
  terms.cachedTokens = Math.round((terms.deviceBlocks + below) * blockTokens);
  terms.activeBlocks = rules.trackActiveBlocks ? input.activeBlocks : 0;
  terms.additionalBlocks = rules.trackActiveBlocks ? input.additionalBlocks : 0;
  terms.activeRequests = input.activeRequests;
  const toCompute = input.prefillTokens + uncachedTokens(terms, promptTokens);
  const decoded = terms.activeBlocks + terms.additionalBlocks;

  if (cost.kind === "classic") {
    terms.rawPrefillTokens = rules.trackPrefillTokens ? toCompute : 0;
    terms.cost = cost.overlapScoreWeight * (terms.rawPrefillTokens / blockTokens) + decoded;
    return terms;
  }
  terms.rawPrefillTokens = rules.trackPrefillTokens ? toCompute + terms.cachedTokens : 0;
  const promptBlocks = Math.max(1, Math.ceil(promptTokens / blockTokens));
  const excessBlocks = (input.prefillTokens - rules.minPrefillTokens) / blockTokens;
  terms.decay = 1 / (1 + (cost.creditDecay * excessBlocks) / promptBlocks);
  terms.credit = cost.overlapCredit * terms.decay * terms.deviceBlocks + below;
  const prefillBlocks = Math.max(0, terms.rawPrefillTokens / blockTokens - terms.credit);
  const requests = cost.activeRequestWeight * terms.activeRequests;
  terms.cost = cost.prefillLoadScale * prefillBlocks + decoded + requests;
  return terms;
}

/** Of one request alone: how much what a worker holds counts. */
export function withOverlapWeight(cost: CostSettings, weight: number | undefined): CostSettings {
  if (weight === undefined) return cost;
  if (cost.kind === "classic") return { ...cost, overlapScoreWeight: weight };
  return { ...cost, overlapCredit: weight };
}

/** Tokens that a candidate would have to compute. */
export function uncachedTokens(terms: CostTerms, promptTokens: number): number {
  return promptTokens - Math.min(terms.cachedTokens, promptTokens);
}
