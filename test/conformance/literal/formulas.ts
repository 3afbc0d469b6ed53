/** The cost of one worker, from the formulas of docs/internals/router.md, term by term. */
export interface WorkerFacts {
  readonly activePrefillTokens: number;
  readonly activeBlocks: number;
  readonly activeRequests: number;
  readonly additionalBlocks: number;
  readonly device: number;
  readonly host: number;
  readonly disk: number;
}

export interface CostConstants {
  readonly B: number;
  readonly c: number;
  readonly k: number;
  readonly scale: number;
  readonly a: number;
  readonly hostCredit: number;
  readonly diskCredit: number;
  readonly tracksPrefill: boolean;
}

export const DEFAULTS: CostConstants = {
  B: 16,
  c: 1,
  k: 0,
  scale: 1,
  a: 0,
  hostCredit: 0.75,
  diskCredit: 0.25,
  tracksPrefill: true,
};

export function cachedTokens(facts: WorkerFacts, { B, hostCredit, diskCredit }: CostConstants) {
  return Math.round((facts.device + hostCredit * facts.host + diskCredit * facts.disk) * B);
}

export function uncachedTokens(T: number, cached: number): number {
  return T - Math.min(cached, T);
}

/** Lower wins. `least`: the least active prefill tokens of the workers that may be chosen. */
export function creditsCost(
  T: number,
  facts: WorkerFacts,
  least: number,
  constants: CostConstants,
): number {
  const { B, c, k, scale, a, hostCredit, diskCredit, tracksPrefill } = constants;
  const R = Math.ceil(T / B);
  const cached = cachedTokens(facts, constants);
  const uncached = uncachedTokens(T, cached);
  const raw = tracksPrefill ? facts.activePrefillTokens + uncached + cached : 0;
  const decay = 1 / (1 + (k * ((facts.activePrefillTokens - least) / B)) / R);
  const credit = c * decay * facts.device + hostCredit * facts.host + diskCredit * facts.disk;
  return (
    scale * Math.max(0, raw / B - credit) +
    facts.activeBlocks +
    facts.additionalBlocks +
    a * facts.activeRequests
  );
}

/**
 * The older form: what must be prefilled there with this prompt, in blocks, times the weight, and
 * what is decoded there with it.
 */
export function classicCost(
  T: number,
  facts: WorkerFacts,
  weight: number,
  constants: CostConstants,
) {
  const uncached = uncachedTokens(T, cachedTokens(facts, constants));
  const prefillBlocks = (facts.activePrefillTokens + uncached) / constants.B;
  return weight * prefillBlocks + facts.activeBlocks + facts.additionalBlocks;
}

/** Probabilities by softmax over costs scaled to [0, 1]; equal costs share alike. */
export function softmax(costs: readonly number[], temperature: number): number[] {
  const min = Math.min(...costs);
  const max = Math.max(...costs);
  if (max === min) return costs.map(() => 1 / costs.length);
  const weights = costs.map((cost) => Math.exp(-(cost - min) / ((max - min) * temperature)));
  const sum = weights.reduce((all, one) => all + one, 0);
  return weights.map((weight) => weight / sum);
}

/** Temperature 0: the lowest, those that are equal alike. */
export function lowest(costs: readonly number[]): number[] {
  const min = Math.min(...costs);
  const count = costs.filter((cost) => cost === min).length;
  return costs.map((cost) => (cost === min ? 1 / count : 0));
}
