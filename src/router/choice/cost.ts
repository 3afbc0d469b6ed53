import type { CostTerms } from "../route.ts";
import type { CostSettings } from "../settings.ts";

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

/**
 * One candidate: tokens of the prompt it holds in each tier (device first, then what goes on from
 * there on host, then on disk), and its load.
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

/** Credits of the tiers below the device where the cost has no settings of its own (Dynamo's). */
const HOST_CREDIT = 0.75;
const DISK_CREDIT = 0.25;

/**
 * The cost of sending a prompt to a candidate: lower is better. The formulas are those of
 * docs/router.md: `credits` is Dynamo's of 2026, `classic` its older one.
 */
export function costOf(input: CostInput, rules: CostRules): CostTerms {
  const { cost, blockTokens, promptTokens } = rules;
  const deviceBlocks = input.deviceTokens / blockTokens;
  const hostBlocks = input.hostTokens / blockTokens;
  const diskBlocks = input.diskTokens / blockTokens;
  const isClassic = cost.kind === "classic";
  const hostCredit = isClassic ? HOST_CREDIT : cost.hostCredit;
  const diskCredit = isClassic ? DISK_CREDIT : cost.diskCredit;

  const below = hostCredit * hostBlocks + diskCredit * diskBlocks;
  const cachedTokens = Math.round((deviceBlocks + below) * blockTokens);
  const uncached = promptTokens - Math.min(cachedTokens, promptTokens);
  const activeBlocks = rules.trackActiveBlocks ? input.activeBlocks : 0;
  const additionalBlocks = rules.trackActiveBlocks ? input.additionalBlocks : 0;
  const terms = { deviceBlocks, hostBlocks, diskBlocks, cachedTokens, activeBlocks };
  const load = { additionalBlocks, activeRequests: input.activeRequests };

  if (cost.kind === "classic") {
    const raw = rules.trackPrefillTokens ? input.prefillTokens + uncached : 0;
    const total = cost.overlapScoreWeight * (raw / blockTokens) + activeBlocks + additionalBlocks;
    return { ...terms, ...load, rawPrefillTokens: raw, decay: 1, credit: 0, cost: total };
  }
  const raw = rules.trackPrefillTokens ? input.prefillTokens + uncached + cachedTokens : 0;
  const promptBlocks = Math.max(1, Math.ceil(promptTokens / blockTokens));
  const excessBlocks = (input.prefillTokens - rules.minPrefillTokens) / blockTokens;
  const decay = 1 / (1 + (cost.creditDecay * excessBlocks) / promptBlocks);
  const credit = cost.overlapCredit * decay * deviceBlocks + below;
  const prefill = cost.prefillLoadScale * Math.max(0, raw / blockTokens - credit);
  const requests = cost.activeRequestWeight * input.activeRequests;
  const total = prefill + activeBlocks + additionalBlocks + requests;
  return { ...terms, ...load, rawPrefillTokens: raw, decay, credit, cost: total };
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
