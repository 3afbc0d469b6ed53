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
import { EngineBlockSet, joinDigests, type PublishedSet, storeBlocks } from "./published-sets.ts";

/** Maximum blocks in one change. Such a change fits into a message of any broker. */
const CHANGE_BLOCKS_MAX = 1_024;

export interface ResidencyLogOptions {
  readonly source: ResidencySource;
  readonly ring: RingLimits;
  readonly mode: ResidencyHeartbeat["mode"];
  readonly everyMs: number;
  /** The sets of blocks to publish. No hash occurs in two of them. */
  readonly held: readonly PublishedSet[];
  /** Returns the key spaces of the blocks. Heartbeats contain the last `SPACES_MAX` of them. */
  readonly spaces: () => readonly KeySpace[];
  /** False if some GPU blocks are unknown at the start. Default: true. */
  readonly isDeviceKnown?: boolean;
  /** Publishes all changes that the sets have collected so far. */
  readonly flush: () => void;
}

/** Maximum key spaces in one heartbeat; readers reject more. */
const SPACES_MAX = 16;

export type BatchListener = (batch: ResidencyBatch) => void;

/** Numbers the residency changes of one rank of this host and keeps the latest ones. */
export class ResidencyLog {
  readonly ring: ChangeRing;
  readonly #options: ResidencyLogOptions;
  readonly #listeners = new Set<BatchListener>();
  readonly #knownListeners = new Set<() => void>();
  #isDeviceKnown: boolean;

  constructor(options: ResidencyLogOptions) {
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
  get held(): readonly PublishedSet[] {
    return this.#options.held;
  }
  /** Number of the latest change. */
  get lastSequence(): number {
    return this.ring.last;
  }

  /** True if all blocks on the rank's GPU are published. */
  get isDeviceKnown(): boolean {
    return this.#isDeviceKnown;
  }

  setDeviceKnown(isKnown: boolean): void {
    if (isKnown === this.#isDeviceKnown) return;
    this.#isDeviceKnown = isKnown;
    for (const listener of this.#knownListeners) listener();
  }

  /** Calls the listener whenever `isDeviceKnown` changes. It must not throw. */
  onDeviceKnown(listener: () => void): Disposable {
    this.#knownListeners.add(listener);
    return { [Symbol.dispose]: () => this.#knownListeners.delete(listener) };
  }

  /** Publishes all changes that the sets have collected so far. */
  flush(): void {
    this.#options.flush();
  }

  /** Numbers and publishes changes. The sets in `held` must contain them already. */
  push(changes: readonly ResidencyChange[]): void {
    const split = changes.flatMap((change) => splitChange(change, CHANGE_BLOCKS_MAX));
    if (split.length === 0) return;
    const firstSequence = this.ring.last + 1;
    for (const change of split) this.ring.push(change);
    const batch = { source: this.source, firstSequence, changes: split };
    for (const listener of this.#listeners) listener(batch);
  }

  /** Calls the listener for each batch of changes from now on, in order. It must not throw. */
  listen(listener: BatchListener): Disposable {
    this.#listeners.add(listener);
    return { [Symbol.dispose]: () => this.#listeners.delete(listener) };
  }

  /** Creates a heartbeat. Its change number and its digests describe the same state. */
  heartbeat(isClosing = false): ResidencyHeartbeat {
    this.flush();
    const { source, mode, everyMs, held } = this.#options;
    return {
      source,
      mode,
      everyMs,
      isClosing,
      lastSequence: this.ring.last,
      spaces: this.#options.spaces().slice(-SPACES_MAX),
      digests: joinDigests(held.map(({ digests }) => digests)),
      isDeviceKnown: this.#isDeviceKnown,
    };
  }
}

export interface RingLimits {
  /** Maximum changes that the ring keeps, and maximum blocks in them. */
  readonly changesMax: number;
  readonly blocksMax: number;
}

/** The latest changes of one rank. Change numbers start at 1 and have no gaps. */
export class ChangeRing {
  readonly #limits: RingLimits;
  #kept: ResidencyChange[] = [];
  /** Index in `#kept` of the oldest change. The entries before it are unused. */
  #head = 0;
  #last = 0;
  #blocks = 0;

  constructor(limits: RingLimits) {
    this.#limits = limits;
  }

  /** Number of the oldest change in the ring. If the ring is empty, the latest number + 1. */
  get first(): number {
    return this.#last - this.size + 1;
  }
  /** Number of the latest change; 0 before the first. */
  get last(): number {
    return this.#last;
  }
  get size(): number {
    return this.#kept.length - this.#head;
  }
  get blocks(): number {
    return this.#blocks;
  }

  /** Adds a change and evicts the oldest ones above the limits. The added change is always kept. */
  push(change: ResidencyChange): void {
    this.#kept.push(change);
    this.#last++;
    this.#blocks += blocksIn(change);
    const { changesMax, blocksMax } = this.#limits;
    while (this.size > 1 && (this.size > changesMax || this.#blocks > blocksMax)) {
      this.#blocks -= blocksIn(this.#kept[this.#head]);
      this.#head++;
    }
    if (this.#head <= this.#kept.length / 2 || this.#head < 64) return;
    this.#kept = this.#kept.slice(this.#head);
    this.#head = 0;
  }

  /** Returns the changes numbered `from` to `to`, inclusive. All of them must be in the ring. */
  slice(from: number, to: number): readonly ResidencyChange[] {
    const start = this.#head + (from - this.first);
    return this.#kept.slice(start, start + (to - from + 1));
  }
}

export interface HostResidencyOptions {
  readonly worker: WorkerId;
  readonly incarnation: bigint;
  /** Data-parallel ranks that this host publishes, including 0. */
  readonly ranks: readonly number[];
  readonly residency: StoreResidency;
  readonly ring: RingLimits;
  readonly mode: ResidencyHeartbeat["mode"];
  readonly everyMs: number;
  /** Maximum remembered blocks per engine, from the engine's own events. */
  readonly engineBlocksMax: number;
  /**
   * True if the ingest follows the engines' own events. The GPU contents then count as unknown at
   * first.
   */
  readonly hasEngines: boolean;
  /** Returns the key spaces of this host's store. */
  readonly spaces: () => readonly KeySpace[];
}

interface Rank {
  readonly log: ResidencyLog;
  readonly tiers: readonly ResidencyTier[];
  readonly chains: EngineBlockSet;
  space: KeySpace | null;
  /**
   * True if all blocks of the rank's engine are known. Always false if the engine publishes no
   * events.
   */
  isEngineKnown: boolean;
}

/**
 * The residency logs of all ranks of this host. RAM and SSD blocks of the store are published for
 * every rank. GPU blocks that are mirrored by key belong to no particular rank and are published
 * only if there is one rank. Blocks from an engine's own events are published for its rank.
 */
export class HostResidency implements Disposable {
  readonly #residency: StoreResidency;
  readonly #ranks = new Map<number, Rank>();
  readonly #storeListeners = new Set<(changes: readonly ResidencyChange[]) => void>();
  #isOver = false;
  #isPumping = false;

  constructor(options: HostResidencyOptions) {
    const { residency, ranks, worker, incarnation } = options;
    this.#residency = residency;
    assert(ranks.length > 0, "a host must have a rank");
    const tiers: readonly ResidencyTier[] =
      ranks.length === 1 ? ["device", "host", "disk"] : ["host", "disk"];
    for (const rank of ranks) {
      const chains = new EngineBlockSet(options.engineBlocksMax);
      const log = new ResidencyLog({
        source: { worker, rank, incarnation },
        ring: options.ring,
        mode: options.mode,
        everyMs: options.everyMs,
        held: [storeBlocks(residency, tiers), chains],
        isDeviceKnown: !options.hasEngines,
        spaces: () => this.#spacesOf(rank, options.spaces()),
        flush: () => this.#pump(),
      });
      const isEngineKnown = !options.hasEngines;
      this.#ranks.set(rank, { log, tiers, chains, space: null, isEngineKnown });
    }
    residency.start(() => this.#later());
  }

  get logs(): readonly ResidencyLog[] {
    return [...this.#ranks.values()].map(({ log }) => log);
  }

  /**
   * Number of blocks known from engines' own events, and number of those evicted because the limit
   * was reached.
   */
  get engineBlocks(): { readonly blocks: number; readonly forgotten: number } {
    const all = [...this.#ranks.values()].map(({ chains }) => chains);
    return {
      blocks: all.reduce((sum, { blocks }) => sum + blocks, 0),
      forgotten: all.reduce((sum, { forgotten }) => sum + forgotten, 0),
    };
  }

  /** Publishes changes of a rank's engine, in the key space of hashes of tokens. */
  engineChanged(rank: number, space: KeySpace, changes: readonly ResidencyChange[]): void {
    const known = this.#ranks.get(rank);
    if (known === undefined || this.#isOver) return;
    known.space = space;
    known.log.push(known.chains.apply(changes));
    reportKnown(known);
  }

  /** Sets whether all blocks of the rank's engine are known from its changes. */
  engineKnown(rank: number, isKnown: boolean): void {
    const known = this.#ranks.get(rank);
    if (known === undefined || this.#isOver) return;
    known.isEngineKnown = isKnown;
    reportKnown(known);
  }

  /**
   * Calls the listener with the store's changes before they get a number, so that it can translate
   * them into other formats. It must not throw.
   */
  onStore(listener: (changes: readonly ResidencyChange[]) => void): Disposable {
    this.#storeListeners.add(listener);
    return { [Symbol.dispose]: () => this.#storeListeners.delete(listener) };
  }

  /** Stops publishing. */
  [Symbol.dispose](): void {
    this.#isOver = true;
    this.#residency.stop();
  }

  #spacesOf(rank: number, spaces: readonly KeySpace[]): readonly KeySpace[] {
    const { space } = this.#ranks.get(rank)!;
    return space === null ? spaces : [...spaces, space];
  }

  /** Publishes all changes of this turn together, in the next turn of the event loop. */
  #later(): void {
    void yieldToLoop().then(() => this.#pump());
  }

  #pump(): void {
    // A listener that calls `flush` is called during publication and must not start it again.
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

function reportKnown({ log, chains, isEngineKnown }: Rank): void {
  log.setDeviceKnown(isEngineKnown && chains.isDeviceWhole);
}

function push({ log, tiers, chains }: Rank, changes: readonly ResidencyChange[]): void {
  const own = changes.filter(({ tier }) => tier === null || tiers.includes(tier));
  const at = own.findLastIndex(({ kind }) => kind === "cleared");
  if (at < 0) {
    log.push(own);
    return;
  }
  // The store was cleared. Blocks known from engines' events are published again, because `cleared`
  // removed them too.
  const again = [...chains.slices()].flat();
  log.push([...own.slice(0, at + 1), ...again, ...own.slice(at + 1)]);
}
