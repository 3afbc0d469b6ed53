import type { NamespaceIndex } from "../core/index.ts";
import type { AddressBatch } from "./batches.ts";
import { TIERS_ALL, Tier } from "./blocks/index.ts";
import type { TieredStore } from "./tiered-store.ts";

/**
 * As `Holder.match`. What other hosts have counts only where their tier is named: that they have it
 * is believed, not known.
 */
export function matchBlocks(
  store: TieredStore,
  namespace: NamespaceIndex,
  batch: Pick<AddressBatch, "keys" | "count">,
  tiers: number,
  best: Uint8Array,
): number {
  const { table, ssd, peers, stats } = store;
  const { keys, count } = batch;
  stats.matchBlocks += count;
  // Nobody is promised what cannot be read.
  const within = ssd?.readable === false ? TIERS_ALL & ~Tier.ssd : TIERS_ALL;
  const mask = (tiers === 0 ? TIERS_ALL : tiers) & within;
  let leading = table.matchLeading(keys, count, namespace, mask, best);
  let promisedTo = leading;
  while (peers !== null && (tiers & Tier.peer) !== 0 && leading < count) {
    if (leading >= promisedTo) {
      promisedTo = leading + peers.promising(namespace, keys, leading, count - leading);
    }
    if (leading >= promisedTo) break;
    best[leading++] = Tier.peer;
    const rest = keys.subarray(leading * 8);
    leading += table.matchLeading(rest, count - leading, namespace, mask, best.subarray(leading));
  }
  // What stands there is the answer to somebody else's question.
  best.fill(0, leading, count);
  return leading;
}
