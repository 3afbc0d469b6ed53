import { Tier } from "../blocks/index.ts";
import {
  assert,
  BlockFlag,
  BlockOutcome,
  type NamespaceIndex,
  NO_NODE,
  type NodeId,
} from "../core/index.ts";
import type { SessionPage } from "../leases/index.ts";
import { type AddressBatch, copyHandles, type HandleBatch } from "./batches.ts";
import type { AcquireOptions, Holder, HolderOptions, SessionStatus } from "./block-store.ts";
import { ComingBlocks } from "./coming-blocks.ts";
import { commitHolds } from "./commit.ts";
import type { Hold } from "./hold.ts";
import { Reservation } from "./reservation.ts";
import { resolveHashes } from "./resolve-hashes.ts";
import type { ReadOutcome } from "./ssd/block-reader.ts";
import type { TieredStore } from "./tiered-store.ts";

/** One engine connection's holds on blocks: in RAM, or brought there from SSD. */
export class StoreHolder implements Holder {
  readonly #store: TieredStore;
  readonly #namespace: NamespaceIndex;
  readonly #handlesMax: number;
  /** By slot: a slot is either written by this holder or read by it. */
  readonly #holds = new Map<number, Hold>();
  /** Half-written slots of a connection that is gone. */
  readonly #quarantined: number[] = [];
  readonly #gpu: Set<NodeId>;
  readonly #reservation: Reservation;
  #held = 0;
  /** Blocks on their way from SSD for this holder. */
  #coming = 0;
  #over = false;

  constructor(store: TieredStore, options: HolderOptions) {
    this.#store = store;
    this.#namespace = options.namespace;
    this.#handlesMax = options.handlesMax;
    this.#gpu = store.mirror.openWindow();
    this.#reservation = new Reservation(store, options.namespace, {
      mayHold: () => this.held < this.#handlesMax,
      hold: (hold) => this.#keep(hold),
    });
  }

  get held(): number {
    return this.#held + this.#coming + this.#quarantined.length;
  }

  match(batch: AddressBatch, tiers: number, best: Uint8Array): number {
    const { table, stats } = this.#store;
    stats.matchBlocks += batch.count;
    // Nobody is promised what cannot be read.
    const within = this.#store.ssd?.readable === false ? ALL_TIERS & ~Tier.ssd : ALL_TIERS;
    const mask = (tiers === 0 ? ALL_TIERS : tiers) & within;
    const leading = table.matchLeading(batch.keys, batch.count, this.#namespace, mask, best);
    // What stands there is the answer to somebody else's question.
    best.fill(0, leading, batch.count);
    return leading;
  }

  reserve(batch: AddressBatch, out: HandleBatch): void {
    this.#reservation.reserve(batch, out);
  }

  commit(handles: HandleBatch): Promise<void> | null {
    const holds: (Hold | null)[] = [];
    for (let i = 0; i < handles.count; i++) {
      const hold = this.#written(handles, i);
      if (hold === null) handles.outcome[i] = BlockOutcome.stale;
      else hold.committing = true;
      holds.push(hold);
    }
    return commitHolds(this.#store, handles, holds, (hold) => this.#forget(hold));
  }

  #find(handles: HandleBatch, i: number): Hold | null {
    const hold = this.#holds.get(handles.slot[i]!);
    return hold?.generation === handles.generation[i]! ? hold : null;
  }

  /** The hold behind handle `i` where it is a slot still to be written. */
  #written(handles: HandleBatch, i: number): Hold | null {
    const hold = this.#find(handles, i);
    return hold?.writing && !hold.committing ? hold : null;
  }

  #keep(hold: Hold): void {
    this.#holds.set(hold.slot, hold);
    this.#held++;
  }

  #forget(hold: Hold): void {
    this.#holds.delete(hold.slot);
    this.#held--;
  }

  abort(handles: HandleBatch): void {
    for (let i = 0; i < handles.count; i++) {
      const hold = this.#written(handles, i);
      handles.outcome[i] = hold === null ? BlockOutcome.stale : BlockOutcome.ok;
      if (hold === null) continue;
      this.#forget(hold);
      this.#store.slots.release(hold.slot);
      this.#dropWriter(hold);
    }
  }

  /** The node of a write that came to nothing may vanish. */
  #dropWriter(hold: Hold): void {
    const { table, stats } = this.#store;
    stats.abortedBlocks++;
    table.endWrite(hold.node);
    table.unlock(hold.node);
  }

  acquire(
    batch: AddressBatch,
    options: AcquireOptions,
    out: HandleBatch,
  ): Promise<HandleBatch> | null {
    const { table, found } = this.#store;
    const tiers = options.tiers === 0 ? ALL_TIERS : options.tiers;
    const coming: Coming[] = [];
    let skip = false;
    out.count = batch.count;
    // All at once: the processor then waits for several lines of the index together.
    table.findMany(batch.keys, batch.count, found);
    for (let i = 0; i < batch.count; i++) {
      const node = found[i] as NodeId;
      const outcome: number = skip
        ? BlockOutcome.skipped
        : this.#acquireOne(node, tiers, i, out, coming);
      out.outcome[i] = outcome;
      skip ||= options.stopAtMiss && outcome !== BlockOutcome.ok && outcome !== COMING;
    }
    if (coming.length > 0) {
      return this.#acquireLater(found.slice(0, batch.count), copyHandles(out), coming, options);
    }
    this.#answered(found, out);
    return null;
  }

  /** The block's outcome, or COMING where it has to be brought from SSD first. */
  #acquireOne(node: NodeId, tiers: number, i: number, out: HandleBatch, coming: Coming[]): number {
    const { table, ssd } = this.#store;
    if (node === NO_NODE || table.namespaceOf(node) !== this.#namespace) return BlockOutcome.miss;
    if (table.isResident(node, Tier.ram)) {
      return (tiers & Tier.ram) === 0 ? BlockOutcome.miss : this.#grant(node, i, out);
    }
    const onSsd = ssd?.readable === true && table.isResident(node, Tier.ssd);
    if (!onSsd || (tiers & Tier.ssd) === 0) return BlockOutcome.miss;
    if (this.held >= this.#handlesMax || !table.lock(node)) return BlockOutcome.rejected;
    this.#coming++;
    coming.push({ node, i });
    return COMING;
  }

  /** Hands out a block that is in RAM. */
  #grant(node: NodeId, i: number, out: HandleBatch): number {
    const { table, slots } = this.#store;
    if (this.held >= this.#handlesMax || !table.lock(node)) return BlockOutcome.rejected;
    const slot = table.slotOf(node);
    const generation = table.slotGenerationOf(node);
    const bytes = table.bytesOf(node);
    const offset = slots.offsetOf(slot);
    const hold = this.#holds.get(slot);
    if (hold !== undefined) hold.reads++;
    else {
      const writing = { writing: false, committing: false };
      this.#holds.set(slot, { node, slot, generation, offset, bytes, ...writing, reads: 1 });
    }
    this.#held++;
    out.slot[i] = slot;
    out.generation[i] = generation;
    out.bytes[i] = bytes;
    out.offset[i] = offset;
    const words = new Uint32Array(out.checksum.buffer, out.checksum.byteOffset + i * 8, 2);
    words[0] = table.checksumLoOf(node);
    words[1] = table.checksumHiOf(node);
    return BlockOutcome.ok;
  }

  /** Waits for what comes from SSD as long as the deadline allows; then the rest is late. */
  async #acquireLater(
    nodes: Int32Array,
    out: HandleBatch,
    coming: readonly Coming[],
    options: AcquireOptions,
  ): Promise<HandleBatch> {
    const { readDeadlineMs, table, stats } = this.#store;
    // Only now that all others are held: what makes room for these must not be one of them.
    const blocks = new ComingBlocks(
      this.#store,
      coming.map(({ node }) => node),
    );
    await blocks.wait(Math.min(options.deadlineMs, readDeadlineMs));
    this.#coming -= coming.length;
    try {
      for (const [at, { node, i }] of coming.entries()) {
        const outcome = this.#settle(node, i, blocks.outcomeOf(at), out);
        out.outcome[i] = outcome;
        if (outcome === BlockOutcome.ok) stats.acquireHitsSsd++;
        else blocks.leave(at);
      }
      // Whom this was for has gone: what was granted before is given back with all it held.
      if (!this.#over) {
        if (options.stopAtMiss) this.#skipBehindGap(out);
        this.#answered(nodes, out);
      }
    } finally {
      for (const { node } of coming) table.unlock(node);
    }
    return out;
  }

  /** Undefined: it has not come yet. */
  #settle(node: NodeId, i: number, came: ReadOutcome | undefined, out: HandleBatch): number {
    const { ssd, table } = this.#store;
    if (this.#over) return BlockOutcome.skipped;
    if (came === undefined) {
      ssd?.wasLate();
      return BlockOutcome.late;
    }
    if (came === "full") return BlockOutcome.full;
    if (came === "miss" || !table.isResident(node, Tier.ram)) return BlockOutcome.miss;
    return this.#grant(node, i, out);
  }

  /** What was granted behind the first block that was not is given back. */
  #skipBehindGap(out: HandleBatch): void {
    let gap = 0;
    while (gap < out.count && out.outcome[gap] === BlockOutcome.ok) gap++;
    for (let i = out.count - 1; i > gap; i--) {
      const hold = out.outcome[i] === BlockOutcome.ok ? this.#find(out, i) : null;
      // Whoever guessed the handle may have released it while this answer was waited for.
      if (hold !== null && hold.reads > 0) {
        this.#store.ram.settleFresh(hold.node);
        this.#giveBack(hold);
      }
      out.outcome[i] = BlockOutcome.skipped;
    }
  }

  /** The request is answered: its blocks were used, in its order. */
  #answered(nodes: Int32Array, out: HandleBatch): void {
    const { ram, stats } = this.#store;
    const used: NodeId[] = [];
    for (let i = 0; i < out.count; i++) {
      const outcome = out.outcome[i];
      if (outcome === BlockOutcome.ok) used.push(nodes[i] as NodeId);
      else if (outcome === BlockOutcome.miss) stats.acquireMisses++;
    }
    stats.acquireHits += used.length;
    if (used.length > 0) ram.touch(used, "used");
  }

  #giveBack(hold: Hold): void {
    hold.reads--;
    this.#held--;
    if (hold.reads === 0) this.#holds.delete(hold.slot);
    this.#store.table.unlock(hold.node);
  }

  /** From last to first: parents come back into the order as newer than their children. */
  release(handles: HandleBatch): void {
    for (let i = handles.count - 1; i >= 0; i--) {
      const hold = this.#find(handles, i);
      if (hold === null || hold.reads === 0) {
        handles.outcome[i] = BlockOutcome.stale;
        continue;
      }
      handles.outcome[i] = BlockOutcome.ok;
      this.#giveBack(hold);
    }
  }

  gpuStored(batch: AddressBatch, out: HandleBatch): void {
    const { mirror, table } = this.#store;
    out.count = batch.count;
    for (let i = 0; i < batch.count; i++) {
      const { outcome, node } = mirror.stored(this.#gpu, this.#namespace, batch, i);
      out.outcome[i] = outcome;
      if (node === NO_NODE || (batch.flags[i]! & BlockFlag.aliasGiven) === 0) continue;
      const added = table.addAlias(node, batch.aliasLo[i]!, batch.aliasHi[i]!);
      if (added === "added") this.#store.ssd?.aliased(node);
    }
  }

  gpuEvicted(batch: AddressBatch, out: HandleBatch): void {
    out.count = batch.count;
    for (let i = 0; i < batch.count; i++) {
      out.outcome[i] = this.#store.mirror.evicted(this.#gpu, batch, i);
    }
  }

  sessionCommit(session: bigint, batch: AddressBatch): number {
    const { table, sessions } = this.#store;
    if (session === 0n) return BlockOutcome.rejected;
    const node = this.#visible(batch, 0);
    const below = Tier.ram | Tier.ssd;
    if (node === NO_NODE || (table.residencyOf(node) & below) === 0) return BlockOutcome.miss;
    const outcome = sessions.commit(this.#namespace, session, node);
    return outcome === "ok" ? BlockOutcome.ok : BlockOutcome.rejected;
  }

  sessionRelease(session: bigint): number {
    const outcome = this.#store.sessions.release(this.#namespace, session);
    return outcome === "ok" ? BlockOutcome.ok : BlockOutcome.miss;
  }

  sessionStatus(session: bigint): SessionStatus {
    const state = this.#store.sessions.state(this.#namespace, session);
    if (state === null) return { known: false, blocks: 0, bytes: 0 };
    return { known: true, ...state.ram };
  }

  sessionList(session: bigint, after: number, max: number): SessionPage {
    const { sessions } = this.#store;
    const namespace = this.#namespace;
    if (session === 0n) return sessions.list({ namespace, after, max });
    const found = sessions.find(session).filter((info) => info.namespace === namespace);
    return { sessions: found, next: null };
  }

  alias(batch: AddressBatch, aliases: Uint8Array, sha256: boolean, out: HandleBatch): void {
    const { table } = this.#store;
    const words = new DataView(aliases.buffer, aliases.byteOffset);
    out.count = batch.count;
    for (let i = 0; i < batch.count; i++) {
      const node = this.#visible(batch, i);
      out.outcome[i] = BlockOutcome.miss;
      if (node === NO_NODE) continue;
      const at = i * 32;
      const added = sha256
        ? table.addSha256(node, aliases, at)
        : table.addAlias(node, words.getUint32(at, true), words.getUint32(at + 4, true));
      if (added === "added") this.#store.ssd?.aliased(node);
      out.outcome[i] = added === "full" ? BlockOutcome.rejected : BlockOutcome.ok;
    }
  }

  resolve(hashes: Uint8Array, count: number, layer: number, digests: Uint8Array): void {
    resolveHashes(this.#store.table, this.#namespace, layer, { hashes, count, digests });
  }

  /** The node of block `i` where it is of this namespace. */
  #visible(batch: AddressBatch, i: number): NodeId {
    const { table } = this.#store;
    const node = table.find(batch.keys, i * 8);
    return node !== NO_NODE && table.namespaceOf(node) === this.#namespace ? node : NO_NODE;
  }

  abandon(): void {
    if (this.#over) return;
    this.#over = true;
    const { slots, mirror, stats } = this.#store;
    mirror.closeWindow(this.#gpu);
    for (const hold of [...this.#holds.values()]) {
      // Its bytes are complete: the commit goes its way.
      if (!hold.writing || hold.committing) continue;
      this.#forget(hold);
      slots.quarantine(hold.slot);
      this.#quarantined.push(hold.slot);
      this.#dropWriter(hold);
      stats.quarantinedSlots++;
    }
  }

  buried(): void {
    const { slots, table } = this.#store;
    assert(this.#over, "a holder is abandoned before it is buried");
    for (const slot of this.#quarantined) slots.bury(slot);
    this.#quarantined.length = 0;
    for (const hold of [...this.#holds.values()].reverse()) {
      if (hold.writing) continue;
      for (; hold.reads > 0; hold.reads--) {
        table.unlock(hold.node);
        this.#held--;
      }
      this.#holds.delete(hold.slot);
    }
  }
}

const ALL_TIERS = 15;
/** Not an outcome: it is not known yet. */
const COMING = 0xffff;

/** A block on its way from SSD, for block `i` of a request. */
interface Coming {
  readonly node: NodeId;
  readonly i: number;
}
