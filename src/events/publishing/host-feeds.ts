import { assert, type WorkerId, yieldToLoop } from "../../core/index.ts";
import type {
  KeySpace,
  ResidencyChange,
  ResidencyHeartbeat,
  ResidencyTier,
} from "../../observability/activity/index.ts";
import type { StoreResidency } from "../../store/index.ts";
import type { RingLimits } from "./change-ring.ts";
import { heldByStore } from "./held.ts";
import { HeldChains } from "./held-chains.ts";
import { ResidencyFeed } from "./residency-feed.ts";

export interface HostFeedsOptions {
  readonly worker: WorkerId;
  readonly incarnation: bigint;
  /** Data parallel ranks of this host, 0 among them. */
  readonly ranks: readonly number[];
  readonly residency: StoreResidency;
  readonly ring: RingLimits;
  readonly mode: ResidencyHeartbeat["mode"];
  readonly everyMs: number;
  /** Of one engine's own events, blocks that are remembered at most. */
  readonly engineBlocksMax: number;
  /** Ranks whose engines' own events are followed: of their devices nothing is known at first. */
  readonly hasEngines: boolean;
  /** Of the store. */
  readonly spaces: () => readonly KeySpace[];
}

interface Rank {
  readonly feed: ResidencyFeed;
  readonly tiers: readonly ResidencyTier[];
  readonly chains: HeldChains;
  space: KeySpace | null;
  /** Whether all that its engine holds is known; of one without own events nothing more is. */
  isEngineKnown: boolean;
}

/**
 * The feeds of all ranks of this host. RAM and SSD belong to all of them alike; what GPUs mirror by
 * keys says nothing of ranks, and is told where there is one only. Engines' own events go to their
 * rank.
 */
export class HostFeeds implements Disposable {
  readonly #residency: StoreResidency;
  readonly #ranks = new Map<number, Rank>();
  readonly #storeListeners = new Set<(changes: readonly ResidencyChange[]) => void>();
  #isOver = false;
  #isPumping = false;

  constructor(options: HostFeedsOptions) {
    const { residency, ranks, worker, incarnation } = options;
    this.#residency = residency;
    assert(ranks.length > 0, "a host has a rank");
    const tiers: readonly ResidencyTier[] =
      ranks.length === 1 ? ["device", "host", "disk"] : ["host", "disk"];
    for (const rank of ranks) {
      const chains = new HeldChains(options.engineBlocksMax);
      const feed = new ResidencyFeed({
        source: { worker, rank, incarnation },
        ring: options.ring,
        mode: options.mode,
        everyMs: options.everyMs,
        held: [heldByStore(residency, tiers), chains],
        isDeviceKnown: !options.hasEngines,
        spaces: () => this.#spacesOf(rank, options.spaces()),
        flush: () => this.#pump(),
      });
      const isEngineKnown = !options.hasEngines;
      this.#ranks.set(rank, { feed, tiers, chains, space: null, isEngineKnown });
    }
    residency.start(() => this.#later());
  }

  get feeds(): readonly ResidencyFeed[] {
    return [...this.#ranks.values()].map(({ feed }) => feed);
  }

  /** Blocks that engines' own events speak of, and those that were forgotten for want of room. */
  get engineBlocks(): { readonly blocks: number; readonly forgotten: number } {
    const all = [...this.#ranks.values()].map(({ chains }) => chains);
    return {
      blocks: all.reduce((sum, { blocks }) => sum + blocks, 0),
      forgotten: all.reduce((sum, { forgotten }) => sum + forgotten, 0),
    };
  }

  /** What an engine's own events say of one rank, in the key space of its tokens. */
  engineChanged(rank: number, space: KeySpace, changes: readonly ResidencyChange[]): void {
    const known = this.#ranks.get(rank);
    if (known === undefined || this.#isOver) return;
    known.space = space;
    known.feed.push(known.chains.apply(changes));
    reportKnown(known);
  }

  /** Whether the changes of an engine so far name all that it holds. */
  engineKnown(rank: number, isKnown: boolean): void {
    const known = this.#ranks.get(rank);
    if (known === undefined || this.#isOver) return;
    known.isEngineKnown = isKnown;
    reportKnown(known);
  }

  /**
   * Called with what the store told, before it is numbered: for those who tell it in other words.
   * Must not throw.
   */
  onStore(listener: (changes: readonly ResidencyChange[]) => void): Disposable {
    this.#storeListeners.add(listener);
    return { [Symbol.dispose]: () => this.#storeListeners.delete(listener) };
  }

  /** Nothing is told any more. */
  [Symbol.dispose](): void {
    this.#isOver = true;
    this.#residency.stop();
  }

  #spacesOf(rank: number, spaces: readonly KeySpace[]): readonly KeySpace[] {
    const { space } = this.#ranks.get(rank)!;
    return space === null ? spaces : [...spaces, space];
  }

  /** Everything of this turn of the loop at once. */
  #later(): void {
    void yieldToLoop().then(() => this.#pump());
  }

  #pump(): void {
    // A listener that flushes is told what is told just now.
    if (this.#isOver || this.#isPumping) return;
    this.#isPumping = true;
    const changes = this.#residency.drain();
    if (changes.length > 0) {
      for (const rank of this.#ranks.values()) push(rank, changes);
      for (const listener of this.#storeListeners) listener(changes);
    }
    this.#isPumping = false;
  }
}

function reportKnown({ feed, chains, isEngineKnown }: Rank): void {
  feed.setDeviceKnown(isEngineKnown && chains.isDeviceWhole);
}

function push({ feed, tiers, chains }: Rank, changes: readonly ResidencyChange[]): void {
  const own = changes.filter(({ tier }) => tier === null || tiers.includes(tier));
  const at = own.findLastIndex(({ kind }) => kind === "cleared");
  if (at < 0) {
    feed.push(own);
    return;
  }
  // The store begins anew: what engines told of theirs is not gone.
  const again = [...chains.slices()].flat();
  feed.push([...own.slice(0, at + 1), ...again, ...own.slice(at + 1)]);
}
