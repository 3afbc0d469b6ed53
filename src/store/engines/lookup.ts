import { type NamespaceIndex, NO_NODE, type NodeId } from "../../core/index.ts";
import { TIERS_ALL, Tier } from "../blocks/index.ts";
import type { TieredStore } from "../tiered-store.ts";
import type { Claim } from "./claims.ts";
import type { EngineMember, Engines } from "./engines.ts";
import { HEARTBEAT_MS } from "./engines.ts";
import { LookupReads } from "./lookup-reads.ts";
import { LookupSource } from "./source.ts";

const KEY_WORDS = 8;
/** Block names, counted per rank, that one step examines: about a millisecond of work. */
const STEP_NAMES = 1_024;
/** Minimum time between partial answers. */
const PARTIAL_MS = 10;
/**
 * A waiting lookup sends no more heartbeats if no block has arrived in RAM for this time, since a
 * disk or a writer may hang.
 */
const STALL_MS = 250;

/**
 * One lookup request: finds the leading blocks of a prefix, and on request reads them into RAM and
 * reserves them.
 *
 * States: begun → waiting → over. `ready` grows as blocks arrive in RAM in order. `leading` grows
 * while the lookup waits for blocks that are being written or were announced.
 */
export class Lookup {
  readonly done: Promise<void>;
  readonly #parts: LookupParts;
  readonly #query: LookupQuery;
  readonly #blocks: RankBlocks;
  readonly #best: Uint8Array;
  readonly #claim: Claim | null;
  /** Null if the request does not ask for reads. */
  readonly #reads: LookupReads | null;
  readonly #scratch: Uint8Array;
  readonly #source: LookupSource | null;
  readonly #beganMs: number;
  /** Blocks examined in one step. */
  readonly #stepBlocks: number;
  #resolve!: () => void;
  #reject!: (error: unknown) => void;
  #deadline: Disposable | null = null;
  #leading = 0;
  #ready = 0;
  /** Index from which no block is read or reserved, because a limit was reached. */
  #limit = Number.POSITIVE_INFINITY;
  /** Whether the end of the leading run was found by the latest step. */
  #isEndFound = false;
  /** Whether SSD missed its read deadline. */
  #isSsdLate = false;
  #isOver = false;
  /** Monotonic ms at which `leading` or `ready` last grew. */
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

  /** The requesting connection. */
  get member(): EngineMember {
    return this.#parts.member;
  }

  /** Whether a step has more blocks to examine now, without waiting for arrivals. */
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

  /** Runs the first step. Afterwards `isOver` is true if there is nothing to wait for. */
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

  /** Call when blocks may have arrived. `isTick`: the heartbeat period has passed. */
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

  /** Ends the lookup with its current state. */
  end(): void {
    this.#finish();
  }

  /** Cancels the lookup and releases its blocks, when the answer is not needed any more. */
  cancel(): void {
    if (this.#isOver) return;
    this.#stop();
    this.#claim?.end();
    this.#resolve();
  }

  /** Extends the leading run, within the bounds of one step. */
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
        if (scratch[i]! > this.#best[from + i]!) this.#best[from + i] = scratch[i]!;
      }
    }
    this.#leading = from + run;
    this.#best.fill(0, this.#leading, from + wanted);
    this.#isEndFound = run < wanted || this.#leading === count;
    if (this.#reads !== null) this.#load(from, this.#reads);
  }

  /** Reserves the blocks from `from` on that are in RAM, and reads or fetches the others. */
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
    // Only after the blocks in RAM are reserved: making room for these must not evict them.
    if (this.#isEndFound) reads.begin(this.#leftMs());
  }

  /** RAM, SSD if it is readable, or a peer. */
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

  /** Asks the peer that computes the blocks for the missing ones. */
  #askSource(): void {
    const [source, reads] = [this.#source, this.#reads];
    const { count, ranks } = this.#query;
    if (source === null || reads === null || this.#leading === count) return;
    const isWanted = (at: number, i: number) => {
      if (reads.isFetching(at, i)) return false;
      const node = this.#blocks.nodeOf(ranks[at]!, i);
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

  /** Rejects first, so that the `cancel` afterwards does not resolve the promise. */
  #fail(error: unknown): void {
    this.#reject(error);
    this.cancel();
  }

  /** Counts and reserves the leading blocks that are in RAM, within the bounds of one step. */
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

  /** Whether the next block is being read or fetched. */
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
   * Whether the source has delivered and promised no block for a while. Blocks from elsewhere do
   * not count.
   */
  #isSourceSilent(): boolean {
    return this.#source?.isSilent(this.#grewMs) ?? true;
  }

  /** Whether no block has arrived for a while and none is expected from the source. */
  #isStalled(): boolean {
    const { store, engines } = this.#parts;
    const lastMs = Math.max(this.#beganMs, engines.lookups.lastArrivalMs);
    return this.#isSourceSilent() && store.clock.monotonicMs() - lastMs >= STALL_MS;
  }

  /** Whether block `i` is stored, being written or announced, for all ranks. */
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

  /** Number of announced blocks, within the bounds of one step. */
  #announced(): number {
    const end = Math.min(this.#query.count, this.#leading + this.#stepBlocks);
    let i = this.#leading;
    while (i < end && this.#isAwaited(i)) i++;
    return i - this.#leading;
  }

  /** Sends a partial answer, or a heartbeat if blocks are on their way. */
  #report(): void {
    const { store, onPartial } = this.#parts;
    const now = store.clock.monotonicMs();
    const since = now - this.#partialMs;
    const isNews = this.#ready > this.#partialReady && since >= PARTIAL_MS;
    const isAlive = !this.#isStalled() || this.#isAnnounced();
    // A timer may fire early by a fraction of a millisecond.
    if (!isNews && !(isAlive && since >= HEARTBEAT_MS - 1)) return;
    this.#partialMs = now;
    this.#partialReady = this.#ready;
    onPartial(this.state);
  }

  /** Whether a live engine has announced the next block. */
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

  /** Ends the run before a block that was promised but is not available. */
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

  /** Releases reserved blocks after the ready ones. */
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
 * See `EngineSession.match`. Blocks of peers count only if `tiers` names the peer tier, since their
 * presence is announced, not verified.
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
  // Do not report blocks that cannot be read.
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
  // The rest of the array is from an earlier request.
  best.fill(0, leading, count);
  return leading;
}

/** The blocks of a lookup in the current table. */
class RankBlocks {
  readonly #store: TieredStore;
  readonly #query: LookupQuery;

  constructor(store: TieredStore, query: LookupQuery) {
    this.#store = store;
    this.#query = query;
  }

  /** The node of block `i` in the rank's namespace, or NO_NODE. */
  nodeOf({ namespace, keys }: LookupRank, i: number): NodeId {
    const { table } = this.#store;
    const node = table.find(keys, KEY_WORDS * i);
    return node !== NO_NODE && table.namespaceOf(node) === namespace ? node : NO_NODE;
  }

  /** Whether the block is on a requested tier. */
  counts(node: NodeId): boolean {
    return (this.#store.table.residencyOf(node) & this.#query.tiers) !== 0;
  }

  /** Whether the block is stored on this host or being written. */
  isHere(node: NodeId): boolean {
    return this.#store.table.isWriting(node) || this.counts(node);
  }

  /** Whether block `i` is on a requested tier, for all ranks. */
  arePresent(i: number): boolean {
    return i < this.#query.count && this.#areAll(i, (node) => this.counts(node));
  }

  /** Whether block `i` is in RAM, for all ranks. */
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

/** The blocks in the namespace of one rank of a model. */
export interface LookupRank {
  readonly namespace: NamespaceIndex;
  /** 32 bytes per block. */
  readonly digests: Uint8Array;
  /** Eight words per block. */
  readonly keys: Uint32Array;
}

export interface LookupQuery {
  /** At least one. A block counts only if it is present for all ranks. */
  readonly ranks: readonly LookupRank[];
  readonly layer: number;
  readonly count: number;
  /** Requested tiers, as bits of `Tier`. */
  readonly tiers: number;
  /** Reserve leading blocks in RAM until the engine has acquired them. */
  readonly hold: boolean;
  /** Read or fetch blocks that are not in RAM. */
  readonly fetch: boolean;
  /** Wait for blocks that are being written or were announced. */
  readonly wait: boolean;
  readonly deadlineMs: number;
  readonly holdMs: number;
  /** Acquisitions of a block that end its reservation. */
  readonly readers: number;
  /** Worker id of the peer that computed the blocks; empty if unknown. */
  readonly source: string;
}

/** Current state of the requested blocks. */
export interface LookupState {
  readonly leading: number;
  readonly ready: number;
  /** Number of the reservation; 0 for none. */
  readonly hold: number;
  readonly isBudgetReached: boolean;
  readonly announced: number;
  /** Bit of each block's fastest tier, for the rank with the slowest; 0 after `leading`. */
  readonly best: Uint8Array;
}

interface LookupParts {
  readonly store: TieredStore;
  readonly engines: Engines;
  readonly member: EngineMember;
  /** Called when blocks have arrived, and periodically while more are on their way. */
  readonly onPartial: (state: LookupState) => void;
}
