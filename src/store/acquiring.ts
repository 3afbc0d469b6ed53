import {
  BlockOutcome,
  DIGEST_BYTES,
  type NamespaceIndex,
  NO_NODE,
  type NodeId,
} from "../core/index.ts";
import { AwaitedFetches, AwaitedReads, type BlockToFetch } from "./awaited-blocks.ts";
import { type AddressBatch, copyHandles, type HandleBatch } from "./batches.ts";
import { Tier } from "./blocks/index.ts";
import type { AcquireOptions, SlotRefs } from "./engine-session.ts";
import type { FetchOutcome } from "./exchange/peer-blocks.ts";
import type { ReadOutcome } from "./ssd/block-reader.ts";

const KEY_WORDS = 8;
/**
 * Internal outcome beside the `BlockOutcome` values: the block is being read from SSD or fetched
 * from a peer.
 */
export const COMING = 0xffff;
/**
 * Maximum number of queries to the peer tier, per request, that find no peer with the block. After
 * that, absent blocks are misses without a query.
 */
const VAIN_LOOKS_MAX = 16;

/**
 * A block of an acquire request that is being read or fetched. `i`: its index in the request. `at`:
 * its index in the request's list of SSD reads (`reads`) or of fetches from peers (`fetches`).
 */
interface Coming {
  readonly i: number;
  readonly at: number;
  readonly from: "ssd" | "peer";
}

/** State of one acquire request while its blocks are looked up. */
export interface AcquireRequest {
  readonly batch: AddressBatch;
  readonly namespace: NamespaceIndex;
  readonly tiers: number;
  readonly out: HandleBatch;
  readonly coming: Coming[];
  /** Table nodes of the blocks to read from SSD. */
  readonly reads: NodeId[];
  readonly fetches: BlockToFetch[];
  /**
   * Index in the batch: peers announced the blocks before this index, so no query is needed for
   * them.
   */
  promisedTo: number;
  vainLooks: number;
}

/** Reads and fetches blocks that an acquire request of one engine session did not find in RAM. */
export class Acquiring {
  readonly #slots: SlotRefs;
  /** Fetches from peers that have not finished. */
  readonly #fetched = new Set<AwaitedFetches>();
  #over = false;

  constructor(slots: SlotRefs) {
    this.#slots = slots;
  }

  /**
   * Cancels the fetches in progress and releases blocks that arrive later. Call when the engine's
   * connection has closed.
   */
  end(): void {
    this.#over = true;
    for (const fetched of this.#fetched) fetched.cancel();
  }

  /**
   * Queues a read of the block from SSD and returns COMING. If the block is not on SSD, or SSD
   * cannot be read, queues a fetch from a peer as `fetch` does. Returns `miss` if the request
   * excludes the tier, and `rejected` if the session may not hold another slot.
   */
  read(node: NodeId, i: number, request: AcquireRequest): number {
    const { tiers, coming, reads } = request;
    const { table, ssd } = this.#slots.store;
    const onSsd = ssd?.readable === true && table.isResident(node, Tier.ssd);
    if (!onSsd) return table.isWriting(node) ? BlockOutcome.miss : this.fetch(i, request);
    if ((tiers & Tier.ssd) === 0) return BlockOutcome.miss;
    if (!this.#slots.hasRoom || !table.lock(node)) return BlockOutcome.rejected;
    this.#slots.coming++;
    coming.push({ i, at: reads.length, from: "ssd" });
    reads.push(node);
    return COMING;
  }

  /**
   * Queues a fetch of block `i` from a peer and returns COMING. Returns `miss` if no peer announced
   * the block or the request excludes peers, and `rejected` if the session may not hold another
   * slot.
   */
  fetch(i: number, request: AcquireRequest): number {
    const { store } = this.#slots;
    const { batch, namespace, tiers, coming, fetches } = request;
    if (store.peers === null || (tiers & Tier.peer) === 0) return BlockOutcome.miss;
    if (i >= request.promisedTo) {
      if (request.vainLooks === VAIN_LOOKS_MAX) return BlockOutcome.miss;
      request.promisedTo = i + store.peers.promising(namespace, batch.keys, i, batch.count - i);
      if (i >= request.promisedTo) {
        request.vainLooks++;
        return BlockOutcome.miss;
      }
    }
    if (!this.#slots.hasRoom) return BlockOutcome.rejected;
    this.#slots.coming++;
    coming.push({ i, at: fetches.length, from: "peer" });
    const digest = batch.digests.slice(i * DIGEST_BYTES, (i + 1) * DIGEST_BYTES);
    const key = batch.keys.slice(i * KEY_WORDS, (i + 1) * KEY_WORDS);
    fetches.push({ digest, layer: batch.layer, key });
    return COMING;
  }

  /**
   * Runs the queued reads and fetches. Resolves with the outcomes when all blocks have arrived or
   * the deadline has passed; a block that has not arrived by then is `late`. `found`: the table
   * node of each block of the batch. Copies its arguments: the caller may reuse them as soon as
   * this function returns its promise.
   */
  finish(
    found: Int32Array,
    request: AcquireRequest,
    options: AcquireOptions,
  ): Promise<HandleBatch> {
    const later = { ...request, out: copyHandles(request.out) };
    return this.#finish(found.slice(0, request.batch.count), later, options);
  }

  async #finish(
    nodes: Int32Array,
    request: AcquireRequest,
    { deadlineMs, stopAtMiss }: AcquireOptions,
  ): Promise<HandleBatch> {
    const { namespace, out, coming, reads, fetches } = request;
    const { store } = this.#slots;
    // Start the reads only after the request has locked its blocks in RAM: making room for the
    // reads must not evict those blocks.
    const read = new AwaitedReads(store, reads, this.#slots.zone);
    const fetched = new AwaitedFetches(store, namespace, fetches);
    this.#fetched.add(fetched);
    out.waitedFor = fetches.length > 0 ? Tier.peer : Tier.ssd;
    await Promise.all([
      read.wait(Math.min(deadlineMs, store.readDeadlineMs)),
      fetched.wait(deadlineMs, stopAtMiss),
    ]);
    this.#fetched.delete(fetched);
    this.#slots.coming -= coming.length;
    const isUsed = ({ i }: Coming) => !this.#over && out.outcome[i] === BlockOutcome.ok;
    try {
      for (const { i, at, from } of coming) {
        if (this.#over) out.outcome[i] = BlockOutcome.skipped;
        else if (from === "ssd")
          out.outcome[i] = this.#settleRead(reads[at], i, read.outcomeOf(at), out);
        else {
          nodes[i] = fetched.nodeOf(at) ?? this.#nodeHere(fetches[at], request);
          out.outcome[i] = this.#settleFetch(nodes[i] as NodeId, i, fetched.kindOf(at), out);
        }
        if (from === "ssd" && out.outcome[i] !== BlockOutcome.ok) read.leave(at);
      }
      // If the connection has closed, the session has already released all its slot references.
      if (!this.#over) {
        if (stopAtMiss) this.#skipBehindGap(out);
        this.#count(coming.filter(isUsed), fetched);
        this.#slots.answered(nodes, out);
      }
    } finally {
      const fetches = coming.filter(({ from }) => from === "peer");
      fetched.release((at) => isUsed(fetches[at]));
      for (const node of reads) store.table.unlock(node);
    }
    return out;
  }

  /**
   * Returns the outcome of the SSD read of block `i` and adds a slot reference if it succeeded.
   * `came` is undefined if the read has not finished.
   */
  #settleRead(node: NodeId, i: number, came: ReadOutcome | undefined, out: HandleBatch): number {
    const { ssd, table } = this.#slots.store;
    if (came === undefined) {
      ssd?.wasLate();
      return BlockOutcome.late;
    }
    if (came === "full") return BlockOutcome.full;
    if (came === "miss" || !table.isResident(node, Tier.ram)) return BlockOutcome.miss;
    return this.#slots.grant(node, i, out);
  }

  #settleFetch(node: NodeId, i: number, came: FetchOutcome["kind"], out: HandleBatch): number {
    if (node === NO_NODE) return came === "ok" ? BlockOutcome.miss : BlockOutcome[came];
    return this.#slots.grant(node, i, out);
  }

  /**
   * Returns the block's node if another request brought it into RAM during the fetch; otherwise
   * NO_NODE.
   */
  #nodeHere({ key }: BlockToFetch, { namespace, tiers }: AcquireRequest): NodeId {
    const { store } = this.#slots;
    const node = store.table.find(key, 0);
    if (node === NO_NODE || store.table.namespaceOf(node) !== namespace) return NO_NODE;
    const isHere = (tiers & Tier.ram) !== 0 && store.table.isResident(node, Tier.ram);
    return isHere ? node : NO_NODE;
  }

  /** Marks all blocks after the first unavailable one as `skipped` and releases their slots. */
  #skipBehindGap(out: HandleBatch): void {
    let gap = 0;
    while (gap < out.count && out.outcome[gap] === BlockOutcome.ok) gap++;
    for (let i = out.count - 1; i > gap; i--) {
      const ref = out.outcome[i] === BlockOutcome.ok ? this.#slots.find(out, i) : null;
      // The client may have guessed the handle and released it before this reply.
      if (ref !== null && ref.reads > 0) {
        this.#slots.store.ram.settleFresh(ref.node);
        this.#slots.giveBack(ref);
      }
      out.outcome[i] = BlockOutcome.skipped;
    }
  }

  #count(used: readonly Coming[], fetched: AwaitedFetches): void {
    const { stats } = this.#slots.store;
    for (const { from, at } of used) {
      if (from === "ssd") stats.acquireHitsSsd++;
      else if (fetched.nodeOf(at) !== null) stats.acquireHitsPeer++;
    }
  }
}
