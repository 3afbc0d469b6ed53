import { type Clock, type Random, seededRandom, type WorkerId } from "../core/index.ts";
import type { ActiveLoad, TargetLoad } from "./active-load.ts";
import {
  CostInputs,
  type CostRules,
  costOf,
  costsOf,
  emptyInput,
  uncachedTokens,
  withOverlapWeight,
} from "./cost.ts";
import type { PrefixIndex, PrefixMatches } from "./prefix-index.ts";
import type { PredictedPrefixes } from "./prefix-runs.ts";
import type { Prompt } from "./prompt.ts";
import type {
  BusyThresholds,
  CostTerms,
  Explanation,
  FilterReason,
  PotentialLoad,
  RouteOverrides,
  RouteRequest,
} from "./route.ts";
import type { RouterMode, RouterSettings } from "./settings.ts";
import type { Target, WorkerRole, WorkerTable } from "./workers.ts";

/** Group of workers to choose from. Each pool has its own round robin and session affinity. */
export type Pool = "prefill" | "decode";

const ROLES: Readonly<Record<Pool, readonly WorkerRole[]>> = {
  prefill: ["prefill"],
  decode: ["decode", "both"],
};

/** Returns the pool that serves a request. `decode` also serves whole requests. */
export function poolOf({ phase }: RouteRequest): Pool {
  return phase === "prefill" ? "prefill" : "decode";
}

/** All targets of the worker table, each either a candidate or excluded with a reason. */
export interface Eligibility {
  readonly targets: readonly Target[];
  /**
   * Reason why each target was excluded, in the order of `targets`. Null: the target is a
   * candidate.
   */
  readonly reasons: readonly (FilterReason | null)[];
  readonly candidates: readonly Target[];
  /** True if every target that could serve the request is busy. */
  readonly isBusy: boolean;
}

/** The choice of a target in one pool, with the inputs of its cost. */
export interface Choice {
  readonly target: Target;
  readonly terms: CostTerms;
  readonly mode: RouterMode;
  readonly temperature: number;
  readonly decidedBy: Explanation["decidedBy"];
  readonly draw: number | null;
  readonly rules: CostRules;
  /** Cost inputs, in the order of the candidates. */
  readonly inputs: CostInputs;
}

/** A decision that is not committed yet: it has not changed any state. */
export interface Plan {
  readonly eligibility: Eligibility;
  /** Chosen target. Null: no target is a candidate. */
  readonly choice: Choice | null;
  /** Chosen target of the prefill pool. Null: the decode worker also does the prefill. */
  readonly prefill: Choice | null;
  /** Number of leading prompt tokens for which the index knows all cached blocks exactly. */
  readonly exactTokens: number;
}

export interface SchedulerParts {
  readonly clock: Clock;
  readonly random: Random;
  readonly settings: RouterSettings;
  readonly table: WorkerTable;
  readonly index: PrefixIndex;
  readonly load: ActiveLoad;
  readonly predicted: PredictedPrefixes | null;
  readonly thresholds: Thresholds;
}

/** Chooses the worker for a request. Only `commit` changes its state. */
export class Scheduler {
  readonly #parts: SchedulerParts;
  readonly #measures: Measures;
  readonly #filter = new TargetFilter();
  readonly #affinity: Affinity;
  /** Id of the target chosen last by round robin, by pool and model. */
  readonly #turns = new Map<string, number>();

  constructor(parts: SchedulerParts) {
    this.#parts = parts;
    this.#measures = new Measures(parts);
    this.#affinity = new Affinity(parts.clock, parts.settings.affinity);
  }

  plan(prompt: Prompt): Plan {
    const { request } = prompt;
    const pool = poolOf(request);
    const eligibility = this.eligible(request, pool);
    if (eligibility.candidates.length === 0) {
      return { eligibility, choice: null, prefill: null, exactTokens: prompt.tokens };
    }
    this.#measures.take(prompt);
    const isWhole = (request.phase ?? "both") === "both";
    const prefill = isWhole ? this.#choosePrefill(request) : null;
    const choice = this.#choose(request, eligibility.candidates, pool, prefill !== null);
    return { eligibility, choice, prefill, exactTokens: this.#measures.exactTokens };
  }

  /** Records a choice: advances the round robin and remembers the session's worker. */
  commit(request: RouteRequest, pool: Pool, { target, decidedBy }: Choice): void {
    if (decidedBy === "round_robin") this.#turns.set(`${pool} ${request.model}`, target.id);
    const session = this.#sessionOf(request, pool);
    if (session !== null) this.#affinity.remember(session, target.worker, target.rank);
  }

  eligible({ model, overrides }: RouteRequest, pool: Pool): Eligibility {
    const { table, load, thresholds, settings } = this.#parts;
    const isDirect = (overrides?.mode ?? settings.mode) === "direct";
    const constraints = { ...overrides, model, pool, isDirect };
    const loadOf = ({ id }: Target) => load.of(id);
    return this.#filter.select(table.targets, constraints, thresholds.of(model), loadOf);
  }

  potentialLoads(prompt: Prompt): readonly PotentialLoad[] {
    const { request, tokens } = prompt;
    const { table, load } = this.#parts;
    const pool = poolOf(request);
    this.#measures.take(prompt);
    const served = table.targets.filter(
      ({ model, role }) => model === request.model && ROLES[pool].includes(role),
    );
    return served.map((target) => {
      const inputs = this.#measures.of([target]);
      const input = inputs.at(0);
      const terms = costOf(input, this.#rules(request, pool, false, inputs));
      const own = load.of(target.id);
      return {
        ...own,
        worker: target.worker,
        rank: target.rank,
        potentialPrefillTokens: own.activePrefillTokens + uncachedTokens(terms, tokens),
        potentialDecodeBlocks: own.activeBlocks + terms.additionalBlocks,
        heldTokens: {
          device: input.deviceTokens,
          host: input.hostTokens,
          disk: input.diskTokens,
        },
      };
    });
  }

  /**
   * Chooses a target of the prefill pool. Returns null if the pool has no live worker or all are
   * busy; then the decode worker also does the prefill.
   */
  #choosePrefill(whole: RouteRequest): Choice | null {
    const request = { ...whole, overrides: ofPrefill(whole.overrides) };
    const { candidates } = this.eligible(request, "prefill");
    const isLive = candidates.some(({ state }) => state === "live");
    return isLive ? this.#choose(request, candidates, "prefill", false) : null;
  }

  /**
   * Returns the cost inputs common to all candidates. `isApart`: another worker does the prefill,
   * so active prefill tokens do not count.
   */
  #rules({ overrides }: RouteRequest, pool: Pool, isApart: boolean, inputs: CostInputs): CostRules {
    const { cost, blockTokens, trackActiveBlocks, trackPrefillTokens } = this.#parts.settings;
    let minPrefillTokens = Number.POSITIVE_INFINITY;
    for (let at = 0; at < inputs.count; at++) {
      minPrefillTokens = Math.min(minPrefillTokens, inputs.prefillTokensAt(at));
    }
    return {
      cost: withOverlapWeight(cost, overrides?.overlapScoreWeight),
      blockTokens,
      trackActiveBlocks: trackActiveBlocks && pool === "decode",
      trackPrefillTokens: trackPrefillTokens && !isApart,
      promptTokens: this.#measures.promptTokens,
      minPrefillTokens,
    };
  }

  /**
   * Chooses a target. There must be at least one candidate, and `take` must have measured the
   * prompt.
   */
  #choose(
    request: RouteRequest,
    candidates: readonly Target[],
    pool: Pool,
    isApart: boolean,
  ): Choice {
    const { settings } = this.#parts;
    const { mode = settings.mode, temperature = settings.temperature } = request.overrides ?? {};
    const inputs = this.#measures.of(candidates);
    const rules = this.#rules(request, pool, isApart, inputs);
    const costs = costsOf(inputs, rules);
    const { candidateIndex, decidedBy, draw } =
      this.#stay(this.#sessionOf(request, pool), candidates, costs) ??
      this.#pick(request, pool, candidates, costs, inputs);
    const target = candidates[candidateIndex];
    const terms = costOf(inputs.at(candidateIndex), rules);
    return { target, terms, mode, temperature, decidedBy, draw, rules, inputs };
  }

  #sessionOf({ sessionId, model }: RouteRequest, pool: Pool): string | null {
    if (sessionId === undefined || this.#parts.settings.affinity.ttlMs <= 0) return null;
    return `${pool} ${model} ${sessionId}`;
  }

  /**
   * Chooses the worker of the session's latest request. Returns null if that worker is not a
   * candidate or costs too much more than the best one.
   */
  #stay(
    session: string | null,
    candidates: readonly Target[],
    costs: readonly number[],
  ): Picked | null {
    const home = session === null ? null : this.#affinity.find(session);
    if (home === null) return null;
    const candidateIndex = candidates.findIndex(({ worker, rank }) => {
      return worker === home.worker && rank === home.rank;
    });
    if (candidateIndex === -1) return null;
    const extra = costs[candidateIndex] - costs.reduce((least, cost) => Math.min(least, cost));
    if (extra > this.#parts.settings.affinity.extraCostMax) return null;
    return { candidateIndex, draw: null, decidedBy: "affinity" };
  }

  #pick(
    { model, overrides }: RouteRequest,
    pool: Pool,
    candidates: readonly Target[],
    costs: readonly number[],
    inputs: CostInputs,
  ): Picked {
    const { settings, random: shared } = this.#parts;
    const { mode = settings.mode, temperature = settings.temperature, seed } = overrides ?? {};
    const random = seed === undefined ? shared : seededRandom(seed);
    const draw = () => random.u32() / 2 ** 32;
    switch (mode) {
      case "round-robin": {
        const last = this.#turns.get(`${pool} ${model}`) ?? -1;
        const next = candidates.findIndex(({ id }) => id > last);
        return { candidateIndex: Math.max(next, 0), draw: null, decidedBy: "round_robin" };
      }
      case "random": {
        const drawn = draw();
        const candidateIndex = Math.floor(drawn * candidates.length);
        return { candidateIndex, draw: drawn, decidedBy: "random" };
      }
      case "least-loaded": {
        const requests = candidates.map((_, at) => inputs.activeRequestsAt(at));
        return { ...pickLowest(requests, draw), decidedBy: "least_loaded" };
      }
      default: {
        const isDirect = mode === "direct";
        if (candidates.length === 1) {
          return { candidateIndex: 0, draw: null, decidedBy: isDirect ? "direct" : "only_one" };
        }
        const isSoft = temperature > 0;
        const picked = isSoft ? pickSoftmax(costs, temperature, draw) : pickLowest(costs, draw);
        return isDirect ? { ...picked, decidedBy: "direct" } : picked;
      }
    }
  }
}

/**
 * Returns the overrides for the prefill pool. Named and allowed workers apply to the decode pool
 * only; excluded workers apply to both pools.
 */
function ofPrefill({ mode, worker, rank, allowed, ...kept }: RouteOverrides = {}): RouteOverrides {
  return mode === undefined || mode === "direct" ? { ...kept, mode: "kv" } : { ...kept, mode };
}

/**
 * For one prompt, the tokens that each target has cached and the blocks the prompt would add to it.
 * Arrays are indexed by target id and valid until the next `take`.
 */
class Measures {
  readonly #parts: SchedulerParts;
  /**
   * Leading prompt tokens cached on the device; `#host` also counts host memory, `#disk` also disk.
   */
  #device = new Uint32Array(0);
  #host = new Uint32Array(0);
  #disk = new Uint32Array(0);
  #additional = new Uint32Array(0);
  #predicted = new Uint32Array(0);
  promptTokens = 0;
  /** Number of leading prompt tokens for which the index knows all cached blocks exactly. */
  exactTokens = 0;

  constructor(parts: SchedulerParts) {
    this.#parts = parts;
  }

  take(prompt: Prompt): void {
    const { table, load, settings, predicted } = this.#parts;
    this.#clear((table.targets.at(-1)?.id ?? -1) + 1);
    this.promptTokens = prompt.tokens;
    this.exactTokens = prompt.tokens;
    if (settings.useKvEvents) this.#look(prompt);
    if (predicted !== null) {
      const { hashes, blockTokens } = prompt.own;
      predicted.leading(hashes, this.#predicted);
      for (let target = 0; target < this.#predicted.length; target++) {
        const blocks = this.#predicted[target];
        if (blocks > 0) raise(this.#device, target, blocks * blockTokens);
      }
    }
    if (settings.trackActiveBlocks) {
      load.additionalBlocks(prompt.own.hashes, prompt.tokens, this.#additional);
    }
  }

  /**
   * Returns the cost inputs of the targets. A token counts only in the fastest tier that has it.
   */
  of(targets: readonly Target[]): CostInputs {
    const { load } = this.#parts;
    const inputs = new CostInputs(targets.length);
    const input = emptyInput();
    for (let at = 0; at < targets.length; at++) {
      const { id } = targets[at];
      const { activePrefillTokens, activeBlocks, activeRequests } = load.of(id);
      // A prompt given as hashes may claim fewer tokens than its hashes cover.
      const device = Math.min(this.#device[id], this.promptTokens);
      const host = Math.min(Math.max(this.#host[id], device), this.promptTokens);
      const disk = Math.min(Math.max(this.#disk[id], host), this.promptTokens);
      input.deviceTokens = device;
      input.hostTokens = host - device;
      input.diskTokens = disk - host;
      input.prefillTokens = activePrefillTokens;
      input.activeBlocks = activeBlocks;
      input.additionalBlocks = this.#additional[id];
      input.activeRequests = activeRequests;
      inputs.set(at, input);
    }
    return inputs;
  }

  #clear(width: number): void {
    if (this.#device.length === width) {
      for (const column of [this.#device, this.#host, this.#disk]) column.fill(0);
      return;
    }
    const column = () => new Uint32Array(width);
    [this.#device, this.#host, this.#disk] = [column(), column(), column()];
    [this.#additional, this.#predicted] = [column(), column()];
  }

  #look(prompt: Prompt): void {
    for (const { hashes, blockTokens } of prompt.lookups) {
      if (hashes.length === 0) continue;
      const matches = this.#parts.index.match(hashes);
      this.#add(matches, blockTokens);
      if (matches.exactBlocks < hashes.length) {
        this.exactTokens = Math.min(this.exactTokens, matches.exactBlocks * blockTokens);
      }
    }
  }

  #add({ count, targets, device, host, disk }: PrefixMatches, blockTokens: number): void {
    for (let i = 0; i < count; i++) {
      const target = targets[i];
      const onDevice = device[i];
      const onHost = onDevice + host[i];
      raise(this.#device, target, onDevice * blockTokens);
      raise(this.#host, target, onHost * blockTokens);
      raise(this.#disk, target, (onHost + disk[i]) * blockTokens);
    }
  }
}

/**
 * Raises a target's tokens to `tokens`. Ignores ids beyond the column: the index may return targets
 * that have left the table.
 */
function raise(column: Uint32Array, target: number, tokens: number): void {
  if (tokens > (column[target] ?? tokens)) column[target] = tokens;
}

/** Constraints on the workers that may serve a request. */
export interface RouteConstraints
  extends Pick<RouteOverrides, "worker" | "rank" | "allowed" | "excluded"> {
  readonly model: string;
  readonly pool: Pool;
  /** True with mode `direct`: busy workers are eligible too. */
  readonly isDirect: boolean;
}

/** Returns true if the overrides do not restrict the workers. */
export function isForAll({
  worker,
  rank,
  allowed,
  excluded,
}: Omit<RouteConstraints, "model" | "pool" | "isDirect"> = {}): boolean {
  return [worker, rank, allowed, excluded].every((each) => each === undefined);
}

/**
 * Splits targets into candidates and excluded ones. Caches the part that does not depend on load
 * until the worker table changes.
 */
export class TargetFilter {
  /** Cached results by pool and model. Only models with at least one candidate. */
  readonly #kept = new Map<string, Eligibility>();
  #targets: readonly Target[] = [];

  select(
    targets: readonly Target[],
    constraints: RouteConstraints,
    thresholds: BusyThresholds,
    loadOf: (target: Target) => TargetLoad,
  ): Eligibility {
    const served = isForAll(constraints)
      ? this.#forAll(targets, constraints)
      : servedBy(targets, constraints);
    if (constraints.isDirect || isOff(thresholds)) return served;
    const busy = busyTargets(served.candidates, thresholds, loadOf);
    if (busy.size === 0) return served;
    return {
      targets,
      reasons: targets.map((target, at) => busy.get(target) ?? served.reasons[at]),
      candidates: served.candidates.filter((target) => !busy.has(target)),
      isBusy: busy.size === served.candidates.length,
    };
  }

  #forAll(targets: readonly Target[], constraints: RouteConstraints): Eligibility {
    if (targets !== this.#targets) {
      this.#kept.clear();
      this.#targets = targets;
    }
    const name = `${constraints.pool} ${constraints.model}`;
    const kept = this.#kept.get(name);
    if (kept !== undefined) return kept;
    const served = servedBy(targets, constraints);
    if (served.candidates.length > 0) this.#kept.set(name, served);
    return served;
  }
}

/** Returns the targets that can serve the request. Ignores load. */
function servedBy(targets: readonly Target[], constraints: RouteConstraints): Eligibility {
  const reasons = targets.map((target) => staticReason(target, constraints));
  const served = targets.filter((_, at) => reasons[at] === null);
  const live = served.filter(({ state }) => state === "live");
  // Without a live target, stale ones remain candidates.
  if (live.length === 0) return { targets, reasons, candidates: served, isBusy: false };
  for (const [at, { state }] of targets.entries()) {
    if (reasons[at] === null && state === "stale") reasons[at] = "stale";
  }
  return { targets, reasons, candidates: live, isBusy: false };
}

function staticReason(target: Target, constraints: RouteConstraints): FilterReason | null {
  const { worker = target.worker, rank = target.rank, allowed, excluded } = constraints;
  if (target.model !== constraints.model) return "other_model";
  if (!ROLES[constraints.pool].includes(target.role)) return "other_role";
  if (target.state === "draining" || target.state === "gone") return "draining";
  const isNamed = worker === target.worker && rank === target.rank;
  if (!isNamed || allowed?.includes(target.worker) === false) return "not_allowed";
  return excluded?.includes(target.worker) ? "excluded" : null;
}

function isOff(thresholds: BusyThresholds): boolean {
  const { activeDecodeBlocksThreshold: blocks, activePrefillTokensThreshold: tokens } = thresholds;
  return blocks === null && tokens === null && thresholds.activePrefillTokensThresholdFrac == null;
}

/**
 * Returns the busy candidates with the reason. A worker is busy only if all its ranks are, as in
 * Dynamo.
 */
function busyTargets(
  candidates: readonly Target[],
  thresholds: BusyThresholds,
  loadOf: (target: Target) => TargetLoad,
): ReadonlyMap<Target, FilterReason> {
  const busy = new Map<Target, FilterReason>();
  for (const target of candidates) {
    const reason = busyReason(target, loadOf(target), thresholds);
    if (reason !== null) busy.set(target, reason);
  }
  if (busy.size === 0 || busy.size === candidates.length) return busy;
  const withRoom = candidates.filter((target) => !busy.has(target));
  const workers = new Set(withRoom.map(({ worker }) => worker));
  for (const target of [...busy.keys()]) if (workers.has(target.worker)) busy.delete(target);
  return busy;
}

function busyReason(
  { totalBlocks, batchTokensMax }: Target,
  { activeBlocks, activePrefillTokens: tokens }: TargetLoad,
  thresholds: BusyThresholds,
): FilterReason | null {
  const { activeDecodeBlocksThreshold: share, activePrefillTokensThreshold: most } = thresholds;
  const frac = thresholds.activePrefillTokensThresholdFrac ?? null;
  if (share !== null && totalBlocks !== null && activeBlocks > share * totalBlocks) {
    return "busy_blocks";
  }
  if (most !== null && tokens > most) return "busy_prefill";
  const isOver = frac !== null && batchTokensMax !== null && tokens > frac * batchTokensMax;
  return isOver ? "busy_prefill" : null;
}

/** Busy thresholds of each model: those set at run time, otherwise those of the settings. */
export class Thresholds {
  readonly #initial: BusyThresholds;
  readonly #byModel = new Map<string, BusyThresholds>();

  constructor({ activeDecodeBlocksThreshold, activePrefillTokensThreshold }: BusyThresholds) {
    this.#initial = { activeDecodeBlocksThreshold, activePrefillTokensThreshold };
  }

  of(model: string): BusyThresholds {
    return this.#byModel.get(model) ?? this.#initial;
  }

  /** Sets thresholds of a model. Absent members stay unchanged; null disables a threshold. */
  set(model: string, changed: Partial<BusyThresholds>): void {
    const { activePrefillTokensThresholdFrac: frac, ...others } = { ...this.of(model), ...changed };
    const share = frac == null ? {} : { activePrefillTokensThresholdFrac: frac };
    this.#byModel.set(model, { ...others, ...share });
  }

  forget(model: string): void {
    this.#byModel.delete(model);
  }
}

interface SessionWorker {
  readonly worker: WorkerId;
  readonly rank: number;
  readonly untilMs: number;
}

/** Maximum length of a session id. Longer ones are not recorded. */
const NAME_MAX = 512;

/** Latest worker of each session. At the limit, drops the least recently used session. */
export class Affinity {
  readonly #clock: Clock;
  readonly #settings: RouterSettings["affinity"];
  readonly #workers = new Map<string, SessionWorker>();

  constructor(clock: Clock, settings: RouterSettings["affinity"]) {
    this.#clock = clock;
    this.#settings = settings;
  }

  get sessions(): number {
    return this.#workers.size;
  }

  find(session: string): SessionWorker | null {
    const known = this.#workers.get(session);
    if (known === undefined) return null;
    if (known.untilMs > this.#clock.monotonicMs()) return known;
    this.#workers.delete(session);
    return null;
  }

  remember(session: string, worker: WorkerId, rank: number): void {
    const { ttlMs, sessionsMax } = this.#settings;
    if (ttlMs <= 0 || sessionsMax <= 0 || session.length > NAME_MAX) return;
    this.#workers.delete(session);
    if (this.#workers.size >= sessionsMax) this.#workers.delete(this.#workers.keys().next().value!);
    this.#workers.set(session, { worker, rank, untilMs: this.#clock.monotonicMs() + ttlMs });
  }
}

/** Index of the chosen candidate, and the rule that chose it. */
interface Picked {
  readonly candidateIndex: number;
  /** Random number in [0, 1) used for the choice. Null: none was needed. */
  readonly draw: number | null;
  readonly decidedBy: Explanation["decidedBy"];
}

/**
 * Picks the candidate with the lowest cost. Equal candidates have equal probability: the k-th of
 * them replaces the current one with probability 1/k. All these steps use one random number.
 */
export function pickLowest(costs: readonly number[], draw: () => number): Picked {
  let [candidateIndex, equals] = [0, 1];
  for (let at = 1; at < costs.length; at++) {
    if (costs[at] < costs[candidateIndex]) [candidateIndex, equals] = [at, 1];
    else if (costs[at] === costs[candidateIndex]) equals++;
  }
  if (equals === 1) return { candidateIndex, draw: null, decidedBy: "lowest_cost" };
  const lowest = costs[candidateIndex];
  const drawn = draw();
  let left = drawn;
  for (let at = candidateIndex + 1, seen = 1; at < costs.length; at++) {
    if (costs[at] !== lowest) continue;
    seen++;
    // In both cases the scaled remainder is uniform in [0, 1) again, so it serves as the next
    // random number.
    if (left * seen < 1) [candidateIndex, left] = [at, left * seen];
    else left = (left * seen - 1) / (seen - 1);
  }
  return { candidateIndex, draw: drawn, decidedBy: "tie_draw" };
}

/** Returns the softmax probabilities: p ∝ exp(−(cost − min) / ((max − min) · temperature)). */
export function softmax(costs: readonly number[], temperature: number): number[] {
  const [min, max] = extremes(costs);
  const range = (max - min) * temperature;
  const weights = costs.map((cost) => (range > 0 ? Math.exp(-(cost - min) / range) : 1));
  let sum = 0;
  for (const weight of weights) sum += weight;
  return weights.map((weight) => weight / sum);
}

export function pickSoftmax(
  costs: readonly number[],
  temperature: number,
  draw: () => number,
): Picked {
  const chances = softmax(costs, temperature);
  const drawn = draw();
  let [candidateIndex, reached] = [0, chances[0]];
  while (reached <= drawn && candidateIndex < chances.length - 1)
    reached += chances[++candidateIndex];
  return { candidateIndex, draw: drawn, decidedBy: "softmax" };
}

/**
 * Returns the probabilities at temperature 0: equal for all candidates with the lowest cost, else
 * 0.
 */
export function sharedByLowest(costs: readonly number[]): number[] {
  const [min] = extremes(costs);
  const equals = costs.filter((cost) => cost === min).length;
  return costs.map((cost) => (cost === min ? 1 / equals : 0));
}

function extremes(costs: readonly number[]): [number, number] {
  let [min, max] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  for (const cost of costs) {
    if (cost < min) min = cost;
    if (cost > max) max = cost;
  }
  return [min, max];
}
