/**
 * Where a block lies, as bits: a residency and a mask of allowed tiers are sums of these. The lower
 * the bit, the faster the tier. The numbers are the engine protocol's.
 */
export const Tier = { gpu: 1, ram: 2, ssd: 4, peer: 8 } as const;
export type Tier = (typeof Tier)[keyof typeof Tier];

export const TIER_COUNT = 4;
export const TIERS_ALL = Tier.gpu | Tier.ram | Tier.ssd | Tier.peer;

/** Tiers whose blocks Hearth itself evicts: each has a recency list. */
export const RECENCY_TIERS = [Tier.ram, Tier.ssd] as const;
export type RecencyTier = (typeof RECENCY_TIERS)[number];

/** 0 for the GPU, 1 for RAM, and so on: the column of a tier in per-tier counts. */
export function tierIndex(tier: Tier): number {
  return 31 - Math.clz32(tier);
}
