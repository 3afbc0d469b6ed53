import type { WorkerId } from "../../core/index.ts";
import type { TargetLoad } from "../active-load.ts";
import type { BusyThresholds, FilterReason, RouteOverrides } from "../route.ts";
import type { Target, WorkerRole } from "../workers.ts";

/** Constraints on the workers of a request. */
export interface RouteConstraints {
  readonly model: string;
  readonly roles: readonly WorkerRole[];
  readonly worker: WorkerId | undefined;
  readonly rank: number | undefined;
  readonly allowed: readonly WorkerId[] | undefined;
  readonly excluded: readonly WorkerId[] | undefined;
  /** The client named this worker: it is eligible even if stale or busy. */
  readonly isDirect: boolean;
}

export interface Selection {
  /** All targets of the table at selection time. */
  readonly targets: readonly Target[];
  /** Parallel to `targets`; null marks a candidate. */
  readonly reasons: readonly (FilterReason | null)[];
  readonly candidates: readonly Target[];
  /** Candidates exist, but all are busy. */
  readonly isBusy: boolean;
}

export const PREFILL_ROLES: readonly WorkerRole[] = ["prefill"];
export const DECODE_ROLES: readonly WorkerRole[] = ["decode", "both"];

export function constraintsOf(
  model: string,
  roles: readonly WorkerRole[],
  overrides: RouteOverrides | undefined,
  isDirect: boolean,
): RouteConstraints {
  const { worker, rank, allowed, excluded } = overrides ?? {};
  return { model, roles, worker, rank, allowed, excluded, isDirect };
}

/**
 * Splits all targets into candidates and excluded targets, each with its reason. The part that does
 * not depend on load is cached until a worker changes.
 */
export class Selector {
  /** By model and pool; only models with at least one worker. */
  readonly #kept = new Map<string, Selection>();
  #targets: readonly Target[] = [];

  select(
    targets: readonly Target[],
    constraints: RouteConstraints,
    thresholds: BusyThresholds,
    loadOf: (target: Target) => TargetLoad,
  ): Selection {
    const served = isForAll(constraints)
      ? this.#forAll(targets, constraints)
      : servedBy(targets, constraints);
    if (constraints.isDirect || isOff(thresholds)) return served;
    const busy = busyTargets(served.candidates, thresholds, loadOf);
    if (busy.size === 0) return served;
    return {
      targets,
      reasons: targets.map((target, at) => busy.get(target) ?? served.reasons[at]!),
      candidates: served.candidates.filter((target) => !busy.has(target)),
      isBusy: busy.size === served.candidates.length,
    };
  }

  #forAll(targets: readonly Target[], constraints: RouteConstraints): Selection {
    if (targets !== this.#targets) {
      this.#kept.clear();
      this.#targets = targets;
    }
    const name = `${constraints.roles[0]} ${constraints.model}`;
    const kept = this.#kept.get(name);
    if (kept !== undefined) return kept;
    const served = servedBy(targets, constraints);
    if (served.candidates.length > 0) this.#kept.set(name, served);
    return served;
  }
}

function isForAll({ worker, rank, allowed, excluded }: RouteConstraints): boolean {
  return [worker, rank, allowed, excluded].every((each) => each === undefined);
}

/** Targets that can serve the request, regardless of load. */
function servedBy(targets: readonly Target[], constraints: RouteConstraints): Selection {
  const reasons = targets.map((target) => staticReason(target, constraints));
  const served = targets.filter((_, at) => reasons[at] === null);
  const live = served.filter(({ state }) => state === "live");
  // Stale targets are eligible only if no live one is left.
  if (live.length === 0) return { targets, reasons, candidates: served, isBusy: false };
  for (const [at, { state }] of targets.entries()) {
    if (reasons[at] === null && state === "stale") reasons[at] = "stale";
  }
  return { targets, reasons, candidates: live, isBusy: false };
}

function staticReason(target: Target, constraints: RouteConstraints): FilterReason | null {
  if (target.model !== constraints.model) return "other_model";
  if (!constraints.roles.includes(target.role)) return "other_role";
  if (target.state === "draining" || target.state === "gone") return "draining";
  if (constraints.worker !== undefined && target.worker !== constraints.worker)
    return "not_allowed";
  if (constraints.rank !== undefined && target.rank !== constraints.rank) return "not_allowed";
  if (constraints.allowed !== undefined && !constraints.allowed.includes(target.worker))
    return "not_allowed";
  if (constraints.excluded?.includes(target.worker)) return "excluded";
  return null;
}

function isOff(thresholds: BusyThresholds): boolean {
  const { activeDecodeBlocksThreshold: blocks, activePrefillTokensThreshold: tokens } = thresholds;
  const frac = thresholds.activePrefillTokensThresholdFrac ?? null;
  return blocks === null && tokens === null && frac === null;
}

/** A worker is busy only if all its ranks are (as in Dynamo). */
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
  target: Target,
  load: TargetLoad,
  thresholds: BusyThresholds,
): FilterReason | null {
  const { activeDecodeBlocksThreshold, activePrefillTokensThreshold } = thresholds;
  const frac = thresholds.activePrefillTokensThresholdFrac ?? null;
  if (activeDecodeBlocksThreshold !== null && target.totalBlocks !== null) {
    const most = activeDecodeBlocksThreshold * target.totalBlocks;
    if (load.activeBlocks > most) return "busy_blocks";
  }
  const tokens = load.activePrefillTokens;
  if (activePrefillTokensThreshold !== null && tokens > activePrefillTokensThreshold) {
    return "busy_prefill";
  }
  const { batchTokensMax } = target;
  const isOver = frac !== null && batchTokensMax !== null && tokens > frac * batchTokensMax;
  return isOver ? "busy_prefill" : null;
}

/** Busy thresholds: the settings, or the values set at run time for one model. */
export class Thresholds {
  readonly #initial: BusyThresholds;
  readonly #byModel = new Map<string, BusyThresholds>();

  constructor({ activeDecodeBlocksThreshold, activePrefillTokensThreshold }: BusyThresholds) {
    this.#initial = { activeDecodeBlocksThreshold, activePrefillTokensThreshold };
  }

  of(model: string): BusyThresholds {
    return this.#byModel.get(model) ?? this.#initial;
  }

  /** Absent members are unchanged; null disables a threshold. */
  set(model: string, changed: Partial<BusyThresholds>): void {
    const before = this.of(model);
    const {
      activeDecodeBlocksThreshold = before.activeDecodeBlocksThreshold,
      activePrefillTokensThreshold = before.activePrefillTokensThreshold,
      activePrefillTokensThresholdFrac: frac = before.activePrefillTokensThresholdFrac ?? null,
    } = changed;
    this.#byModel.set(model, {
      ...{ activeDecodeBlocksThreshold, activePrefillTokensThreshold },
      ...(frac === null ? {} : { activePrefillTokensThresholdFrac: frac }),
    });
  }

  forget(model: string): void {
    this.#byModel.delete(model);
  }
}
