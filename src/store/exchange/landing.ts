import { assert, type NamespaceIndex, NO_NODE, type NodeId } from "../../core/index.ts";
import { MAC_BYTES, nativeBuffer } from "../../native/index.ts";
import { type AddressBatch, hasParent } from "../batches.ts";
import {
  InsertRefusal,
  type InsertResult,
  isRefusal,
  NO_SLOT,
  NodeFlag,
  Tier,
} from "../blocks/index.ts";
import { insertWithRoom } from "../reservation.ts";
import type { TieredStore } from "../tiered-store.ts";
import { type Awaited, hexOfKey } from "./landings.ts";
import type { Arrival, Committed, Landing, PulledBlock } from "./peer-blocks.ts";
import { faultOfPull } from "./pulled-block.ts";

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
