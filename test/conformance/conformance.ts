import { assert } from "../../src/core/index.ts";
import {
  ActiveLoad,
  type PrefixIndex,
  ROUTER_DEFAULTS,
  type RouterSettings,
} from "../../src/router/index.ts";
import { ManualClock } from "../support/index.ts";
import { checkDraws } from "./draws.ts";
import { type CostConstants, creditsCost, DEFAULTS, softmax } from "./literal/formulas.ts";
import { makeRig } from "./rig.ts";
import { Scenario } from "./scenario.ts";
import { walkIndex } from "./steps-index.ts";
import { walkSlots } from "./steps-slots.ts";
import { WORKED_COSTS, WORKED_SOFTMAX } from "./tables.ts";

/** One thing that was checked: how many comparisons it came to, or why it failed. */
export interface Check {
  readonly name: string;
  readonly compared: number;
  readonly fault: string | null;
  readonly seconds: number;
}

export interface ConformanceOptions {
  /** Of the index, and of the slots. */
  readonly steps: number;
  readonly draws: number;
  readonly seed: number;
  readonly makeIndex: () => PrefixIndex;
  readonly nowMs: () => number;
  readonly onCheck?: (check: Check) => void;
}

interface Variant {
  readonly name: string;
  readonly settings: Partial<RouterSettings>;
  readonly constants: CostConstants;
  readonly classicWeight: number | null;
  readonly temperature: number;
}

const plain = { settings: {}, constants: DEFAULTS, classicWeight: null, temperature: 0 };
const VARIANTS: readonly Variant[] = [
  { ...plain, name: "defaults" },
  { ...plain, name: "temperature", temperature: 0.7 },
  {
    ...plain,
    name: "every constant changed",
    settings: {
      cost: {
        ...({ kind: "credits", overlapCredit: 0.8, creditDecay: 1.5, hostCredit: 0.6 } as const),
        ...{ diskCredit: 0.3, prefillLoadScale: 1.7, activeRequestWeight: 2 },
      },
    },
    constants: {
      ...{ ...DEFAULTS, c: 0.8, k: 1.5, hostCredit: 0.6 },
      ...{ diskCredit: 0.3, scale: 1.7, a: 2 },
    },
  },
  {
    ...{ ...plain, name: "prefill not tracked", settings: { trackPrefillTokens: false } },
    constants: { ...DEFAULTS, tracksPrefill: false },
  },
  { ...plain, name: "blocks of 64", settings: { blockTokens: 64 }, constants: of(64) },
  {
    ...{ ...plain, name: "classic", classicWeight: 1.5 },
    settings: { cost: { kind: "classic", overlapScoreWeight: 1.5 } },
  },
];

function of(B: number): CostConstants {
  return { ...DEFAULTS, B };
}

/** Everything that is compared with the literal implementation, one after the other. */
export function runConformance(options: ConformanceOptions): readonly Check[] {
  const { steps, draws, seed, makeIndex } = options;
  const checks: Check[] = [];
  const check = (name: string, run: () => number) => {
    const startMs = options.nowMs();
    let [compared, fault] = [0, null as string | null];
    try {
      compared = run();
    } catch (thrown) {
      fault = String(thrown);
    }
    const seconds = (options.nowMs() - startMs) / 1_000;
    const done = { name, compared, fault, seconds };
    checks.push(done);
    options.onCheck?.(done);
  };
  check("worked examples of cost and softmax", checkTables);
  for (const { name, settings, ...variant } of VARIANTS) {
    check(`router: ${name}`, () => {
      // What is routed must not be taken for held before events say so.
      const prediction = { ...ROUTER_DEFAULTS.prediction, besideEventsMs: 0 };
      using index = makeIndex();
      using rig = makeRig(index, { prediction, ...settings });
      const scenario = { ...variant, steps: Math.ceil(steps / 100), seed };
      return new Scenario(rig, scenario).run().asked;
    });
  }
  for (const temperature of [0, 0.4]) {
    check(`draws at temperature ${temperature}`, () => {
      using index = makeIndex();
      using rig = makeRig(index, {});
      checkDraws(rig, temperature, draws);
      return draws;
    });
  }
  check("slots: active blocks, prefill tokens, expiry", () => {
    const clock = new ManualClock();
    const blockTokens = 16;
    const load = new ActiveLoad({ clock, blockTokens, requestExpiryMs: 300_000 });
    return walkSlots(load, clock, { blockTokens, steps, seed }).asked;
  });
  check("index: stored, removed, cleared, holes", () => {
    using index = makeIndex();
    return walkIndex(index, steps, seed).asked;
  });
  return checks;
}

function checkTables(): number {
  for (const { name, promptTokens, facts, least, constants, cost } of WORKED_COSTS) {
    assert(creditsCost(promptTokens, facts, least, constants) === cost, name);
  }
  for (const { costs, temperature, probabilities } of WORKED_SOFTMAX) {
    for (const [at, given] of softmax(costs, temperature).entries()) {
      assert(Math.abs(given - probabilities[at]!) < 1e-7, `softmax of ${costs}`);
    }
  }
  return WORKED_COSTS.length + WORKED_SOFTMAX.length;
}
