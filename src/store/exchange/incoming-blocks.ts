import { assert, type Clock, type NamespaceIndex, NO_NODE, type NodeId } from "../../core/index.ts";
import { MAC_BYTES, nativeBuffer } from "../../native/index.ts";
import { type AddressBatch, hasParent } from "../batches.ts";
import {
  InsertRefusal,
  type InsertResult,
  isRefusal,
  NO_SLOT,
  NodeFlag,
  type TableView,
  Tier,
} from "../blocks/index.ts";
import { insertWithRoom } from "../reservation.ts";
import type { TieredStore } from "../tiered-store.ts";
import {
  type Arrival,
  type Committed,
  faultOfPull,
  type IncomingBlock,
  type PulledBlock,
} from "./peer-blocks.ts";

const NO_MAC = new Uint8Array(MAC_BYTES);
/**
 * Bytes copied per native call when a block moves from a slot that is too long to a shorter one.
 */
const MOVED_AT_ONCE = 2 ** 20;

interface IncomingSlotParts {
  readonly store: TieredStore;
  readonly namespace: NamespaceIndex;
  readonly digest: Uint8Array;
  readonly layer: number;
  readonly bytes: number;
  readonly slot: number;
  readonly awaited: TrackedFetch;
  /** True if the block stays in RAM after the request that fetches it has ended. */
  readonly keep: boolean;
  /** Scratch batch of one block, for table lookups. */
  readonly batch: AddressBatch;
}

const unwanted = (why: string): Committed => ({ kind: "unwanted", why });

/** An arena slot that belongs to no node until the received block has been verified. */
export class IncomingSlot implements IncomingBlock {
  readonly offset: number;
  readonly bytes: number;
  readonly #parts: IncomingSlotParts;
  #slot: number;
  #over = false;

  constructor(parts: IncomingSlotParts) {
    this.#parts = parts;
    this.#slot = parts.slot;
    this.bytes = parts.bytes;
    this.offset = parts.store.slots.offsetOf(parts.slot);
  }

  abandon(): void {
    this.#end();
    this.#letGo();
  }

  commit(block: PulledBlock, arrived: bigint): Committed {
    this.#end();
    try {
      return this.#judge(block, arrived);
    } finally {
      this.#letGo();
    }
  }

  #judge(block: PulledBlock, arrived: bigint): Committed {
    const { store, digest, layer, bytes } = this.#parts;
    const namespace = store.namespaces.keyOf(this.#parts.namespace);
    const fault = faultOfPull(block, arrived, { digest, layer, namespace, bytes });
    const why = fault ?? this.#faultOfMac(block);
    if (why !== null) {
      store.stats.peerCorruptBlocks++;
      return { kind: "corrupt", why };
    }
    const { batch } = this.#parts;
    batch.count = 1;
    batch.layer = layer;
    batch.digests.set(digest);
    batch.parents.fill(0, 0, digest.length);
    if (block.parent !== null) batch.parents.set(block.parent);
    batch.bytes[0] = block.bytes;
    store.deriveKeys(batch, true);
    return this.#enter(block);
  }

  /**
   * Verifies the MAC of the received block on the event loop, because the result of a fetch must be
   * handled within one turn. Takes some 100 µs per MiB. Returns the reason to reject the block, or
   * null.
   */
  #faultOfMac({ digest, layer, bytes, mac }: PulledBlock): string | null {
    const { region, macs } = this.#parts.store;
    const block = () => ({ region, offset: this.offset, bytes, digest, layer });
    return macs.faultOf(this.#parts.namespace, mac ?? NO_MAC, block);
  }

  /** Marks the transfer as over. The peer must not write to the slot any more. */
  #end(): void {
    assert(!this.#over, "an incoming block is finished once");
    this.#over = true;
  }

  #letGo(): void {
    if (this.#slot !== NO_SLOT) this.#giveBack();
    this.#parts.store.incoming.end(this.#parts.awaited);
  }

  #giveBack(): void {
    this.#parts.store.slots.release(this.#slot);
    this.#slot = NO_SLOT;
  }

  /**
   * Inserts the block into the table as resident. If that fails, this object still owns the slot.
   */
  #enter(block: PulledBlock): Committed {
    const { store, namespace, batch } = this.#parts;
    const { table } = store;
    const known = table.find(batch.keys, 0);
    if (known !== NO_NODE && table.namespaceOf(known) !== namespace) {
      return unwanted("its key belongs to another namespace");
    }
    if (known !== NO_NODE && table.isResident(known, Tier.ram)) return this.#arrived(known);
    const why = this.#removedMeanwhile(block) ?? this.#inTheWay(known, block);
    if (why !== null) return unwanted(why);
    if (!this.#hasFittingSlot(block)) return unwanted("no slot fits its length");
    const node = this.#insert();
    if (!isRefusal(node)) return this.#publish(node, block);
    if (node === InsertRefusal.full) return unwanted("the block table is full");
    if (node === InsertRefusal.busy) return unwanted("an engine is writing it");
    // Blame no peer: the conflicting parent link may as well come from an engine of this host.
    return unwanted("its parent link would form a cycle");
  }

  /**
   * Inserts the block. Locks its parent meanwhile, so that making room for the block does not evict
   * the parent.
   */
  #insert(): InsertResult {
    const { store, namespace, batch } = this.#parts;
    const { table } = store;
    const parent = hasParent(batch, 0) ? table.find(batch.parentKeys, 0) : NO_NODE;
    const isOurs = parent !== NO_NODE && table.namespaceOf(parent) === namespace;
    const isLocked = isOurs && table.lock(parent);
    const node = insertWithRoom(store, batch, 0, namespace);
    if (isLocked) table.unlock(parent);
    return node;
  }

  /**
   * Returns the reason to discard the block because of commands that ran during the fetch; null if
   * there is none.
   */
  #removedMeanwhile({ parent, transient }: PulledBlock): string | null {
    const { store, awaited } = this.#parts;
    if (awaited.removed) return "it was removed here during the fetch";
    if (transient && awaited.transientsRemoved)
      return "transient blocks were removed during the fetch";
    if (!store.incoming.mindsPrunes(awaited) || !this.#mayFollow(parent)) return null;
    return "an ancestor was pruned during the fetch";
  }

  /**
   * Returns whether the block may be a descendant of a block below which a command pruned; true if
   * that is unknown.
   */
  #mayFollow(parent: Uint8Array | null): boolean {
    const { store, batch, awaited } = this.#parts;
    const { table, incoming } = store;
    // The peer has the block as a root block too, so it is not a descendant of a pruned block.
    if (parent === null) return false;
    const key = new Uint32Array(8);
    const isAnchor = (name: string) => incoming.isAnchor(name, awaited);
    let node = table.find(batch.parentKeys, 0);
    if (node === NO_NODE) return true;
    for (; node !== NO_NODE; node = table.parentOf(node)) {
      table.readKey(node, key, 0);
      if (table.isGhost(node) || isAnchor(hexOfKey(key, 0))) return true;
      if (table.aliasesOf(node).some((name) => isAnchor(name.toHex()))) return true;
    }
    return false;
  }

  /**
   * Resolves conflicts with an existing table entry of the block. Returns the reason to discard the
   * received block, or null.
   */
  #inTheWay(known: NodeId, { bytes, checksum }: PulledBlock): string | null {
    const { table, ssd } = this.#parts.store;
    if (known === NO_NODE) return null;
    if (table.isWriting(known)) return "an engine is writing it";
    if (ssd === null || !table.isResident(known, Tier.ssd)) return null;
    if (ssd.reader.isReading(known)) return "it is being read from SSD";
    if (table.bytesOf(known) === bytes && table.checksumOf(known) === checksum) return null;
    // Keep the copy on SSD: it is as good as the received one, and if it is pinned it must stay.
    if (ssd.readable || table.isProtected(known, Tier.ssd)) return "it is on SSD";
    ssd.replaced(known);
    return null;
  }

  /**
   * Moves a block that is much shorter than its slot to a slot of its own size class. Returns false
   * if that is not possible.
   */
  #hasFittingSlot({ bytes, checksum }: PulledBlock): boolean {
    const { slots, ram, region } = this.#parts.store;
    if (slots.slotBytesFor(bytes) === slots.slotBytesOf(this.#slot)) return true;
    const slot = ram.takeSlot(bytes, false);
    if (slot === NO_SLOT) return false;
    const [from, to] = [slots.offsetOf(this.#slot), slots.offsetOf(slot)];
    const buffer = nativeBuffer(Math.min(bytes, MOVED_AT_ONCE));
    for (let at = 0; at < bytes; at += MOVED_AT_ONCE) {
      const length = Math.min(MOVED_AT_ONCE, bytes - at);
      region.copyOut(from + at, buffer, length, false);
      region.copyIn(to + at, buffer, length, false);
    }
    this.#giveBack();
    this.#slot = slot;
    return region.checksum(to, bytes) === checksum;
  }

  #publish(node: NodeId, block: PulledBlock): Committed {
    const { store, namespace, layer, keep } = this.#parts;
    const { table, slots, ram, ssd, stats } = store;
    const slot = this.#slot;
    this.#slot = NO_SLOT;
    table.setSlot(node, slot, slots.generationOf(slot));
    slots.setNode(slot, node);
    // Set the flag but never clear it: a command may have set it before. A block that is on SSD was
    // not transient.
    if (block.transient && !table.isResident(node, Tier.ssd))
      table.setFlag(node, NodeFlag.transient, true);
    table.setChecksum(node, Number(block.checksum & 0xffff_ffffn), Number(block.checksum >> 32n));
    table.setMac(node, block.mac ?? NO_MAC);
    slots.publish(slot);
    table.addResidency(node, Tier.ram);
    ram.promoted(node);
    this.#name(node, block.aliases);
    const committed = this.#arrived(node);
    table.endWrite(node);
    stats.pulledBlocks++;
    stats.pulledBytes += block.bytes;
    store.arrivals.came(namespace, layer, block.bytes);
    if (keep) ssd?.committed(node);
    else ram.passes(node);
    return committed;
  }

  #name(node: NodeId, aliases: readonly Uint8Array[]): void {
    const { table, ssd } = this.#parts.store;
    let isNew = false;
    for (const name of aliases) {
      const added = table.addName(node, name);
      isNew ||= added === "added";
    }
    if (isNew) ssd?.aliased(node);
  }

  #arrived(node: NodeId): Committed {
    const { table, ram } = this.#parts.store;
    if (!table.lock(node)) return unwanted("its lock count is at the maximum");
    let isOver = false;
    const arrival: Arrival = {
      node,
      release() {
        if (isOver) return;
        isOver = true;
        // Has no effect if a request was answered with the block: it is in the eviction order
        // already.
        ram.settleFresh(node);
        table.unlock(node);
        ram.letGo(node);
      },
    };
    return { kind: "ok", arrival };
  }
}

/** Maximum number of `prune` commands whose root block is tracked individually. */
const ANCHORS_MAX = 4_096;

/** Returns the `BlockKey` of the eight words from `words[at]`, in hex. */
export function hexOfKey(words: Uint32Array, at: number): string {
  return new Uint8Array(words.buffer, words.byteOffset + at * 4, 32).toHex();
}

/** Returns an engine hash in hex, in little-endian order as in the table. */
export function hexOfHash(lo: number, hi: number): string {
  return new Uint8Array(new Uint32Array([lo, hi]).buffer).toHex();
}

/** A block being fetched, and what commands removed during the fetch. */
interface TrackedFetch {
  readonly key: string;
  readonly namespace: NamespaceIndex;
  readonly slotBytes: number;
  /** True if a command removed the block, or would have removed it if it were resident. */
  removed: boolean;
  /** True if a command removed all transient blocks during the fetch. */
  transientsRemoved: boolean;
  /**
   * A `prune` counts for this block if its number is greater than `anchorsBefore`, or if it ran
   * later than `anchorsSinceMs` (monotonic ms).
   */
  readonly anchorsBefore: number;
  readonly anchorsSinceMs: number;
}

/** Sequence number and time (monotonic ms) of a `prune` command. */
interface Pruned {
  readonly number: number;
  readonly ms: number;
}

const NEVER: Pruned = { number: 0, ms: Number.NEGATIVE_INFINITY };

/**
 * Tracks blocks that are being fetched from peers, so that a block that a command removed during
 * its fetch, or shortly before, does not return. Peers may still offer a block that they have yet
 * to remove. Commands report every removal here, also of blocks that are not resident. Does nothing
 * if there are no peers.
 */
export class IncomingBlocks {
  readonly #clock: Clock;
  readonly #byKey = new Map<string, TrackedFetch[]>();
  readonly #lately: RecentRemovals;
  /**
   * The latest `prune` by key and alias, in hex, of the block below which it removed; the oldest
   * first.
   */
  readonly #anchors = new Map<string, Pruned>();
  #pruned = NEVER;
  /** The latest `prune` that was dropped from `#anchors` because there were too many. */
  #lost = NEVER;
  #remembers = false;
  /** Bytes of the slots that are reserved for blocks being received. */
  slotBytes = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
    this.#lately = new RecentRemovals(clock);
  }

  get areNone(): boolean {
    return this.#byKey.size === 0;
  }

  /** True if removals by commands must be reported here. */
  get minds(): boolean {
    return this.#remembers || !this.areNone;
  }

  /**
   * True if removals are remembered for a while even if no fetch is in progress. Set if there are
   * peers.
   */
  set remembers(remembers: boolean) {
    this.#remembers = remembers;
    if (!remembers) this.#lately.clear();
  }

  /** Returns whether a command removed the block so recently that peers may still have it. */
  wasRemoved(key: string): boolean {
    return this.#remembers && this.#lately.has(key);
  }

  begin(key: string, namespace: NamespaceIndex, slotBytes: number): TrackedFetch {
    const awaited: TrackedFetch = {
      key,
      namespace,
      slotBytes,
      removed: false,
      transientsRemoved: this.#remembers && this.#lately.transients,
      anchorsBefore: this.#pruned.number,
      anchorsSinceMs: this.#rememberedSince(),
    };
    const others = this.#byKey.get(key);
    if (others === undefined) this.#byKey.set(key, [awaited]);
    else others.push(awaited);
    this.slotBytes += slotBytes;
    return awaited;
  }

  end(awaited: TrackedFetch): void {
    const left = this.#byKey.get(awaited.key)!.filter((other) => other !== awaited);
    if (left.length > 0) this.#byKey.set(awaited.key, left);
    else this.#byKey.delete(awaited.key);
    this.slotBytes -= awaited.slotBytes;
    if (this.areNone) this.#forgetAnchors();
  }

  /** Reports that a command removed the block whose key begins at `words[at]`, resident or not. */
  removed(words: Uint32Array, at: number): void {
    if (!this.minds) return;
    const key = hexOfKey(words, at);
    if (this.#remembers) this.#lately.add(key);
    for (const awaited of this.#byKey.get(key) ?? []) awaited.removed = true;
  }

  /** Reports that a command removed a resident block. */
  removedNode(table: TableView, node: NodeId): void {
    if (this.minds) this.removed(keyOf(table, node), 0);
  }

  /** Reports that a command removed all blocks. */
  allRemoved(): void {
    if (this.#remembers) this.#lately.addEverything();
    for (const awaited of this.#all()) awaited.removed = true;
  }

  /** Reports that a command removed all transient blocks. */
  transientsRemoved(): void {
    if (this.#remembers) this.#lately.addTransients();
    for (const awaited of this.#all()) awaited.transientsRemoved = true;
  }

  /**
   * Reports that an engine of this host wrote the block, so that an earlier removal no longer
   * counts.
   */
  written(table: TableView, node: NodeId): void {
    if (!this.#lately.hasNoKeys) this.#lately.delete(hexOfKey(keyOf(table, node), 0));
  }

  /**
   * Reports that a command removed all descendants of the blocks with this key or alias (hex),
   * whether or not they are resident.
   */
  prunedBelow(name: string): void {
    if (!this.minds) return;
    if (this.#anchors.size >= ANCHORS_MAX && !this.#anchors.has(name)) this.#forgetAnchors();
    this.#pruned = { number: this.#pruned.number + 1, ms: this.#clock.monotonicMs() };
    this.#anchors.delete(name);
    this.#anchors.set(name, this.#pruned);
    if (this.#anchors.size <= ANCHORS_MAX) return;
    this.#anchors.clear();
    this.#lost = this.#pruned;
    if (this.#remembers) this.#lately.addEverything();
  }

  /** Returns whether any `prune` may count for the block being fetched. */
  mindsPrunes(awaited: TrackedFetch): boolean {
    return counts(this.#pruned, awaited);
  }

  /**
   * Returns whether a `prune` below the block with this key or alias (hex) counts for the block
   * being fetched; true if that is unknown.
   */
  isAnchor(name: string, awaited: TrackedFetch): boolean {
    return counts(this.#lost, awaited) || counts(this.#anchors.get(name) ?? NEVER, awaited);
  }

  #rememberedSince(): number {
    const isOn = this.#remembers;
    return isOn ? this.#clock.monotonicMs() - REMEMBERED_MS : Number.POSITIVE_INFINITY;
  }

  /** Forgets `prune` commands that count for no current or future fetch. */
  #forgetAnchors(): void {
    let before = this.#pruned.number;
    let sinceMs = this.#rememberedSince();
    for (const { anchorsBefore, anchorsSinceMs } of this.#all()) {
      before = Math.min(before, anchorsBefore);
      sinceMs = Math.min(sinceMs, anchorsSinceMs);
    }
    for (const [name, { number, ms }] of this.#anchors) {
      if (number > before || ms > sinceMs) return;
      this.#anchors.delete(name);
    }
  }

  #all(): TrackedFetch[] {
    return [...this.#byKey.values()].flat();
  }
}

function counts({ number, ms }: Pruned, awaited: TrackedFetch): boolean {
  return number > awaited.anchorsBefore || ms > awaited.anchorsSinceMs;
}

function keyOf(table: TableView, node: NodeId): Uint32Array {
  const key = new Uint32Array(8);
  table.readKey(node, key, 0);
  return key;
}

/** Milliseconds after which all peers are expected to have carried out a broadcast removal. */
const REMEMBERED_MS = 30_000;
/** Maximum number of removed keys tracked individually. Each takes some hundred bytes. */
const KEYS_MAX = 65_536;

/**
 * Blocks that commands removed in the last 30 seconds, whether or not they were resident. Peers
 * that have not carried out the same command yet may still offer them. If there are too many keys
 * to track, every block counts as removed for 30 seconds, because a needless miss is allowed but
 * the return of a removed block is not.
 */
class RecentRemovals {
  readonly #clock: Clock;
  /** Expiry (monotonic ms) by `BlockKey` in hex, the oldest first. */
  readonly #keys = new Map<string, number>();
  /**
   * Time (monotonic ms) before which no key expires. Saves looking up the first key, which is not
   * always cheap.
   */
  #nextUntil = Number.NEGATIVE_INFINITY;
  #everythingUntil = Number.NEGATIVE_INFINITY;
  #transientsUntil = Number.NEGATIVE_INFINITY;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** True if no single block is tracked. */
  get hasNoKeys(): boolean {
    return this.#keys.size === 0;
  }

  get transients(): boolean {
    return this.#clock.monotonicMs() < this.#transientsUntil;
  }

  add(key: string): void {
    this.#forget();
    this.#keys.delete(key);
    this.#keys.set(key, this.#later());
    if (this.#keys.size > KEYS_MAX) this.addEverything();
  }

  addEverything(): void {
    this.#keys.clear();
    this.#everythingUntil = this.#later();
  }

  addTransients(): void {
    this.#transientsUntil = this.#later();
  }

  has(key: string): boolean {
    this.#forget();
    return this.#clock.monotonicMs() < this.#everythingUntil || this.#keys.has(key);
  }

  /** Stops tracking a block. Call when an engine of this host has written it again. */
  delete(key: string): void {
    this.#keys.delete(key);
  }

  clear(): void {
    this.#keys.clear();
    this.#everythingUntil = Number.NEGATIVE_INFINITY;
    this.#transientsUntil = Number.NEGATIVE_INFINITY;
  }

  #later(): number {
    return this.#clock.monotonicMs() + REMEMBERED_MS;
  }

  #forget(): void {
    const now = this.#clock.monotonicMs();
    if (now < this.#nextUntil) return;
    this.#nextUntil = this.#later();
    for (const [key, until] of this.#keys) {
      if (now < until) {
        this.#nextUntil = until;
        return;
      }
      this.#keys.delete(key);
    }
  }
}
