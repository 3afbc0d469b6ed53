import type { Clock, Random } from "../../core/index.ts";
import type { ActiveLoad } from "../active-load.ts";
import type { PredictedPrefixes } from "../predicted-prefixes.ts";
import type { PrefixIndex } from "../prefix-index.ts";
import type { PotentialLoad, RouteOutcome, RouteOverrides, RouteRequest } from "../route.ts";
import type { RouterSettings } from "../settings.ts";
import type { Target, WorkerRole, WorkerTable } from "../workers.ts";
import { type Choice, Chooser, type Tracking } from "./chooser.ts";
import { CostInputs, costOf, emptyInput, HeldTokens, uncachedTokens } from "./cost.ts";
import type { Prompt } from "./prompt.ts";
import {
  constraintsOf,
  DECODE_ROLES,
  PREFILL_ROLES,
  type Selection,
  Selector,
  type Thresholds,
} from "./selection.ts";

/** A request waiting for its decision. */
export interface Pending {
  readonly request: RouteRequest;
  readonly prompt: Prompt;
}

/** Result of a decision before it is committed. */
type DecisionResult =
  | {
      readonly kind: "chosen";
      readonly selection: Selection;
      readonly choice: Choice;
      /** Choice in the prefill pool, if there is one. */
      readonly prefill: Choice | null;
      readonly exactTokens: number;
    }
  | { readonly kind: "busy"; readonly selection: Selection }
  | { readonly kind: "nobody"; readonly selection: Selection; readonly outcome: RouteOutcome };

interface DeciderParts extends MeasureParts {
  readonly clock: Clock;
  readonly random: Random;
  readonly thresholds: Thresholds;
}

/** The pools are independent: each has its own round robin and session affinity. */
export type Pool = "prefill" | "decode";

const ROLES: Readonly<Record<Pool, readonly WorkerRole[]>> = {
  prefill: PREFILL_ROLES,
  decode: DECODE_ROLES,
};

/** Pool that serves a request. `decode` also serves whole requests. */
export function poolOf({ phase }: RouteRequest): Pool {
  return phase === "prefill" ? "prefill" : "decode";
}

/** Decides which worker serves a request. Only `settle` changes state. */
export class Decider {
  readonly #parts: DeciderParts;
  readonly #measures: Measures;
  readonly #chooser: Chooser;
  readonly #selector = new Selector();

  constructor(parts: DeciderParts) {
    this.#parts = parts;
    this.#measures = new Measures(parts);
    this.#chooser = new Chooser(parts.clock, parts.random, parts.settings);
  }

  decide(pending: Pending): DecisionResult {
    const { request } = pending;
    const pool = poolOf(request);
    const selection = this.select(request, pool);
    if (selection.isBusy) return { kind: "busy", selection };
    if (selection.candidates.length === 0) {
      return { kind: "nobody", selection, outcome: this.#nobody(request) };
    }
    this.#measures.take(pending.prompt);
    const isWhole = (request.phase ?? "both") === "both";
    const prefill = isWhole ? this.#choosePrefill(pending) : null;
    const choice = this.#choose(pending, selection, pool, prefill !== null);
    const { exactTokens } = this.#measures;
    return { kind: "chosen", selection, choice, prefill, exactTokens };
  }

  commit(request: RouteRequest, pool: Pool, choice: Choice): void {
    this.#chooser.commit(request, pool, choice);
  }

  select(request: RouteRequest, pool: Pool): Selection {
    const { table, load, thresholds, settings } = this.#parts;
    const isDirect = (request.overrides?.mode ?? settings.mode) === "direct";
    const constraints = constraintsOf(request.model, ROLES[pool], request.overrides, isDirect);
    const loadOf = ({ id }: Target) => load.of(id);
    return this.#selector.select(table.targets, constraints, thresholds.of(request.model), loadOf);
  }

  potentialLoads({ request, prompt }: Pending): readonly PotentialLoad[] {
    const pool = poolOf(request);
    this.#measures.take(prompt);
    const loads: PotentialLoad[] = [];
    for (const target of this.#parts.table.targets) {
      if (target.model !== request.model || !ROLES[pool].includes(target.role)) continue;
      const inputs = this.#measures.of([target]);
      const input = inputs.at(0);
      const tracking = this.#tracking(pool, false);
      const rules = this.#chooser.rules(request, prompt.tokens, tracking, inputs);
      const terms = costOf(input, rules);
      const load = this.#parts.load.of(target.id);
      loads.push({
        ...load,
        worker: target.worker,
        rank: target.rank,
        potentialPrefillTokens: load.activePrefillTokens + uncachedTokens(terms, prompt.tokens),
        potentialDecodeBlocks: load.activeBlocks + terms.additionalBlocks,
        heldTokens: {
          device: input.deviceTokens,
          host: input.hostTokens,
          disk: input.diskTokens,
        },
      });
    }
    return loads;
  }

  #choose(pending: Pending, selection: Selection, pool: Pool, isApart: boolean): Choice {
    const { request, prompt } = pending;
    const { candidates } = selection;
    const inputs = this.#measures.of(candidates);
    const tracking = this.#tracking(pool, isApart);
    return this.#chooser.choose(request, prompt.tokens, candidates, inputs, tracking, pool);
  }

  #tracking(pool: Pool, isApart: boolean): Tracking {
    const { trackActiveBlocks, trackPrefillTokens } = this.#parts.settings;
    return {
      activeBlocks: trackActiveBlocks && pool === "decode",
      // If another worker does the prefill, cached and uncached prompt tokens of this one do not
      // count.
      prefillTokens: trackPrefillTokens && !isApart,
    };
  }

  /**
   * Returns null if the prefill pool has no live worker or no capacity; the decode worker then does
   * both.
   */
  #choosePrefill(pending: Pending): Choice | null {
    const request = { ...pending.request, overrides: ofPrefill(pending.request.overrides) };
    const selection = this.select(request, "prefill");
    const isLive = selection.candidates.some(({ state }) => state === "live");
    return isLive ? this.#choose({ ...pending, request }, selection, "prefill", false) : null;
  }

  #nobody({ model, overrides }: RouteRequest): RouteOutcome {
    const { worker } = overrides ?? {};
    const ofModel = this.#parts.table.targets.filter((target) => target.model === model);
    if (worker !== undefined && !ofModel.some((target) => target.worker === worker)) {
      return { kind: "unknown_worker", why: `no worker ${worker} serves ${model}` };
    }
    if (ofModel.length === 0) return { kind: "none", why: `no worker serves ${model}` };
    return { kind: "none", why: `none of the ${ofModel.length} workers of ${model} is eligible` };
  }
}

/** Named workers refer to the decode pool; excluded workers are excluded from both pools. */
function ofPrefill({ mode, worker, rank, allowed, ...kept }: RouteOverrides = {}): RouteOverrides {
  return mode === undefined || mode === "direct" ? { ...kept, mode: "kv" } : { ...kept, mode };
}

interface MeasureParts {
  readonly settings: RouterSettings;
  readonly table: WorkerTable;
  readonly index: PrefixIndex;
  readonly load: ActiveLoad;
  readonly predicted: PredictedPrefixes | null;
}

/**
 * Tokens held by all targets for one prompt, and the blocks it would add. Valid until the next
 * `take`.
 */
class Measures {
  readonly #parts: MeasureParts;
  readonly #held = new HeldTokens();
  #additional = new Uint32Array(0);
  #predicted = new Uint32Array(0);
  #promptTokens = 0;
  /** Tokens up to which the index is exact. */
  #exactTokens = 0;

  constructor(parts: MeasureParts) {
    this.#parts = parts;
  }

  get exactTokens(): number {
    return this.#exactTokens;
  }

  take(prompt: Prompt): void {
    const { table, load, settings } = this.#parts;
    const width = (table.targets.at(-1)?.id ?? -1) + 1;
    if (this.#additional.length !== width) {
      this.#additional = new Uint32Array(width);
      this.#predicted = new Uint32Array(width);
    }
    this.#promptTokens = prompt.tokens;
    this.#held.start(width);
    this.#exactTokens = prompt.tokens;
    if (settings.useKvEvents) this.#look(prompt);
    this.#predict(prompt);
    if (settings.trackActiveBlocks) {
      load.additionalBlocks(prompt.own.hashes, prompt.tokens, this.#additional);
    }
  }

  of(targets: readonly Target[]): CostInputs {
    const { load } = this.#parts;
    const inputs = new CostInputs(targets.length);
    const input = emptyInput();
    for (let at = 0; at < targets.length; at++) {
      const { id } = targets[at]!;
      const { activePrefillTokens, activeBlocks, activeRequests } = load.of(id);
      // Clamp: a prompt may claim fewer tokens than its hashes cover.
      const device = Math.min(this.#held.deviceOf(id), this.#promptTokens);
      const host = Math.min(this.#held.hostOf(id), this.#promptTokens - device);
      input.deviceTokens = device;
      input.hostTokens = host;
      input.diskTokens = Math.min(this.#held.diskOf(id), this.#promptTokens - device - host);
      input.prefillTokens = activePrefillTokens;
      input.activeBlocks = activeBlocks;
      input.additionalBlocks = this.#additional[id]!;
      input.activeRequests = activeRequests;
      inputs.set(at, input);
    }
    return inputs;
  }

  #look(prompt: Prompt): void {
    for (const { hashes, blockTokens } of prompt.lookups) {
      if (hashes.length === 0) continue;
      const matches = this.#parts.index.match(hashes);
      this.#held.add(matches, blockTokens);
      if (matches.exactBlocks < hashes.length) {
        this.#exactTokens = Math.min(this.#exactTokens, matches.exactBlocks * blockTokens);
      }
    }
  }

  #predict({ own }: Prompt): void {
    const { predicted } = this.#parts;
    if (predicted === null) return;
    predicted.leading(own.hashes, this.#predicted);
    this.#held.addDevice(this.#predicted, own.blockTokens);
  }
}
