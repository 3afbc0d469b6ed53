import { type NamespaceIndex, NO_NODE, type NodeId } from "../../core/index.ts";
import { TIERS_ALL, Tier } from "../blocks/index.ts";
import type { TieredStore } from "../tiered-store.ts";
import type { Claim } from "./claims.ts";
import type { EngineMember, Engines } from "./engines.ts";
import { HEARTBEAT_MS } from "./engines.ts";
import { LookupReads } from "./lookup-reads.ts";
import { LookupSource } from "./source.ts";

const KEY_WORDS = 8;
/**
 * Maximum number of blocks, counted per rank, that one step examines: about a millisecond of work.
 */
const STEP_NAMES = 1_024;
/** Minimum milliseconds between two partial results sent to the engine. */
const PARTIAL_MS = 10;
/**
 * Milliseconds without a block arriving in RAM after which a waiting lookup sends no more
 * heartbeats, since a disk or a writer may hang.
 */
const STALL_MS = 250;

/**
 * One lookup request: finds the leading blocks of a prefix and, if requested, reads them into RAM
 * and reserves them.
 *
 * States: begun → waiting → over. `leading` counts the blocks of the prefix that are available or
 * awaited; it grows while the lookup waits for blocks that are being written or were announced.
 * `ready` counts those of them that have arrived in RAM, in order.
 */
export class Lookup {
  readonly done: Promise<void>;
  readonly #parts: LookupParts;
  readonly #query: LookupQuery;
  readonly #blocks: RankBlocks;
  readonly #best: Uint8Array;
  readonly #claim: Claim | null;
  /** Reads and fetches of the lookup; null if the request asks for none. */
  readonly #reads: LookupReads | null;
  readonly #scratch: Uint8Array;
  readonly #source: LookupSource | null;
  readonly #beganMs: number;
  /** Number of blocks that one step may examine. */
  readonly #stepBlocks: number;
  #resolve!: () => void;
  #reject!: (error: unknown) => void;
  #deadline: Disposable | null = null;
  #leading = 0;
  #ready = 0;
  /** Index from which on no block is read or reserved, because a limit was reached. */
  #limit = Number.POSITIVE_INFINITY;
  /** True if the latest step reached the end of the leading run. */
  #isEndFound = false;
  /** True if a read from SSD missed its deadline. */
  #isSsdLate = false;
  #isOver = false;
  /** Time (monotonic ms) at which `leading` or `ready` last grew. */
  #grewMs: number;
  #partialMs = Number.NEGATIVE_INFINITY;
  #partialReady = 0;

  constructor(parts: LookupParts, query: LookupQuery) {
    this.#parts = parts;
    this.#query = query;
    this.#blocks = new RankBlocks(parts.store, query);
    this.#best = new Uint8Array(query.count);
    this.#stepBlocks = Math.max(1, Math.floor(STEP_NAMES / query.ranks.length));
    this.#scratch = new Uint8Array(this.#stepBlocks);
    this.#claim = query.hold || query.fetch ? parts.member.claims.open(query.readers) : null;
    this.#reads = query.fetch ? this.#createReads(this.#claim!) : null;
    const { source } = query;
    const mayAsk = source !== "" && query.wait && query.fetch && parts.store.peers !== null;
    this.#source = mayAsk ? new LookupSource(parts.store, source, query) : null;
    this.#beganMs = parts.store.clock.monotonicMs();
    this.#grewMs = this.#beganMs;
    this.done = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
  }

  #createReads(claim: Claim): LookupReads {
    const { ranks, layer } = this.#query;
    return new LookupReads({
      store: this.#parts.store,
      ranks,
      layer,
      claim,
      keep: (node, i) => {
        if (i < this.#limit) this.#keep(node, i, Tier.peer);
      },
      changed: () => this.step(false),
      failed: (error) => this.#fail(error),
    });
  }

  get isOver(): boolean {
    return this.#isOver;
  }

  /** The connection that requested the lookup. */
  get member(): EngineMember {
    return this.#parts.member;
  }

  /** True if another step can examine blocks now, without waiting for arrivals. */
  get hasMore(): boolean {
    if (!this.#isEndFound) return true;
    const i = this.#ready;
    return i < this.#leading && i < this.#limit && this.#blocks.areInRam(i);
  }

  get state(): LookupState {
    return {
      leading: this.#leading,
      ready: this.#ready,
      hold: this.#query.hold && this.#claim !== null && this.#claim.size > 0 ? this.#claim.id : 0,
      isBudgetReached: this.#limit !== Number.POSITIVE_INFINITY,
      announced: this.#announced(),
      best: this.#best,
    };
  }

  /** Runs the first step. If `isOver` is true afterwards, there is nothing to wait for. */
  begin(): void {
    const { store, engines } = this.#parts;
    store.stats.matchBlocks += this.#query.count;
    this.#extend();
    this.#advance();
    if (this.#isFinished()) {
      this.#finish();
      return;
    }
    this.#askSource();
    this.#deadline = store.clock.after(this.#query.deadlineMs, () => this.#finish());
    engines.lookups.add(this);
  }

  /**
   * Examines the blocks again. Call when blocks may have arrived. `isTick`: true if the heartbeat
   * period has passed.
   */
  step(isTick: boolean): void {
    if (this.#isOver) return;
    const before = this.#leading + this.#ready;
    try {
      const mayGrow = this.#query.wait && (isTick || this.#blocks.arePresent(this.#leading));
      if (!this.#isEndFound || mayGrow) this.#extend();
      this.#advance();
      if (this.#leading + this.#ready > before)
        this.#grewMs = this.#parts.store.clock.monotonicMs();
      if (this.#isFinished()) this.#finish();
      else {
        if (isTick) this.#askSource();
        if (!this.hasMore) this.#report();
      }
    } catch (error) {
      this.#fail(error);
    }
  }

  /** Ends the lookup with the blocks found so far as its result. */
  end(): void {
    this.#finish();
  }

  /**
   * Cancels the lookup and releases the blocks that it reserved. Call if the result is not needed
   * any more.
   */
  cancel(): void {
    if (this.#isOver) return;
    this.#stop();
    this.#claim?.end();
    this.#resolve();
  }

  /** Extends the leading run, examining at most one step's worth of blocks. */
  #extend(): void {
    const { ranks, count, tiers } = this.#query;
    const from = this.#leading;
    const wanted = Math.min(this.#stepBlocks, count - from);
    const scratch = this.#scratch;
    let run = wanted;
    for (const { namespace, keys } of ranks) {
      if (run === 0) break;
      const rest = { keys: keys.subarray(KEY_WORDS * from), count: run };
      run = matchBlocks(this.#parts.store, namespace, rest, tiers, scratch);
      for (let i = 0; i < run; i++) {
        if (scratch[i] > this.#best[from + i]) this.#best[from + i] = scratch[i];
      }
    }
    this.#leading = from + run;
    this.#best.fill(0, this.#leading, from + wanted);
    this.#isEndFound = run < wanted || this.#leading === count;
    if (this.#reads !== null) this.#load(from, this.#reads);
  }

  /**
   * Reserves the blocks from index `from` on that are in RAM, and queues reads or fetches of the
   * others.
   */
  #load(from: number, reads: LookupReads): void {
    const { ranks } = this.#query;
    for (let i = from; i < this.#leading && i < this.#limit; i++) {
      for (const [at, rank] of ranks.entries()) {
        const node = this.#blocks.nodeOf(rank, i);
        const tier = node === NO_NODE ? Tier.peer : this.#bestTierOf(node);
        if (tier !== Tier.peer) {
          const isKept = this.#keep(node, i, tier === Tier.ram ? 0 : tier);
          if (isKept && tier === Tier.ssd) reads.addRead(node);
        } else if (this.#query.tiers & Tier.peer) {
          reads.addFetch(at, i);
        }
      }
    }
    // Start the reads only after the blocks in RAM are reserved: making room for the reads must not
    // evict those blocks.
    if (this.#isEndFound) reads.begin(this.#leftMs());
  }

  /**
   * Returns the fastest tier from which the block can be had: RAM, SSD if it is readable, or a
   * peer.
   */
  #bestTierOf(node: NodeId): number {
    const { table, ssd } = this.#parts.store;
    if (table.isResident(node, Tier.ram)) return Tier.ram;
    const mayRead = ssd?.readable === true && (this.#query.tiers & Tier.ssd) !== 0;
    return mayRead && table.isResident(node, Tier.ssd) ? Tier.ssd : Tier.peer;
  }

  #keep(node: NodeId, i: number, from: number): boolean {
    if (this.#claim!.add(node, from) === "ok") return true;
    this.#limit = Math.min(this.#limit, i);
    return false;
  }

  /** Asks the peer that computes the prompt for the blocks that are missing here. */
  #askSource(): void {
    const [source, reads] = [this.#source, this.#reads];
    const { count, ranks } = this.#query;
    if (source === null || reads === null || this.#leading === count) return;
    const isWanted = (at: number, i: number) => {
      if (reads.isFetching(at, i)) return false;
      const node = this.#blocks.nodeOf(ranks[at], i);
      return node === NO_NODE || !this.#blocks.isHere(node);
    };
    const come = (places: number[][] | null) => {
      if (places === null || this.#isOver) return;
      for (const [at, some] of places.entries()) {
        const wanted = some.filter((i) => isWanted(at, i));
        const failed = () => source.failed();
        reads.fetch(at, wanted, this.#leftMs(), [this.#query.source], failed);
      }
    };
    const asked = source.ask(this.#leading, Math.min(count, this.#limit), isWanted);
    void asked.then(come).catch((error) => this.#fail(error));
  }

  #leftMs(): number {
    const { clock } = this.#parts.store;
    return Math.max(0, this.#query.deadlineMs - (clock.monotonicMs() - this.#beganMs));
  }

  /**
   * Fails the lookup with `error`. Rejects before it calls `cancel`, because `cancel` would resolve
   * the promise.
   */
  #fail(error: unknown): void {
    this.#reject(error);
    this.cancel();
  }

  /**
   * Counts and reserves the leading blocks that are in RAM, examining at most one step's worth of
   * blocks.
   */
  #advance(): void {
    const { ranks } = this.#query;
    const end = Math.min(this.#leading, this.#limit, this.#ready + this.#stepBlocks);
    while (this.#ready < end && this.#ready < this.#limit) {
      const i = this.#ready;
      for (const rank of ranks) {
        const node = this.#blocks.nodeOf(rank, i);
        if (node === NO_NODE || !this.#parts.store.table.isResident(node, Tier.ram)) return;
        if (this.#claim !== null && !this.#keep(node, i, 0)) return;
      }
      this.#ready++;
    }
  }

  /** Returns whether the block after the ready ones is being read or fetched. */
  #isComing(): boolean {
    const i = this.#ready;
    return this.#query.ranks.some((rank, at) => {
      if (this.#reads?.isFetching(at, i) === true) return true;
      const node = this.#blocks.nodeOf(rank, i);
      return node !== NO_NODE && !this.#isSsdLate && this.#reads?.isReading(node) === true;
    });
  }

  #isFinished(): boolean {
    const { store } = this.#parts;
    const { wait, fetch, count } = this.#query;
    if (this.#limit <= this.#ready) return true;
    if (this.hasMore) return false;
    if (fetch && this.#ready < this.#leading) {
      const waitedMs = store.clock.monotonicMs() - this.#beganMs;
      if (this.#reads?.areReads && waitedMs > store.readDeadlineMs) this.#isSsdLate = true;
      return !this.#isComing();
    }
    if (!wait || this.#leading === count) return true;
    return !this.#isAwaited(this.#leading) && this.#isSourceSilent();
  }

  /**
   * Returns whether the source peer has neither delivered nor promised a block for a while. Blocks
   * from elsewhere do not count.
   */
  #isSourceSilent(): boolean {
    return this.#source?.isSilent(this.#grewMs) ?? true;
  }

  /** Returns whether no block has arrived for a while and none is expected from the source peer. */
  #isStalled(): boolean {
    const { store, engines } = this.#parts;
    const lastMs = Math.max(this.#beganMs, engines.lookups.lastArrivalMs);
    return this.#isSourceSilent() && store.clock.monotonicMs() - lastMs >= STALL_MS;
  }

  /** Returns whether block `i` is stored, being written or announced, for all ranks. */
  #isAwaited(i: number): boolean {
    const { announcements } = this.#parts.engines;
    return this.#query.ranks.every((rank, at) => {
      const node = this.#blocks.nodeOf(rank, i);
      if (node !== NO_NODE && this.#blocks.isHere(node)) return true;
      if (this.#reads?.isFetching(at, i) === true) return true;
      if (this.#source?.promises(at, i) === true) return true;
      return announcements.has(rank.keys, i);
    });
  }

  /**
   * Returns how many blocks after the leading run are stored, being written or announced, without
   * a gap. Examines at most one step's worth of blocks.
   */
  #announced(): number {
    const end = Math.min(this.#query.count, this.#leading + this.#stepBlocks);
    let i = this.#leading;
    while (i < end && this.#isAwaited(i)) i++;
    return i - this.#leading;
  }

  /** Sends a partial result if blocks have arrived, or a heartbeat if blocks are expected. */
  #report(): void {
    const { store, onPartial } = this.#parts;
    const now = store.clock.monotonicMs();
    const since = now - this.#partialMs;
    const isNews = this.#ready > this.#partialReady && since >= PARTIAL_MS;
    const isAlive = !this.#isStalled() || this.#isAnnounced();
    // Allow for a timer that fires a fraction of a millisecond early.
    if (!isNews && !(isAlive && since >= HEARTBEAT_MS - 1)) return;
    this.#partialMs = now;
    this.#partialReady = this.#ready;
    onPartial(this.state);
  }

  /** Returns whether a live engine has announced the block after the leading run. */
  #isAnnounced(): boolean {
    const { announcements } = this.#parts.engines;
    const i = this.#leading;
    if (i === this.#query.count || this.#ready < i) return false;
    return this.#query.ranks.some(({ keys }) => announcements.has(keys, i));
  }

  #stop(): void {
    this.#isOver = true;
    this.#deadline?.[Symbol.dispose]();
    this.#parts.engines.lookups.remove(this);
    this.#source?.close();
    this.#reads?.stop();
  }

  #finish(): void {
    if (this.#isOver) return;
    const { store } = this.#parts;
    const { fetch, hold, holdMs } = this.#query;
    if (this.#reads?.areReads) store.ssd?.wasLate();
    this.#stop();
    if (fetch) this.#cutMissing();
    if (!hold) this.#claim?.end();
    else this.#release();
    this.#resolve();
    if (hold) this.#claim!.settle(holdMs);
  }

  /**
   * Shortens the leading run so that it ends before a block that was expected but is not available.
   */
  #cutMissing(): void {
    const { ranks } = this.#query;
    const i = this.#ready;
    if (i >= this.#leading) return;
    const isThere = ranks.every((rank, at) => {
      const node = this.#blocks.nodeOf(rank, i);
      if (node !== NO_NODE && this.#blocks.counts(node)) return true;
      return this.#reads?.isFetching(at, i) === true;
    });
    if (isThere) return;
    this.#leading = i;
    this.#best.fill(0, i);
  }

  /** Releases the reserved blocks that follow the last ready block in the prefix. */
  #release(): void {
    const { ranks, count } = this.#query;
    if (this.#claim!.size <= this.#ready * ranks.length) return;
    for (let i = count - 1; i >= this.#ready; i--) {
      for (const rank of ranks) {
        const node = this.#blocks.nodeOf(rank, i);
        if (node !== NO_NODE) this.#claim!.drop(node);
      }
    }
  }
}

/**
 * Implements `EngineSession.match`. Blocks of peers count only if `tiers` contains the peer tier,
 * since peers announce them but this host has not verified them.
 */
export function matchBlocks(
  store: TieredStore,
  namespace: NamespaceIndex,
  batch: { readonly keys: Uint32Array; readonly count: number },
  tiers: number,
  best: Uint8Array,
): number {
  const { table, ssd, peers, stats } = store;
  const { keys, count } = batch;
  stats.matchBlocks += count;
  // Leave out SSD while it cannot be read, so that no block is reported that cannot be loaded.
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
  // Clear the rest of the array, which contains values of an earlier request.
  best.fill(0, leading, count);
  return leading;
}

/** The blocks of a lookup, as the block table has them now. */
class RankBlocks {
  readonly #store: TieredStore;
  readonly #query: LookupQuery;

  constructor(store: TieredStore, query: LookupQuery) {
    this.#store = store;
    this.#query = query;
  }

  /** Returns the node of block `i` in the rank's namespace, or NO_NODE. */
  nodeOf({ namespace, keys }: LookupRank, i: number): NodeId {
    const { table } = this.#store;
    const node = table.find(keys, KEY_WORDS * i);
    return node !== NO_NODE && table.namespaceOf(node) === namespace ? node : NO_NODE;
  }

  /** Returns whether the block is on one of the requested tiers. */
  counts(node: NodeId): boolean {
    return (this.#store.table.residencyOf(node) & this.#query.tiers) !== 0;
  }

  /** Returns whether the block is on one of the requested tiers or being written. */
  isHere(node: NodeId): boolean {
    return this.#store.table.isWriting(node) || this.counts(node);
  }

  /** Returns whether block `i` is on a requested tier, for all ranks. */
  arePresent(i: number): boolean {
    return i < this.#query.count && this.#areAll(i, (node) => this.counts(node));
  }

  /** Returns whether block `i` is in RAM, for all ranks. */
  areInRam(i: number): boolean {
    const { table } = this.#store;
    return this.#areAll(i, (node) => table.isResident(node, Tier.ram));
  }

  #areAll(i: number, is: (node: NodeId) => boolean): boolean {
    return this.#query.ranks.every((rank) => {
      const node = this.nodeOf(rank, i);
      return node !== NO_NODE && is(node);
    });
  }
}

/** The blocks of one rank of a model. Each rank has a namespace of its own. */
export interface LookupRank {
  readonly namespace: NamespaceIndex;
  /** Digests, 32 bytes per block. */
  readonly digests: Uint8Array;
  /** Block keys, eight 32-bit words per block. */
  readonly keys: Uint32Array;
}

export interface LookupQuery {
  /** The ranks, at least one. A block counts only if it is present for all of them. */
  readonly ranks: readonly LookupRank[];
  readonly layer: number;
  readonly count: number;
  /** Bit mask of the tiers to search (`Tier`). */
  readonly tiers: number;
  /** True: reserve the leading blocks in RAM until the engine has acquired them. */
  readonly hold: boolean;
  /** True: read or fetch blocks that are not in RAM. */
  readonly fetch: boolean;
  /** True: wait for blocks that are being written or were announced. */
  readonly wait: boolean;
  readonly deadlineMs: number;
  readonly holdMs: number;
  /** Number of acquisitions of a block after which its reservation ends. */
  readonly readers: number;
  /** Worker id of the peer that computes the blocks; empty if unknown. */
  readonly source: string;
}

/** Progress or result of a lookup. */
export interface LookupState {
  readonly leading: number;
  readonly ready: number;
  /** Number of the RAM reservation; 0 for none. */
  readonly hold: number;
  readonly isBudgetReached: boolean;
  readonly announced: number;
  /**
   * Bit of each block's fastest tier (for several ranks, of the slowest among them); 0 from index
   * `leading` on.
   */
  readonly best: Uint8Array;
}

interface LookupParts {
  readonly store: TieredStore;
  readonly engines: Engines;
  readonly member: EngineMember;
  /** Called when blocks have arrived, and as a heartbeat while more are expected. */
  readonly onPartial: (state: LookupState) => void;
}
