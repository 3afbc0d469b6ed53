import { type CostConstants, DEFAULTS, type WorkerFacts } from "./literal/formulas.ts";

/**
 * Worked examples, computed by hand from the formulas: `cost` is what the literal implementation
 * and the router must both come to. Blocks of 16 tokens where nothing else is said.
 */
export interface WorkedCost {
  readonly name: string;
  readonly promptTokens: number;
  readonly least: number;
  readonly facts: WorkerFacts;
  readonly constants: CostConstants;
  readonly cost: number;
}

const idle: WorkerFacts = {
  ...{ activePrefillTokens: 0, activeBlocks: 0, activeRequests: 0 },
  ...{ additionalBlocks: 0, device: 0, host: 0, disk: 0 },
};
const of = (more: Partial<CostConstants>): CostConstants => ({ ...DEFAULTS, ...more });

export const WORKED_COSTS: readonly WorkedCost[] = [
  {
    name: "an idle worker that has nothing: the prompt to prefill, and to hold",
    ...{ promptTokens: 160, least: 0, constants: DEFAULTS },
    facts: { ...idle, additionalBlocks: 10 },
    // raw = 0 + 160 + 0; 160 / 16 - 0 + 0 + 10
    cost: 20,
  },
  {
    name: "half of it on the device",
    ...{ promptTokens: 160, least: 0, constants: DEFAULTS },
    facts: { ...idle, additionalBlocks: 10, device: 5 },
    // cached 80, uncached 80, raw 160; 10 - 5 + 10
    cost: 15,
  },
  {
    name: "two blocks on each tier",
    ...{ promptTokens: 160, least: 0, constants: DEFAULTS },
    facts: { ...idle, additionalBlocks: 10, device: 2, host: 2, disk: 2 },
    // cached = round((2 + 1.5 + 0.5) * 16) = 64; 10 - 4 + 10
    cost: 16,
  },
  {
    name: "others at work there",
    ...{ promptTokens: 160, least: 0, constants: DEFAULTS },
    facts: { ...idle, activePrefillTokens: 320, activeBlocks: 30, additionalBlocks: 6, device: 4 },
    // raw = 320 + 96 + 64 = 480; 30 - 4 + 30 + 6
    cost: 62,
  },
  {
    name: "never below nothing to prefill",
    ...{ promptTokens: 100, least: 0, constants: of({ scale: 2 }) },
    facts: { ...idle, additionalBlocks: 1, device: 6, host: 0 },
    // R = 7, cached 96, uncached 4, raw 100; 2 * max(0, 6.25 - 6) + 1
    cost: 1.5,
  },
  {
    name: "more cached than asked, as part-full blocks make it",
    ...{ promptTokens: 90, least: 0, constants: DEFAULTS },
    facts: { ...idle, device: 6 },
    // cached 96, uncached 0, raw 96; max(0, 6 - 6)
    cost: 0,
  },
  {
    name: "prefill that is not tracked",
    ...{ promptTokens: 160, least: 0, constants: of({ tracksPrefill: false }) },
    facts: { ...idle, activePrefillTokens: 500, activeBlocks: 7, additionalBlocks: 10, device: 3 },
    // raw = 0; max(0, 0 - 3) + 7 + 10
    cost: 17,
  },
  {
    name: "credit that fades where more is waiting than elsewhere",
    ...{ promptTokens: 160, least: 160, constants: of({ k: 2 }) },
    facts: { ...idle, activePrefillTokens: 480, additionalBlocks: 10, device: 10 },
    // (480 - 160) / 16 = 20; decay = 1 / (1 + 2 * 20 / 10) = 0.2; raw = 640; 40 - 2 + 10
    cost: 48,
  },
  {
    name: "a weight for requests",
    ...{ promptTokens: 32, least: 0, constants: of({ a: 3 }) },
    facts: { ...idle, activeRequests: 4, activeBlocks: 8, additionalBlocks: 2 },
    // 2 + 8 + 2 + 12
    cost: 24,
  },
  {
    name: "other credits",
    ...{ promptTokens: 160, least: 0, constants: of({ c: 0.5, hostCredit: 0.5, diskCredit: 0 }) },
    facts: { ...idle, additionalBlocks: 10, device: 4, host: 4, disk: 2 },
    // cached = round((4 + 2 + 0) * 16) = 96; raw 160; 10 - (2 + 2) + 10
    cost: 16,
  },
];

/** The example of the older form: prefill blocks, decode blocks, weight 1. */
export const WORKED_CLASSIC = [
  { prefillBlocks: 8, decodeBlocks: 10, cost: 18 },
  { prefillBlocks: 5, decodeBlocks: 5, cost: 10 },
  { prefillBlocks: 2, decodeBlocks: 9, cost: 11 },
] as const;

/** e^0, e^-0.5 and e^-1 over their sum; and the same at half the temperature. */
export const WORKED_SOFTMAX = [
  {
    costs: [10, 15, 20],
    temperature: 1,
    probabilities: [0.50648039, 0.30719589, 0.18632372],
  },
  {
    costs: [10, 15, 20],
    temperature: 0.5,
    probabilities: [0.66524096, 0.24472847, 0.09003057],
  },
  { costs: [7, 7], temperature: 0.3, probabilities: [0.5, 0.5] },
  { costs: [7], temperature: 2, probabilities: [1] },
] as const;
