/**
 * The cost model. The scheduler collects each candidate's inputs (`CostInput`) and compares the
 * costs from `costsOf`; lower is better. `costOf` returns the same cost with its terms, for
 * replies, explanations and the load of a decision. The cost depends only on inputs and rules, so
 * it can be recomputed later from both.
 */
import type { CostTerms } from "./route.ts";
import type { CostSettings } from "./settings.ts";

/**
 * One candidate's load, and the prompt tokens in its cache by tier: leading tokens on the device,
 * the tokens that follow in host memory, then those on disk.
 */
export interface CostInput {
  readonly deviceTokens: number;
  readonly hostTokens: number;
  readonly diskTokens: number;
  readonly prefillTokens: number;
  readonly activeBlocks: number;
  readonly additionalBlocks: number;
  readonly activeRequests: number;
}

type Filled<T> = { -readonly [Key in keyof T]: T[Key] };

const WORDS = 7;

/**
 * Cost inputs of all candidates of a decision. A candidate takes 28 bytes, so thousands of
 * decisions can be kept.
 */
export class CostInputs {
  readonly count: number;
  readonly #words: Uint32Array;

  constructor(count: number) {
    this.count = count;
    this.#words = new Uint32Array(count * WORDS);
  }

  set(candidateIndex: number, input: CostInput): void {
    const words = this.#words;
    const from = candidateIndex * WORDS;
    words[from] = input.deviceTokens;
    words[from + 1] = input.hostTokens;
    words[from + 2] = input.diskTokens;
    words[from + 3] = input.prefillTokens;
    words[from + 4] = input.activeBlocks;
    words[from + 5] = input.additionalBlocks;
    words[from + 6] = input.activeRequests;
  }

  /** Returns one candidate's inputs. Writes them to `into` if it is given. */
  at(candidateIndex: number, into: Filled<CostInput> = emptyInput()): Filled<CostInput> {
    const words = this.#words;
    const from = candidateIndex * WORDS;
    into.deviceTokens = words[from];
    into.hostTokens = words[from + 1];
    into.diskTokens = words[from + 2];
    into.prefillTokens = words[from + 3];
    into.activeBlocks = words[from + 4];
    into.additionalBlocks = words[from + 5];
    into.activeRequests = words[from + 6];
    return into;
  }

  prefillTokensAt(candidateIndex: number): number {
    return this.#words[candidateIndex * WORDS + 3];
  }

  activeRequestsAt(candidateIndex: number): number {
    return this.#words[candidateIndex * WORDS + 6];
  }
}

export function emptyInput(): Filled<CostInput> {
  return {
    deviceTokens: 0,
    hostTokens: 0,
    diskTokens: 0,
    prefillTokens: 0,
    activeBlocks: 0,
    additionalBlocks: 0,
    activeRequests: 0,
  };
}

/** Cost inputs that are the same for all candidates. */
export interface CostRules {
  readonly cost: CostSettings;
  readonly blockTokens: number;
  readonly trackActiveBlocks: boolean;
  readonly trackPrefillTokens: boolean;
  readonly promptTokens: number;
  /** Lowest number of active prefill tokens among the candidates. */
  readonly minPrefillTokens: number;
}

/**
 * Values of cached blocks in host memory and on disk, relative to the device, for cost formulas
 * without such settings. These are Dynamo's values.
 */
const HOST_CREDIT = 0.75;
const DISK_CREDIT = 0.25;

/**
 * Returns the cost of routing a prompt to a candidate, with its terms; lower is better.
 * docs/internals/router.md has the formulas: `credits` is Dynamo's formula of 2026, `classic` is
 * its older one.
 */
export function costOf(input: CostInput, rules: CostRules): CostTerms {
  return fillTerms(emptyTerms(), input, rules);
}

/** Returns the costs of all candidates. Allocates no terms. */
export function costsOf(inputs: CostInputs, rules: CostRules): number[] {
  const [input, terms] = [inputs.at(0), emptyTerms()];
  const costs = new Array<number>(inputs.count);
  for (let candidateIndex = 0; candidateIndex < costs.length; candidateIndex++) {
    costs[candidateIndex] = fillTerms(terms, inputs.at(candidateIndex, input), rules).cost;
  }
  return costs;
}

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

/** Replaces the weight of cached blocks by the request's own weight, if it has one. */
export function withOverlapWeight(cost: CostSettings, weight: number | undefined): CostSettings {
  if (weight === undefined) return cost;
  if (cost.kind === "classic") return { ...cost, overlapScoreWeight: weight };
  return { ...cost, overlapCredit: weight };
}

/** Returns the prompt tokens that the candidate does not have in its cache and must compute. */
export function uncachedTokens(terms: CostTerms, promptTokens: number): number {
  return promptTokens - Math.min(terms.cachedTokens, promptTokens);
}
