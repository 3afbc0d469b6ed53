import type {
  ResidencyChange,
  ResidencyDigest,
  ResidencyTier,
} from "../../observability/activity/index.ts";
import type { StoreResidency } from "../../store/index.ts";

/** Blocks that a rank speaks of; what it told of them so far is what it has. */
export interface Held {
  /** In the order of RESIDENCY_TIERS. */
  readonly digests: readonly ResidencyDigest[];
  /**
   * All of it, in `stored` changes of some thousand blocks a step. It may change between steps:
   * what is there from the first step to the last comes once, what comes or goes may be missed.
   */
  slices(): Iterator<readonly ResidencyChange[], void>;
}

/** Entries of the table in one step: about a millisecond. */
const ENTRIES = 2_048;

/** What the store has on these tiers. */
export function heldByStore(residency: StoreResidency, tiers: readonly ResidencyTier[]): Held {
  return {
    get digests() {
      const { digests } = residency;
      return (["device", "host", "disk"] as const).map((tier, i) =>
        tiers.includes(tier) ? digests[i]! : NOTHING,
      );
    },
    *slices() {
      let from: number | null = 0;
      while (from !== null) {
        const { changes, next } = residency.slice(from, ENTRIES);
        from = next;
        yield changes.filter(({ tier }) => tier !== null && tiers.includes(tier));
      }
    },
  };
}

const NOTHING: ResidencyDigest = { blocks: 0, mix: 0n };

/** Of sets that have no block in common. */
export function joinDigests(all: readonly (readonly ResidencyDigest[])[]): ResidencyDigest[] {
  return [0, 1, 2].map((place) =>
    all.reduce<ResidencyDigest>(
      (sum, digests) => ({
        blocks: sum.blocks + digests[place]!.blocks,
        mix: sum.mix ^ digests[place]!.mix,
      }),
      NOTHING,
    ),
  );
}
