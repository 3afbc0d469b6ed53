import type { NodeId } from "../../core/index.ts";
import { Tier } from "../blocks/index.ts";
import type { TieredStore } from "../tiered-store.ts";

/** Limits on the arena bytes that RAM reservations of engines protect from eviction. */
export interface ClaimLimits {
  /** Maximum bytes that one engine may reserve. */
  readonly bytesMax: number;
  /** Maximum bytes that all engines together may reserve. */
  readonly bytesMaxAll: number;
}

/** Counters of RAM reservations since the agent started, and their current use. */
export interface ClaimStats {
  /** Bytes currently protected by reservations. */
  bytes: number;
  /** Number of blocks reserved, and number of those that an engine acquired. */
  claimedBlocks: number;
  takenBlocks: number;
  /** Number of reserved blocks whose reservation ended before an engine acquired them. */
  unusedBlocks: number;
  /** Number of blocks not reserved because a limit was reached. */
  refusedBlocks: number;
}

/** One block within one reservation. */
interface Share {
  readonly claim: Claim;
  readonly block: ClaimedBlock;
  /** Number of acquisitions of the block that are still expected. */
  left: number;
  /** Bit of the tier from which the block was read or fetched; 0 if it was in RAM. */
  from: number;
}

interface ClaimedBlock {
  readonly node: NodeId;
  readonly slotBytes: number;
  /** The entries of this block in all reservations of the engine, the oldest first. */
  readonly shares: Share[];
}

/**
 * A reservation of blocks, which stay in RAM until connections of one engine have acquired them. A
 * reserved block has one lock for all reservations of the engine.
 */
export class Claim {
  readonly id: number;
  readonly readers: number;
  readonly #claims: EngineClaims;
  readonly #shares = new Map<NodeId, Share>();
  #timer: Disposable | null = null;
  #isOver = false;

  constructor(claims: EngineClaims, id: number, readers: number) {
    this.#claims = claims;
    this.id = id;
    this.readers = readers;
  }

  get size(): number {
    return this.#shares.size;
  }

  has(node: NodeId): boolean {
    return this.#shares.has(node);
  }

  /**
   * Adds a block of known length, in RAM or being read or fetched into it. Returns `full` if the
   * limit of the engine or of all engines is reached.
   */
  add(node: NodeId, from: number): "ok" | "full" {
    if (this.#isOver) return "full";
    if (this.#shares.has(node)) return "ok";
    const share = this.#claims.addShare(this, node, from);
    if (share === null) return "full";
    this.#shares.set(node, share);
    return "ok";
  }

  /** Removes a block that did not arrive or is not needed from the reservation. */
  drop(node: NodeId): void {
    const share = this.#shares.get(node);
    if (share === undefined) return;
    this.#shares.delete(node);
    this.#claims.dropShare(share);
  }

  /**
   * Reports that all expected acquisitions of the block have happened. Ends the reservation if it
   * has no block left.
   */
  usedUp(node: NodeId): void {
    this.#shares.delete(node);
    if (this.#shares.size === 0 && this.#timer !== null) this.end();
  }

  /**
   * Starts the expiry: the reservation ends after `ms` milliseconds, or when all its blocks were
   * acquired.
   */
  settle(ms: number): void {
    if (this.#isOver) return;
    this.#timer = this.#claims.store.clock.after(ms, () => this.end());
    if (this.#shares.size === 0) this.end();
  }

  /**
   * Ends the reservation. Releases its blocks from last to first, so that the eviction order sees
   * parents as newer than their children.
   */
  end(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#timer?.[Symbol.dispose]();
    this.#claims.forget(this);
    for (const share of [...this.#shares.values()].reverse()) this.#claims.dropShare(share);
    this.#shares.clear();
  }
}

/** All reservations of one engine. */
export class EngineClaims {
  readonly store: TieredStore;
  readonly #book: ClaimTable;
  readonly #claims = new Map<number, Claim>();
  readonly #blocks = new Map<NodeId, ClaimedBlock>();
  #bytes = 0;

  constructor(store: TieredStore, book: ClaimTable) {
    this.store = store;
    this.#book = book;
  }

  open(readers: number): Claim {
    const claim = new Claim(this, this.#book.nextId(), Math.max(1, readers));
    this.#claims.set(claim.id, claim);
    return claim;
  }

  /** Ends the reservation with this number. Returns false if there is none. */
  endById(id: number): boolean {
    const claim = this.#claims.get(id);
    claim?.end();
    return claim !== undefined;
  }

  endAll(): void {
    for (const claim of [...this.#claims.values()]) claim.end();
  }

  /**
   * Reports that a connection of the engine has acquired the block and has a reference to it.
   * Counts as one of the acquisitions that the oldest reservation of the block expects.
   */
  taken(node: NodeId): void {
    const block = this.#blocks.get(node);
    const share = block?.shares[0];
    if (block === undefined || share === undefined) return;
    const { stats } = this.store;
    if (share.from === Tier.ssd) stats.acquireHitsSsd++;
    else if (share.from === Tier.peer) stats.acquireHitsPeer++;
    share.from = 0;
    share.left--;
    if (share.left > 0) return;
    this.#book.stats.takenBlocks++;
    block.shares.shift();
    if (block.shares.length === 0) this.#unlock(block);
    share.claim.usedUp(node);
  }

  addShare(claim: Claim, node: NodeId, from: number): Share | null {
    const block = this.#blocks.get(node) ?? this.#lock(node);
    if (block === null) {
      this.#book.stats.refusedBlocks++;
      return null;
    }
    const share: Share = { claim, block, left: claim.readers, from };
    block.shares.push(share);
    this.#book.stats.claimedBlocks++;
    return share;
  }

  dropShare(share: Share): void {
    const { block } = share;
    block.shares.splice(block.shares.indexOf(share), 1);
    this.#book.stats.unusedBlocks++;
    if (block.shares.length > 0) return;
    const { ram } = this.store;
    ram.settleFresh(block.node);
    this.#unlock(block);
    ram.letGo(block.node);
  }

  forget(claim: Claim): void {
    this.#claims.delete(claim.id);
  }

  #lock(node: NodeId): ClaimedBlock | null {
    const { table, slots } = this.store;
    const slotBytes = slots.slotBytesFor(table.bytesOf(node));
    const { limits, stats } = this.#book;
    if (this.#bytes + slotBytes > limits.bytesMax) return null;
    if (stats.bytes + slotBytes > limits.bytesMaxAll || !table.lock(node)) return null;
    const block: ClaimedBlock = { node, slotBytes, shares: [] };
    this.#blocks.set(node, block);
    this.#bytes += slotBytes;
    stats.bytes += slotBytes;
    return block;
  }

  #unlock({ node, slotBytes }: ClaimedBlock): void {
    this.#blocks.delete(node);
    this.#bytes -= slotBytes;
    this.#book.stats.bytes -= slotBytes;
    this.store.table.unlock(node);
  }
}

/** Limits, statistics and numbering shared by the reservations of all engines. */
export class ClaimTable {
  limits: ClaimLimits;
  readonly stats: ClaimStats = {
    bytes: 0,
    claimedBlocks: 0,
    takenBlocks: 0,
    unusedBlocks: 0,
    refusedBlocks: 0,
  };
  #lastId = 0;

  constructor(limits: ClaimLimits) {
    this.limits = limits;
  }

  /** Returns a positive id that is not reused within 2^32 reservations. */
  nextId(): number {
    this.#lastId = this.#lastId === 0xffff_ffff ? 1 : this.#lastId + 1;
    return this.#lastId;
  }
}
