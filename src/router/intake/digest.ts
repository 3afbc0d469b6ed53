import type { ResidencyDigest } from "../../observability/activity/index.ts";

/** Whether two count the same blocks; both in the order of RESIDENCY_TIERS. */
export function sameDigests(a: readonly ResidencyDigest[], b: readonly ResidencyDigest[]): boolean {
  const isSame = (one: ResidencyDigest, at: number) =>
    one.blocks === b[at]?.blocks && one.mix === b[at]?.mix;
  return a.length === b.length && a.every(isSame);
}
