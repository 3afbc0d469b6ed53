import { RESIDENCY_TIERS, type ResidencyTier } from "../../src/observability/activity/index.ts";
import type { Content } from "./messages.ts";

/** What one worker has: plain sets. */
export type Sets = Readonly<Record<ResidencyTier, Set<bigint>>>;

export function emptySets(): Sets {
  return { device: new Set(), host: new Set(), disk: new Set() };
}

export function contentOf(sets: Sets): Content {
  const sorted = (tier: ResidencyTier) =>
    Array.from(sets[tier], (hash) => hash.toString(16).padStart(16, "0")).sort();
  return { device: sorted("device"), host: sorted("host"), disk: sorted("disk") };
}

/** Equal only for equal content. */
export function digestOf(content: Content): string {
  const hasher = new Bun.CryptoHasher("sha256");
  for (const tier of RESIDENCY_TIERS) hasher.update(`${tier} ${content[tier].join(" ")}\n`);
  return hasher.digest("hex");
}

/** Block number `at` of the prompt family `family`: the same on every worker. */
export function hashOf(family: number, at: number): bigint {
  return Bun.hash.xxHash3(`${family}/${at}`);
}
