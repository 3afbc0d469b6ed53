import { RESIDENCY_TIERS, type ResidencyTier } from "../../observability/activity/index.ts";
import type { TargetId } from "../workers.ts";

/** A target and a tier in one number: what holds a block. Ordered by target, then by tier. */
export function holderOf(target: TargetId, tier: ResidencyTier): number {
  return target * 4 + RESIDENCY_TIERS.indexOf(tier);
}

export function targetOf(holder: number): TargetId {
  return (holder >>> 2) as TargetId;
}

export function tierOf(holder: number): ResidencyTier {
  return RESIDENCY_TIERS[holder & 3]!;
}
