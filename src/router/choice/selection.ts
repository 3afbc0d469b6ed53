import type { WorkerId } from "../../core/index.ts";
import type { TargetLoad } from "../active-load.ts";
import type { BusyThresholds, FilterReason, RouteOverrides } from "../route.ts";
import type { Target, WorkerRole } from "../workers.ts";

/** Whom a request may go to, as asked for. */
export interface Wish {
  readonly model: string;
  readonly roles: readonly WorkerRole[];
  readonly worker: WorkerId | undefined;
  readonly rank: number | undefined;
  readonly allowed: readonly WorkerId[] | undefined;
  readonly excluded: readonly WorkerId[] | undefined;
  /** Named by whoever asks: then it is taken though it is stale or busy. */
  readonly isDirect: boolean;
}

export interface Selection {
  /** All targets, as the table had them. */
  readonly targets: readonly Target[];
  /** By place in `targets`; null: a candidate. */
  readonly reasons: readonly (FilterReason | null)[];
  /** Places in `targets`. */
  readonly candidates: readonly number[];
  /** There are workers, all busy. */
  readonly isBusy: boolean;
}

export const PREFILL_ROLES: readonly WorkerRole[] = ["prefill"];
export const DECODE_ROLES: readonly WorkerRole[] = ["decode", "both"];

export function wishOf(
  model: string,
  roles: readonly WorkerRole[],
  overrides: RouteOverrides | undefined,
  isDirect: boolean,
): Wish {
  const { worker, rank, allowed, excluded } = overrides ?? {};
  return { model, roles, worker, rank, allowed, excluded, isDirect };
}

/** Sorts all targets into candidates and those that are not, each with its reason. */
export function select(
  targets: readonly Target[],
  wish: Wish,
  thresholds: BusyThresholds,
  loadOf: (target: Target) => TargetLoad,
): Selection {
  const reasons = targets.map((target) => staticReason(target, wish));
  let places = placesOf(reasons);
  // Stale ones serve only where nobody else is left.
  const live = places.filter((place) => targets[place]!.state === "live");
  if (live.length > 0 && live.length < places.length) {
    for (const place of places) if (targets[place]!.state === "stale") reasons[place] = "stale";
    places = live;
  }
  if (wish.isDirect || isOff(thresholds)) {
    return { targets, reasons, candidates: places, isBusy: false };
  }
  for (const place of busyPlaces(targets, places, thresholds, loadOf)) {
    reasons[place.at] = place.reason;
  }
  const candidates = places.filter((place) => reasons[place] === null);
  return { targets, reasons, candidates, isBusy: places.length > 0 && candidates.length === 0 };
}

function staticReason(target: Target, wish: Wish): FilterReason | null {
  if (target.model !== wish.model) return "other_model";
  if (!wish.roles.includes(target.role)) return "other_role";
  if (target.state === "draining" || target.state === "gone") return "draining";
  if (wish.worker !== undefined && target.worker !== wish.worker) return "not_allowed";
  if (wish.rank !== undefined && target.rank !== wish.rank) return "not_allowed";
  if (wish.allowed !== undefined && !wish.allowed.includes(target.worker)) return "not_allowed";
  if (wish.excluded?.includes(target.worker)) return "excluded";
  return null;
}

function isOff(thresholds: BusyThresholds): boolean {
  const { activeDecodeBlocksThreshold: blocks, activePrefillTokensThreshold: tokens } = thresholds;
  const frac = thresholds.activePrefillTokensThresholdFrac ?? null;
  return blocks === null && tokens === null && frac === null;
}

/** A worker is busy when all its ranks are (as Dynamo has it). */
function busyPlaces(
  targets: readonly Target[],
  places: readonly number[],
  thresholds: BusyThresholds,
  loadOf: (target: Target) => TargetLoad,
): { readonly at: number; readonly reason: FilterReason }[] {
  const busy: { at: number; reason: FilterReason }[] = [];
  const workersWithRoom = new Set<WorkerId>();
  for (const at of places) {
    const target = targets[at]!;
    const reason = busyReason(target, loadOf(target), thresholds);
    if (reason === null) workersWithRoom.add(target.worker);
    else busy.push({ at, reason });
  }
  return busy.filter(({ at }) => !workersWithRoom.has(targets[at]!.worker));
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

function placesOf(reasons: readonly (FilterReason | null)[]): number[] {
  const places: number[] = [];
  for (let at = 0; at < reasons.length; at++) if (reasons[at] === null) places.push(at);
  return places;
}
