import { assert, randomBelow, seededRandom, type WorkerId } from "../../src/core/index.ts";
import { RESIDENCY_TIERS } from "../../src/observability/activity/index.ts";
import type {
  Candidate,
  Explanation,
  PrefixIndex,
  RouteRequest,
  Router,
  TargetId,
  WorkerTable,
} from "../../src/router/index.ts";
import type { ManualClock } from "../support/index.ts";
import { Chains } from "./chains.ts";
import {
  type CostConstants,
  cachedTokens,
  classicCost,
  creditsCost,
  lowest,
  softmax,
  uncachedTokens,
  type WorkerFacts,
} from "./literal/formulas.ts";
import { LiteralIndex } from "./literal/index-model.ts";
import { LiteralSlots } from "./literal/slots-model.ts";

/** A router whose index, table and clock the scenario moves. */
export interface Rig extends Disposable {
  readonly router: Router;
  readonly index: PrefixIndex;
  readonly table: WorkerTable;
  readonly clock: ManualClock;
}

export interface ScenarioOptions {
  readonly constants: CostConstants;
  /** Null: the cost by credits. */
  readonly classicWeight: number | null;
  readonly temperature: number;
  readonly steps: number;
  readonly seed: number;
}

const MODEL = "model-a";
const WORKERS = 7;
const CHAINS = 60;
const BLOCKS_MAX = 24;
const LIVE = 40;
/** Doubles that were summed in another order. */
const CLOSE = 1e-9;

/**
 * Random events and requests through a whole router, whose every explanation is compared with the
 * literal formulas over the literal index and slots. Throws where they differ.
 */
export class Scenario {
  readonly #rig: Rig;
  readonly #options: ScenarioOptions;
  readonly #index = new LiteralIndex();
  readonly #slots: LiteralSlots;
  readonly #chains: Chains;
  readonly #targets: TargetId[];
  readonly #below: (count: number) => number;
  #asked = 0;

  constructor(rig: Rig, options: ScenarioOptions) {
    const random = seededRandom(options.seed);
    this.#rig = rig;
    this.#options = options;
    this.#slots = new LiteralSlots(options.constants.B);
    this.#chains = new Chains(random, CHAINS, BLOCKS_MAX);
    this.#below = (count) => randomBelow(random, count);
    const { B: blockTokens } = options.constants;
    this.#targets = Array.from({ length: WORKERS }, (_, at) => {
      const spec = { worker: `worker-${at}` as WorkerId, rank: 0, model: MODEL };
      const rest = { role: "both", url: null, totalBlocks: null, batchTokensMax: null } as const;
      const spaces = [{ kind: "tokens", model: MODEL, blockTokens } as const];
      const { id } = rig.table.put({ ...spec, ...rest, spaces });
      rig.table.setState(id, "live");
      rig.table.setKnown(id, true);
      return id;
    });
  }

  run(): { readonly asked: number } {
    for (let step = 0; step < this.#options.steps; step++) {
      const kind = this.#below(10);
      if (kind < 4) this.#change();
      else if (kind < 6) this.#progress();
      else this.#ask(step);
    }
    return { asked: this.#asked };
  }

  #change(): void {
    const target = this.#targets[this.#below(WORKERS)]!;
    const tier = RESIDENCY_TIERS[this.#below(3)]!;
    const { parent, hashes } = this.#chains.piece();
    if (this.#below(3) > 0) {
      this.#index.store(target, tier, hashes);
      const change = { kind: "stored", tier, parent, hashes, tokenHashes: null } as const;
      this.#rig.index.apply([{ target, change }]);
    } else {
      this.#index.remove(target, tier, hashes);
      this.#rig.index.apply([{ target, change: { kind: "removed", tier, hashes } }]);
    }
  }

  #progress(): void {
    const id = `live-${this.#below(LIVE)}`;
    const { router, clock } = this.#rig;
    const nowMs = clock.monotonicMs();
    switch (this.#below(3)) {
      case 0:
        assert(
          router.markPrefillComplete(id) === this.#slots.prefillComplete(id, nowMs),
          "prefill",
        );
        return;
      case 1: {
        const tokens = this.#below(100);
        assert(router.output(id, tokens) === this.#slots.output(id, tokens, nowMs), "output");
        return;
      }
      default:
        assert(router.free(id) === this.#slots.free(id), "free");
    }
  }

  #ask(step: number): void {
    const { router, clock } = this.#rig;
    const { B } = this.#options.constants;
    const hashes = this.#chains.prompt();
    const tokens = hashes.length * B + this.#below(B);
    if (tokens === 0) return;
    const requestId = `live-${this.#below(LIVE)}`;
    // The load counts the request before under this name no more.
    if (this.#slots.has(requestId)) {
      router.free(requestId);
      this.#slots.free(requestId);
    }
    const request: RouteRequest = {
      model: MODEL,
      prompt: { kind: "hashes", hashes: new BigUint64Array(hashes), blockTokens: B, tokens },
      requestId,
      overrides: { temperature: this.#options.temperature, seed: step },
    };
    const outcome = router.bestWorkerNow(request);
    assert(outcome.kind === "routed", `a worker for it: ${outcome.kind}`);
    const explanation = router.explain(requestId);
    assert(explanation !== null, "what was just decided is explained");
    this.#compare(explanation, outcome.target.id, hashes, tokens);
    const facts = this.#facts(outcome.target.id, hashes, tokens);
    const cached = cachedTokens(facts, this.#options.constants);
    const prefillTokens = uncachedTokens(tokens, cached);
    const prompt = { hashes, promptTokens: tokens, prefillTokens };
    this.#slots.add(requestId, outcome.target.id, prompt, clock.monotonicMs());
    this.#asked++;
  }

  #facts(target: TargetId, hashes: readonly bigint[], tokens: number): WorkerFacts {
    return {
      activePrefillTokens: this.#slots.activePrefillTokens(target),
      activeBlocks: this.#slots.activeBlocks(target),
      activeRequests: this.#slots.activeRequests(target),
      additionalBlocks: this.#slots.additionalBlocks(target, hashes, tokens),
      ...this.#index.overlap(target, hashes),
    };
  }

  #compare(
    explanation: Explanation,
    chosen: TargetId,
    hashes: readonly bigint[],
    tokens: number,
  ): void {
    const { constants, classicWeight, temperature } = this.#options;
    const all = this.#targets.map((target) => this.#facts(target, hashes, tokens));
    const least = Math.min(...all.map((facts) => facts.activePrefillTokens));
    const costs = all.map((facts) =>
      classicWeight === null
        ? creditsCost(tokens, facts, least, constants)
        : classicCost(tokens, facts, classicWeight, constants),
    );
    const probabilities = temperature > 0 ? softmax(costs, temperature) : lowest(costs);
    assert(explanation.candidates.length === WORKERS, "every worker is a candidate");
    for (const candidate of explanation.candidates) {
      const at = this.#targets.indexOf(candidate.target.id);
      compareTerms(candidate, all[at]!, costs[at]!);
      const isClose = Math.abs(candidate.probability - probabilities[at]!) < CLOSE;
      assert(isClose, `probability ${candidate.probability} for ${probabilities[at]}`);
    }
    assert(probabilities[this.#targets.indexOf(chosen)]! > 0, "only what may be chosen is");
  }
}

function compareTerms({ terms, target }: Candidate, facts: WorkerFacts, cost: number): void {
  const pairs = [
    ["deviceBlocks", terms.deviceBlocks, facts.device],
    ["hostBlocks", terms.hostBlocks, facts.host],
    ["diskBlocks", terms.diskBlocks, facts.disk],
    ["activeBlocks", terms.activeBlocks, facts.activeBlocks],
    ["additionalBlocks", terms.additionalBlocks, facts.additionalBlocks],
    ["activeRequests", terms.activeRequests, facts.activeRequests],
    ["cost", terms.cost, cost],
  ] as const;
  for (const [name, given, wanted] of pairs) {
    assert(Math.abs(given - wanted) < CLOSE, `${name} of ${target.worker}: ${given} for ${wanted}`);
  }
}
