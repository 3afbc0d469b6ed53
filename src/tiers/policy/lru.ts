import type { EvictionPolicy } from "./eviction-policy.ts";

/** Least recently used, leaves before parents: the order the table keeps anyway. */
export const lru: EvictionPolicy = {
  name: "lru",
  onStored: () => "refresh",
  onUsed: () => "refresh",
  victim: (view, tier) => view.oldest(tier),
};
