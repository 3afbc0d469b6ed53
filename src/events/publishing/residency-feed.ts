import { assert, type WorkerId, yieldToLoop } from "../../core/index.ts";
import type {
  KeySpace,
  ResidencyBatch,
  ResidencyChange,
  ResidencyHeartbeat,
  ResidencySource,
  ResidencyTier,
} from "../../observability/activity/index.ts";
import type { StoreResidency } from "../../store/index.ts";
import { blocksIn, splitChange } from "../index.ts";
import { type Held, HeldChains, heldByStore, joinDigests } from "./held-chains.ts";

/** Blocks in one change: it fits into a message of any broker. */
const CHANGE_BLOCKS_MAX = 1_024;

export interface FeedOptions {
  readonly source: ResidencySource;
  readonly ring: RingLimits;
  readonly mode: ResidencyHeartbeat["mode"];
  readonly everyMs: number;
  /** What it tells of. Their sets have no hash in common. */
  readonly held: readonly Held[];
  /** As many as there are; the latest ones are told. */
  readonly spaces: () => readonly KeySpace[];
  /** Whether all that the device holds is told from the start; true if left out. */
  readonly isDeviceKnown?: boolean;
  /** Has everything that happened so far pushed. */
  readonly flush: () => void;
}

/** Spaces in one heartbeat, as all readers take them. */
const SPACES_MAX = 16;

export type FeedListener = (batch: ResidencyBatch) => void;

/** What one rank of this host says it holds: gives changes their numbers, and keeps the latest. */
export class ResidencyFeed {
  readonly ring: ChangeRing;
  readonly #options: FeedOptions;
  readonly #listeners = new Set<FeedListener>();
  readonly #knownListeners = new Set<() => void>();
  #isDeviceKnown: boolean;

  constructor(options: FeedOptions) {
    this.#options = options;
    this.#isDeviceKnown = options.isDeviceKnown ?? true;
    this.ring = new ChangeRing(options.ring);
  }

  get source(): ResidencySource {
    return this.#options.source;
  }
  get everyMs(): number {
    return this.#options.everyMs;
  }
  get held(): readonly Held[] {
    return this.#options.held;
  }
  /** Of the latest change that was pushed. */
  get lastSequence(): number {
    return this.ring.last;
  }

  /** Whether all that the device holds is told. */
  get isDeviceKnown(): boolean {
    return this.#isDeviceKnown;
  }

  setDeviceKnown(isKnown: boolean): void {
    if (isKnown === this.#isDeviceKnown) return;
    this.#isDeviceKnown = isKnown;
    for (const listener of this.#knownListeners) listener();
  }

  /** Called when `isDeviceKnown` changed; must not throw. */
  onDeviceKnown(listener: () => void): Disposable {
    this.#knownListeners.add(listener);
    return { [Symbol.dispose]: () => this.#knownListeners.delete(listener) };
  }

  /** Has everything that happened so far pushed. */
  flush(): void {
    this.#options.flush();
  }

  /** What `held` has changed already. */
  push(changes: readonly ResidencyChange[]): void {
    const split = changes.flatMap((change) => splitChange(change, CHANGE_BLOCKS_MAX));
    if (split.length === 0) return;
    const firstSequence = this.ring.last + 1;
    for (const change of split) this.ring.push(change);
    const batch = { source: this.source, firstSequence, changes: split };
    for (const listener of this.#listeners) listener(batch);
  }

  /** Called for each batch from now on, in order; must not throw. */
  listen(listener: FeedListener): Disposable {
    this.#listeners.add(listener);
    return { [Symbol.dispose]: () => this.#listeners.delete(listener) };
  }

  /** As it is now: numbers and digests are those of the same moment. */
  heartbeat(isClosing = false): ResidencyHeartbeat {
    this.flush();
    const { source, mode, everyMs, held } = this.#options;
    return {
      ...{ source, mode, everyMs, isClosing },
      lastSequence: this.ring.last,
      spaces: this.#options.spaces().slice(-SPACES_MAX),
      digests: joinDigests(held.map(({ digests }) => digests)),
      isDeviceKnown: this.#isDeviceKnown,
    };
  }
}

export interface RingLimits {
  /** Changes that are kept at most, and blocks in them. */
  readonly changesMax: number;
  readonly blocksMax: number;
}

/** The latest changes of one rank, by their numbers: from 1, without gaps. */
export class ChangeRing {
  readonly #limits: RingLimits;
  #kept: ResidencyChange[] = [];
  /** Place in `#kept` of the oldest one; those before it are gone. */
  #head = 0;
  #last = 0;
  #blocks = 0;

  constructor(limits: RingLimits) {
    this.#limits = limits;
  }

  /** Number of the oldest one that is kept; one behind the latest where none is. */
  get first(): number {
    return this.#last - this.size + 1;
  }
  /** Number of the latest one; 0: there was none so far. */
  get last(): number {
    return this.#last;
  }
  get size(): number {
    return this.#kept.length - this.#head;
  }
  get blocks(): number {
    return this.#blocks;
  }

  /** The latest one always stays. */
  push(change: ResidencyChange): void {
    this.#kept.push(change);
    this.#last++;
    this.#blocks += blocksIn(change);
    const { changesMax, blocksMax } = this.#limits;
    while (this.size > 1 && (this.size > changesMax || this.#blocks > blocksMax)) {
      this.#blocks -= blocksIn(this.#kept[this.#head]!);
      this.#head++;
    }
    if (this.#head <= this.#kept.length / 2 || this.#head < 64) return;
    this.#kept = this.#kept.slice(this.#head);
    this.#head = 0;
  }

  /** Those with numbers from `from` to `to`, both included and kept. */
  slice(from: number, to: number): readonly ResidencyChange[] {
    const start = this.#head + (from - this.first);
    return this.#kept.slice(start, start + (to - from + 1));
  }
}

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
