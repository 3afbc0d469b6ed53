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
  type Landing,
  type PulledBlock,
} from "./peer-blocks.ts";

const NO_MAC = new Uint8Array(MAC_BYTES);
/** Bytes moved at once from a place that is too long. */
const MOVED_AT_ONCE = 2 ** 20;

export interface LandingParts {
  readonly store: TieredStore;
  readonly namespace: NamespaceIndex;
  readonly digest: Uint8Array;
  readonly layer: number;
  readonly bytes: number;
  readonly slot: number;
  readonly awaited: Awaited;
  /** Whether it stays in RAM behind the request that wants it. */
  readonly keep: boolean;
  /** One block, for looking it up. */
  readonly batch: AddressBatch;
}

const unwanted = (why: string): Committed => ({ kind: "unwanted", why });

/** A place in RAM that no node has until the block lies there, whole and right. */
export class SlotLanding implements Landing {
  readonly offset: number;
  readonly bytes: number;
  readonly #parts: LandingParts;
  #slot: number;
  #over = false;

  constructor(parts: LandingParts) {
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

  /** On the event loop: a pull's answer is one turn, and a MiB takes some 100 µs. */
  #faultOfMac({ digest, layer, bytes, mac }: PulledBlock): string | null {
    const { region, macs } = this.#parts.store;
    const block = () => ({ region, offset: this.offset, bytes, digest, layer });
    return macs.faultOf(this.#parts.namespace, mac ?? NO_MAC, block);
  }

  /** Nothing writes to the place any more. */
  #end(): void {
    assert(!this.#over, "a landing ends once");
    this.#over = true;
  }

  #letGo(): void {
    if (this.#slot !== NO_SLOT) this.#giveBack();
    this.#parts.store.landings.end(this.#parts.awaited);
  }

  #giveBack(): void {
    this.#parts.store.slots.release(this.#slot);
    this.#slot = NO_SLOT;
  }

  /** Makes the block a resident one; where it does not, the slot is still this landing's. */
  #enter(block: PulledBlock): Committed {
    const { store, namespace, batch } = this.#parts;
    const { table } = store;
    const known = table.find(batch.keys, 0);
    if (known !== NO_NODE && table.namespaceOf(known) !== namespace) {
      return unwanted("its name is taken");
    }
    if (known !== NO_NODE && table.isResident(known, Tier.ram)) return this.#arrived(known);
    const why = this.#removedMeanwhile(block) ?? this.#inTheWay(known, block);
    if (why !== null) return unwanted(why);
    if (!this.#hasFittingSlot(block)) return unwanted("there is no room for one of its length");
    const node = this.#insert();
    if (!isRefusal(node)) return this.#publish(node, block);
    if (node === InsertRefusal.full) return unwanted("the table has no entry for it");
    if (node === InsertRefusal.busy) return unwanted("an engine writes it now");
    // It may as well be that an engine here named something else by that name.
    return unwanted("what it names as its parent cannot be that here");
  }

  /** What makes room for it must not be its own parent. */
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

  /** Why what commands did while it was on its way forbids that it comes; null: nothing did. */
  #removedMeanwhile({ parent, transient }: PulledBlock): string | null {
    const { store, awaited } = this.#parts;
    if (awaited.removed) return "it was removed here meanwhile";
    if (transient && awaited.transientsRemoved) return "transient blocks were removed meanwhile";
    if (!store.landings.mindsPrunes(awaited) || !this.#mayFollow(parent)) return null;
    return "what it follows was pruned meanwhile";
  }

  /** Whether it follows what was pruned below, as far as can be told: true where it cannot. */
  #mayFollow(parent: Uint8Array | null): boolean {
    const { store, batch, awaited } = this.#parts;
    const { table, landings } = store;
    // To its holder, too, it follows nothing: a prune there does not mean it.
    if (parent === null) return false;
    const key = new Uint32Array(8);
    const isAnchor = (name: string) => landings.isAnchor(name, awaited);
    let node = table.find(batch.parentKeys, 0);
    if (node === NO_NODE) return true;
    for (; node !== NO_NODE; node = table.parentOf(node)) {
      table.readKey(node, key, 0);
      if (table.isGhost(node) || isAnchor(hexOfKey(key, 0))) return true;
      if (table.aliasesOf(node).some((name) => isAnchor(name.toHex()))) return true;
    }
    return false;
  }

  /** Why what is here of the block forbids that it comes to RAM; null: nothing does, any more. */
  #inTheWay(known: NodeId, { bytes, checksum }: PulledBlock): string | null {
    const { table, ssd } = this.#parts.store;
    if (known === NO_NODE) return null;
    if (table.isWriting(known)) return "an engine writes it now";
    if (ssd === null || !table.isResident(known, Tier.ssd)) return null;
    if (ssd.reader.isReading(known)) return "it is being read from SSD";
    const sum = (BigInt(table.checksumHiOf(known)) << 32n) | BigInt(table.checksumLoOf(known));
    if (table.bytesOf(known) === bytes && sum === checksum) return null;
    // Ours is as good as theirs, and what is kept there has to stay.
    if (ssd.readable || table.isProtected(known, Tier.ssd)) return "SSD has it";
    ssd.replaced(known);
    return null;
  }

  /** A block that is much shorter than its place moves to one of its own size. */
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
    // What somebody marked before it came here stays marked; what is on SSD was never transient.
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
    store.seen.came(namespace, layer, block.bytes);
    if (keep) ssd?.committed(node);
    else ram.passes(node);
    return committed;
  }

  #name(node: NodeId, aliases: readonly Uint8Array[]): void {
    const { table, ssd } = this.#parts.store;
    let isNew = false;
    for (const name of aliases) {
      const view = new DataView(name.buffer, name.byteOffset, name.length);
      const added =
        name.length === 8
          ? table.addAlias(node, view.getUint32(0, true), view.getUint32(4, true))
          : table.addSha256(node, name, 0);
      isNew ||= added === "added";
    }
    if (isNew) ssd?.aliased(node);
  }

  #arrived(node: NodeId): Committed {
    const { table, ram } = this.#parts.store;
    if (!table.lock(node)) return unwanted("it is locked as often as can be");
    let isOver = false;
    const arrival: Arrival = {
      node,
      release() {
        if (isOver) return;
        isOver = true;
        // The order knows it already where a request was answered with it.
        ram.settleFresh(node);
        table.unlock(node);
        ram.letGo(node);
      },
    };
    return { kind: "ok", arrival };
  }
}

/** Blocks below which something was pruned, as many as are told apart. */
const ANCHORS_MAX = 4_096;

/** `BlockKey` in hex, from its eight words at `words[at]`. */
export function hexOfKey(words: Uint32Array, at: number): string {
  return new Uint8Array(words.buffer, words.byteOffset + at * 4, 32).toHex();
}

/** The name by an engine's hash, in hex, as the table tells it: little-endian. */
export function hexOfHash(lo: number, hi: number): string {
  return new Uint8Array(new Uint32Array([lo, hi]).buffer).toHex();
}

/** A block that is on its way here, and what commands did meanwhile. */
interface Awaited {
  readonly key: string;
  readonly namespace: NamespaceIndex;
  readonly slotBytes: number;
  /** It was removed here, or would have been. */
  removed: boolean;
  /** Blocks that are transient were. */
  transientsRemoved: boolean;
  /** What was pruned after so many prunes, or later than this (monotonic ms), counts for it. */
  readonly anchorsBefore: number;
  readonly anchorsSinceMs: number;
}

/** When something was pruned: how many prunes there were by then, and in monotonic ms. */
interface Pruned {
  readonly number: number;
  readonly ms: number;
}

const NEVER: Pruned = { number: 0, ms: Number.NEGATIVE_INFINITY };

/**
 * What is on its way from other hosts, so that nothing comes back that was removed while it was on
 * its way, nor what was removed so lately that other hosts may have yet to remove it. Commands say
 * what they remove, also where it is not here. Costs nothing without other hosts.
 */
export class Landings {
  readonly #clock: Clock;
  readonly #byKey = new Map<string, Awaited[]>();
  readonly #lately: RemovedLately;
  /** Keys and names of blocks below which all was pruned, in hex; the first is the oldest. */
  readonly #anchors = new Map<string, Pruned>();
  #pruned = NEVER;
  /** The last of those that are not told apart any more. */
  #lost = NEVER;
  #remembers = false;
  /** Bytes of the places that wait. */
  slotBytes = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
    this.#lately = new RemovedLately(clock);
  }

  get areNone(): boolean {
    return this.#byKey.size === 0;
  }

  /** Whether it matters to anything what commands remove. */
  get minds(): boolean {
    return this.#remembers || !this.areNone;
  }

  /** Whether what was removed is remembered beyond what is on its way: there are other hosts. */
  set remembers(remembers: boolean) {
    this.#remembers = remembers;
    if (!remembers) this.#lately.clear();
  }

  /** Whether the block was removed here so lately that other hosts may still have it wrongly. */
  wasRemoved(key: string): boolean {
    return this.#remembers && this.#lately.has(key);
  }

  begin(key: string, namespace: NamespaceIndex, slotBytes: number): Awaited {
    const awaited: Awaited = {
      ...{ key, namespace, slotBytes, removed: false },
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

  end(awaited: Awaited): void {
    const left = this.#byKey.get(awaited.key)!.filter((other) => other !== awaited);
    if (left.length > 0) this.#byKey.set(awaited.key, left);
    else this.#byKey.delete(awaited.key);
    this.slotBytes -= awaited.slotBytes;
    if (this.areNone) this.#forgetAnchors();
  }

  /** The block whose key's words start at `words[at]` is removed, wherever it is. */
  removed(words: Uint32Array, at: number): void {
    if (!this.minds) return;
    const key = hexOfKey(words, at);
    if (this.#remembers) this.#lately.add(key);
    for (const awaited of this.#byKey.get(key) ?? []) awaited.removed = true;
  }

  /** The same of a block that is here. */
  removedNode(table: TableView, node: NodeId): void {
    if (this.minds) this.removed(keyOf(table, node), 0);
  }

  /** Everything is. */
  allRemoved(): void {
    if (this.#remembers) this.#lately.addEverything();
    for (const awaited of this.#all()) awaited.removed = true;
  }

  /** Blocks that are transient are, under whatever name. */
  transientsRemoved(): void {
    if (this.#remembers) this.#lately.addTransients();
    for (const awaited of this.#all()) awaited.transientsRemoved = true;
  }

  /** An engine of this host wrote the block: it may have been removed before, and is new. */
  written(table: TableView, node: NodeId): void {
    if (!this.#lately.hasNoKeys) this.#lately.delete(hexOfKey(keyOf(table, node), 0));
  }

  /** All that follows blocks with this key or other name (hex) is, be they here or not. */
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

  /** Whether anything was pruned that it may follow. */
  mindsPrunes(awaited: Awaited): boolean {
    return counts(this.#pruned, awaited);
  }

  /** Whether all that follows a block with this key or name (hex) was, or that cannot be told. */
  isAnchor(name: string, awaited: Awaited): boolean {
    return counts(this.#lost, awaited) || counts(this.#anchors.get(name) ?? NEVER, awaited);
  }

  #rememberedSince(): number {
    const isOn = this.#remembers;
    return isOn ? this.#clock.monotonicMs() - REMEMBERED_MS : Number.POSITIVE_INFINITY;
  }

  /** Those that count for nothing that is on its way or may set out. */
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

  #all(): Awaited[] {
    return [...this.#byKey.values()].flat();
  }
}

function counts({ number, ms }: Pruned, awaited: Awaited): boolean {
  return number > awaited.anchorsBefore || ms > awaited.anchorsSinceMs;
}

function keyOf(table: TableView, node: NodeId): Uint32Array {
  const key = new Uint32Array(8);
  table.readKey(node, key, 0);
  return key;
}

/** So long other hosts may take to carry out what was told to all of them. */
const REMEMBERED_MS = 30_000;
/** Blocks told apart; each costs some hundred bytes. */
const KEYS_MAX = 65_536;

/**
 * What commands removed here in the last 30 seconds, wherever it was: hosts that have yet to do the
 * same may still offer it. Of more than can be told apart nothing is forgotten: for 30 seconds all
 * counts as removed, since a miss is legal and a block that comes back is not.
 */
class RemovedLately {
  readonly #clock: Clock;
  /** Until when, by `BlockKey` in hex; the first is the oldest. */
  readonly #keys = new Map<string, number>();
  /** Before this no key has to be forgotten: looking for the first one is not always cheap. */
  #nextUntil = Number.NEGATIVE_INFINITY;
  #everythingUntil = Number.NEGATIVE_INFINITY;
  #transientsUntil = Number.NEGATIVE_INFINITY;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Nothing was, as far as single blocks go. */
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

  /** An engine of this host wrote it anew. */
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
