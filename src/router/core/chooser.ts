import { type Clock, type Random, seededRandom } from "../../core/index.ts";
import {
  Affinity,
  type CostInput,
  type CostRules,
  costOf,
  type Picked,
  pickLowest,
  pickSoftmax,
  type Selection,
  withOverlapWeight,
} from "../choice/index.ts";
import type { CostTerms, Explanation, RouteRequest } from "../route.ts";
import type { RouterMode, RouterSettings } from "../settings.ts";
import type { Target } from "../workers.ts";

export type DecidedBy = Explanation["decidedBy"];

/** One pool's part of one decision. */
export interface Choice {
  readonly target: Target;
  readonly terms: CostTerms;
  readonly mode: RouterMode;
  readonly temperature: number;
  readonly decidedBy: DecidedBy;
  readonly draw: number | null;
  readonly rules: CostRules;
  /** By place among the selection's candidates. */
  readonly inputs: readonly CostInput[];
}

/** What a pool counts. */
export interface Tracking {
  readonly activeBlocks: boolean;
  readonly prefillTokens: boolean;
}

/** Picks one of the candidates, whatever the mode. */
export class Chooser {
  readonly #random: Random;
  readonly #settings: RouterSettings;
  readonly #affinity: Affinity;
  /** Number of the target that was last in turn, by model and pool. */
  readonly #turns = new Map<string, number>();

  constructor(clock: Clock, random: Random, settings: RouterSettings) {
    this.#random = random;
    this.#settings = settings;
    this.#affinity = new Affinity(clock, settings.affinity);
  }

  /** At least one candidate. Changes nothing: see `settle`. */
  choose(
    request: RouteRequest,
    promptTokens: number,
    selection: Selection,
    tracking: Tracking,
    pool: string,
    inputOf: (target: Target) => CostInput,
  ): Choice {
    const { overrides } = request;
    const targets = selection.candidates.map((place) => selection.targets[place]!);
    const inputs = targets.map(inputOf);
    const rules = this.rules(request, promptTokens, tracking, inputs);
    const terms = inputs.map((input) => costOf(input, rules));
    const mode = overrides?.mode ?? this.#settings.mode;
    const temperature = overrides?.temperature ?? this.#settings.temperature;
    const random = overrides?.seed === undefined ? this.#random : seededRandom(overrides.seed);
    const draw = () => random.u32() / 2 ** 32;
    const session = this.#sessionOf(request, pool);
    const picked =
      this.#stay(session, targets, terms) ??
      this.#pick(mode, temperature, targets, terms, draw, turnOf(request, pool));
    const { place, decidedBy } = picked;
    return {
      ...{ target: targets[place]!, terms: terms[place]!, mode, temperature, decidedBy },
      ...{ draw: picked.draw, rules, inputs },
    };
  }

  /** The choice was carried out: the next turn is another's, and the session stays. */
  settle(request: RouteRequest, pool: string, choice: Choice): void {
    if (choice.decidedBy === "round_robin") {
      this.#turns.set(turnOf(request, pool), choice.target.id);
    }
    const session = this.#sessionOf(request, pool);
    if (session !== null) {
      this.#affinity.remember(session, choice.target.worker, choice.target.rank);
    }
  }

  rules(
    { overrides }: RouteRequest,
    promptTokens: number,
    tracking: Tracking,
    inputs: readonly CostInput[],
  ): CostRules {
    let minPrefillTokens = Number.POSITIVE_INFINITY;
    for (const { prefillTokens } of inputs) {
      if (prefillTokens < minPrefillTokens) minPrefillTokens = prefillTokens;
    }
    return {
      cost: withOverlapWeight(this.#settings.cost, overrides?.overlapScoreWeight),
      blockTokens: this.#settings.blockTokens,
      trackActiveBlocks: tracking.activeBlocks,
      trackPrefillTokens: tracking.prefillTokens,
      promptTokens,
      minPrefillTokens,
    };
  }

  #sessionOf({ sessionId, model }: RouteRequest, pool: string): string | null {
    if (sessionId === undefined || this.#settings.affinity.ttlMs <= 0) return null;
    return `${pool} ${model} ${sessionId}`;
  }

  /** With the worker that the session had, where it is a candidate and does not cost too much. */
  #stay(session: string | null, targets: readonly Target[], terms: readonly CostTerms[]) {
    const place = session === null ? null : this.#affinity.find(session);
    if (place === null) return null;
    const at = targets.findIndex(({ worker, rank }) => {
      return worker === place.worker && rank === place.rank;
    });
    if (at === -1) return null;
    let lowest = Number.POSITIVE_INFINITY;
    for (const { cost } of terms) if (cost < lowest) lowest = cost;
    if (terms[at]!.cost - lowest > this.#settings.affinity.extraCostMax) return null;
    return { place: at, draw: null, decidedBy: "affinity" as const };
  }

  #pick(
    mode: RouterMode,
    temperature: number,
    targets: readonly Target[],
    terms: readonly CostTerms[],
    draw: () => number,
    turn: string,
  ): { readonly place: number; readonly draw: number | null; readonly decidedBy: DecidedBy } {
    switch (mode) {
      case "round-robin": {
        const last = this.#turns.get(turn) ?? -1;
        const next = targets.findIndex(({ id }) => id > last);
        return { place: Math.max(next, 0), draw: null, decidedBy: "round_robin" };
      }
      case "random": {
        const drawn = draw();
        const place = Math.floor(drawn * targets.length);
        return { place, draw: drawn, decidedBy: "random" };
      }
      case "least-loaded": {
        const picked = pickLowest(
          terms.map(({ activeRequests }) => activeRequests),
          draw,
        );
        return { ...picked, decidedBy: "least_loaded" };
      }
      default: {
        const costs = terms.map(({ cost }) => cost);
        if (targets.length === 1) {
          const decidedBy = mode === "direct" ? "direct" : "only_one";
          return { place: 0, draw: null, decidedBy };
        }
        const isSoft = temperature > 0;
        const picked = isSoft ? pickSoftmax(costs, temperature, draw) : pickLowest(costs, draw);
        return { ...picked, decidedBy: decidedBy(mode, isSoft, picked) };
      }
    }
  }
}

function decidedBy(mode: RouterMode, isSoft: boolean, { equals }: Picked): DecidedBy {
  if (mode === "direct") return "direct";
  if (isSoft) return "softmax";
  return equals > 1 ? "tie_draw" : "lowest_cost";
}

function turnOf({ model }: RouteRequest, pool: string): string {
  return `${pool} ${model}`;
}
