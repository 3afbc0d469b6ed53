import { type Clock, type Random, seededRandom } from "../../core/index.ts";
import type { CostTerms, Explanation, RouteRequest } from "../route.ts";
import type { RouterMode, RouterSettings } from "../settings.ts";
import type { Target } from "../workers.ts";
import { type CostInputs, type CostRules, costOf, costsOf, withOverlapWeight } from "./cost.ts";
import { Affinity, type Picked, pickLowest, pickSoftmax } from "./pick.ts";

type DecidedBy = Explanation["decidedBy"];

/** One pool's part of a decision. */
export interface Choice {
  readonly target: Target;
  readonly terms: CostTerms;
  readonly mode: RouterMode;
  readonly temperature: number;
  readonly decidedBy: DecidedBy;
  readonly draw: number | null;
  readonly rules: CostRules;
  /** In the order of the selection's candidates. */
  readonly inputs: CostInputs;
}

/** Candidates and their costs, in the same order. */
interface Field {
  readonly mode: RouterMode;
  readonly temperature: number;
  readonly candidates: readonly Target[];
  readonly costs: readonly number[];
  readonly inputs: CostInputs;
  readonly draw: () => number;
}

interface Decided {
  readonly candidateIndex: number;
  readonly draw: number | null;
  readonly decidedBy: DecidedBy;
}

/** Load terms that a pool counts. */
export interface Tracking {
  readonly activeBlocks: boolean;
  readonly prefillTokens: boolean;
}

/** Chooses one of the candidates according to the mode. */
export class Chooser {
  readonly #random: Random;
  readonly #settings: RouterSettings;
  readonly #affinity: Affinity;
  /** Last target id of the round robin, by model and pool. */
  readonly #turns = new Map<string, number>();

  constructor(clock: Clock, random: Random, settings: RouterSettings) {
    this.#random = random;
    this.#settings = settings;
    this.#affinity = new Affinity(clock, settings.affinity);
  }

  /** Chooses among at least one candidate. Has no side effects; see `settle`. */
  choose(
    request: RouteRequest,
    promptTokens: number,
    candidates: readonly Target[],
    inputs: CostInputs,
    tracking: Tracking,
    pool: string,
  ): Choice {
    const { overrides } = request;
    const rules = this.rules(request, promptTokens, tracking, inputs);
    const costs = costsOf(inputs, rules);
    const mode = overrides?.mode ?? this.#settings.mode;
    const temperature = overrides?.temperature ?? this.#settings.temperature;
    const random = overrides?.seed === undefined ? this.#random : seededRandom(overrides.seed);
    const field: Field = {
      ...{ mode, temperature, candidates, costs, inputs },
      draw: () => random.u32() / 2 ** 32,
    };
    const { candidateIndex, decidedBy, draw } =
      this.#stay(this.#sessionOf(request, pool), field) ?? this.#pick(field, turnOf(request, pool));
    const terms = costOf(inputs.at(candidateIndex), rules);
    return {
      target: candidates[candidateIndex]!,
      terms,
      mode,
      temperature,
      decidedBy,
      draw,
      rules,
      inputs,
    };
  }

  /** Commits a choice: advances the round robin and records the session's worker. */
  commit(request: RouteRequest, pool: string, choice: Choice): void {
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
    inputs: CostInputs,
  ): CostRules {
    let minPrefillTokens = Number.POSITIVE_INFINITY;
    for (let candidateIndex = 0; candidateIndex < inputs.count; candidateIndex++) {
      minPrefillTokens = Math.min(minPrefillTokens, inputs.prefillTokensAt(candidateIndex));
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

  /** Chooses the session's worker if it is a candidate and not too expensive. */
  #stay(session: string | null, { candidates, costs }: Field): Decided | null {
    const home = session === null ? null : this.#affinity.find(session);
    if (home === null) return null;
    const candidateIndex = candidates.findIndex(({ worker, rank }) => {
      return worker === home.worker && rank === home.rank;
    });
    if (candidateIndex === -1) return null;
    const extra = costs[candidateIndex]! - costs.reduce((least, cost) => Math.min(least, cost));
    if (extra > this.#settings.affinity.extraCostMax) return null;
    return { candidateIndex, draw: null, decidedBy: "affinity" };
  }

  #pick({ mode, temperature, candidates, costs, inputs, draw }: Field, turn: string): Decided {
    switch (mode) {
      case "round-robin": {
        const last = this.#turns.get(turn) ?? -1;
        const next = candidates.findIndex(({ id }) => id > last);
        return { candidateIndex: Math.max(next, 0), draw: null, decidedBy: "round_robin" };
      }
      case "random": {
        const drawn = draw();
        const candidateIndex = Math.floor(drawn * candidates.length);
        return { candidateIndex, draw: drawn, decidedBy: "random" };
      }
      case "least-loaded": {
        const requests = candidates.map((_, candidateIndex) =>
          inputs.activeRequestsAt(candidateIndex),
        );
        return { ...pickLowest(requests, draw), decidedBy: "least_loaded" };
      }
      default: {
        if (candidates.length === 1) {
          const decidedBy = mode === "direct" ? "direct" : "only_one";
          return { candidateIndex: 0, draw: null, decidedBy };
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
