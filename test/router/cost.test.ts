import { describe, expect, test } from "bun:test";
import {
  type CostInput,
  type CostRules,
  costOf,
  ROUTER_DEFAULTS,
  uncachedTokens,
  withOverlapWeight,
} from "../../src/router/index.ts";

const IDLE: CostInput = {
  deviceTokens: 0,
  hostTokens: 0,
  diskTokens: 0,
  prefillTokens: 0,
  activeBlocks: 0,
  additionalBlocks: 0,
  activeRequests: 0,
};

const RULES: CostRules = {
  cost: ROUTER_DEFAULTS.cost,
  blockTokens: 16,
  trackActiveBlocks: true,
  trackPrefillTokens: true,
  promptTokens: 1_000,
  minPrefillTokens: 0,
};

const credits = (changed: object) => ({ ...RULES.cost, ...changed }) as CostRules["cost"];

describe("credits", () => {
  test("a candidate without cached blocks costs the prompt and the added blocks", () => {
    const terms = costOf({ ...IDLE, additionalBlocks: 63 }, RULES);
    expect(terms.rawPrefillTokens).toBe(1_000);
    expect(terms.cost).toBe(1_000 / 16 + 63);
  });

  test("three tiers: cached = round((20 + 0.75*10 + 0.25*6) * 16) = 464", () => {
    const held = { deviceTokens: 320, hostTokens: 160, diskTokens: 96 };
    const terms = costOf({ ...IDLE, ...held, additionalBlocks: 63 }, RULES);
    expect(terms).toMatchObject({ deviceBlocks: 20, hostBlocks: 10, diskBlocks: 6 });
    expect(terms.cachedTokens).toBe(464);
    expect(terms.credit).toBe(29);
    // 1000/16 - 29 + 0 + 63
    expect(terms.cost).toBe(96.5);
    expect(uncachedTokens(terms, 1_000)).toBe(536);
  });

  test("load: 800 waiting tokens, 40 active blocks, 5 requests at 0.5 each", () => {
    const load = { prefillTokens: 800, activeBlocks: 40, additionalBlocks: 3, activeRequests: 5 };
    const rules = { ...RULES, cost: credits({ activeRequestWeight: 0.5 }) };
    const terms = costOf({ ...IDLE, ...load, deviceTokens: 960 }, rules);
    expect(terms.rawPrefillTokens).toBe(1_800);
    // 112.5 - 60 + 40 + 3 + 2.5
    expect(terms.cost).toBe(98);
  });

  test("decay: k = 2, 1,000 tokens above the minimum, R = 63 blocks", () => {
    const rules = { ...RULES, minPrefillTokens: 600, cost: credits({ creditDecay: 2 }) };
    const terms = costOf({ ...IDLE, prefillTokens: 1_600, deviceTokens: 320 }, rules);
    expect(terms.decay).toBeCloseTo(1 / (1 + (2 * 62.5) / 63), 12);
    expect(terms.credit).toBeCloseTo(20 * terms.decay, 12);
    expect(terms.cost).toBeCloseTo(2_600 / 16 - terms.credit, 12);
  });

  test("the prefill part is never negative", () => {
    const rules = { ...RULES, cost: credits({ overlapCredit: 4 }) };
    const terms = costOf({ ...IDLE, deviceTokens: 512, activeBlocks: 7 }, rules);
    expect(terms.credit).toBe(128);
    expect(terms.cost).toBe(7);
  });

  test("without prefill tracking only decode counts, without block tracking only prefill", () => {
    const input = { ...IDLE, deviceTokens: 160, activeBlocks: 9, additionalBlocks: 53 };
    expect(costOf(input, { ...RULES, trackPrefillTokens: false }).cost).toBe(62);
    expect(costOf(input, { ...RULES, trackActiveBlocks: false }).cost).toBe(52.5);
  });

  test("scale multiplies only the prefill part", () => {
    const rules = { ...RULES, cost: credits({ prefillLoadScale: 3 }) };
    expect(costOf({ ...IDLE, activeBlocks: 10 }, rules).cost).toBe(3 * 62.5 + 10);
  });

  test("an empty prompt has a cost", () => {
    expect(costOf({ ...IDLE, activeBlocks: 2 }, { ...RULES, promptTokens: 0 }).cost).toBe(2);
  });
});

describe("classic", () => {
  // The example of the origin's document: blocks to prefill and blocks decoded.
  const cases = [
    { held: 2, prefill: 8, decode: 10, cost: 18 },
    { held: 5, prefill: 5, decode: 5, cost: 10 },
    { held: 8, prefill: 2, decode: 9, cost: 11 },
  ];
  for (const { held, prefill, decode, cost } of cases) {
    test(`${prefill} blocks to prefill and ${decode} to decode cost ${cost}`, () => {
      const rules = { ...RULES, promptTokens: 160 };
      const classic = { kind: "classic", overlapScoreWeight: 1 } as const;
      const input = { ...IDLE, deviceTokens: held * 16, activeBlocks: decode };
      expect(costOf(input, { ...rules, cost: classic }).cost).toBe(cost);
    });
  }

  test("weight 0 counts only decode", () => {
    const cost = withOverlapWeight({ kind: "classic", overlapScoreWeight: 1 }, 0);
    expect(costOf({ ...IDLE, activeBlocks: 4 }, { ...RULES, cost }).cost).toBe(4);
  });
});

test("a weight for one request is the overlap credit, or the classic weight", () => {
  expect(withOverlapWeight(RULES.cost, 2)).toMatchObject({ overlapCredit: 2 });
  expect(withOverlapWeight(RULES.cost, undefined)).toBe(RULES.cost);
});
