import {
  assert,
  DIGEST_BYTES,
  type NamespaceIndex,
  NO_NODE,
  type NodeId,
} from "../../core/index.ts";
import { type AddressBatch, createAddressBatch } from "../batches.ts";
import { NO_SLOT, Tier } from "../blocks/index.ts";
import { Slices } from "../lifecycle/context.ts";
import type { TieredStore } from "../tiered-store.ts";
import { hexOfKey, IncomingSlot } from "./incoming-blocks.ts";
import type {
  BlockCopies,
  FoundBlock,
  IncomingBlock,
  Lent,
  PeerBlocks,
  SlotRefusal,
} from "./peer-blocks.ts";
import { BlockServing, heldCopy } from "./serving.ts";

/** Share of the arena that may be reserved for blocks from peers. The rest is for local writers. */
const LANDING_SHARE = 0.5;
/** Blocks looked up at once. */
const AT_ONCE = 256;
/** Maximum number of nodes per alias. */
const NODES_A_NAME = 64;
/** Table entries visited at once. */
const IDS_AT_ONCE = 4_096;
const OURS = Tier.ram | Tier.ssd;

/** A block that is being computed; see `BlockCopies`. */
const COMING: BlockCopies = Object.freeze({ tiers: 0, bytes: 0, generation: 1n, checksum: 0n });

export class StorePeerBlocks implements PeerBlocks {
  readonly #store: TieredStore;
  readonly #lending: BlockServing;
  readonly #batch: AddressBatch = createAddressBatch(1);
  readonly #many: AddressBatch = createAddressBatch(AT_ONCE);
  readonly #named = new Int32Array(NODES_A_NAME);

  constructor(store: TieredStore) {
    this.#store = store;
    this.#lending = new BlockServing(store);
  }

  land(
    namespace: NamespaceIndex,
    digest: Uint8Array,
    layer: number,
    bytes: number,
    keep = true,
  ): IncomingBlock | SlotRefusal {
    const { table, slots, ram, ssd, incoming, evictor, blockBytesMax } = this.#store;
    if (!(bytes >= 1 && bytes <= blockBytesMax)) return "tooLong";
    const batch = this.#batch;
    const node = this.#find(digest, layer);
    if (node !== NO_NODE) {
      // A client must not be able to distinguish a block of another namespace from a lack of room.
      if (table.namespaceOf(node) !== namespace) return "full";
      if (table.isResident(node, Tier.ram)) return "present";
      if (ssd?.readable === true && table.isResident(node, Tier.ssd)) return "present";
    }
    const key = hexOfKey(batch.keys, 0);
    if (incoming.wasRemoved(key)) return "removed";
    const slotBytes = slots.slotBytesFor(bytes);
    const most = slots.readyBytes * LANDING_SHARE;
    if (incoming.slotBytes > 0 && incoming.slotBytes + slotBytes > most) return "full";
    const slot = ram.takeSlot(bytes, false);
    evictor.wake();
    if (slot === NO_SLOT) return "full";
    const awaited = incoming.begin(key, namespace, slotBytes);
    const asked = { digest: digest.slice(), layer: layer >>> 0, bytes };
    const store = this.#store;
    return new IncomingSlot({ store, namespace, ...asked, slot, awaited, keep, batch });
  }

  /** The block's node in any namespace. */
  #find(digest: Uint8Array, layer: number): NodeId {
    assert(digest.length === DIGEST_BYTES, "a digest has 32 bytes");
    const batch = this.#batch;
    batch.count = 1;
    batch.layer = layer >>> 0;
    batch.digests.set(digest);
    this.#store.deriveKeys(batch, false);
    return this.#store.table.find(batch.keys, 0);
  }

  lend(
    namespace: NamespaceIndex,
    digest: Uint8Array,
    layer: number,
    options: { readonly deadlineMs: number; readonly warm: boolean },
  ): Lent | Promise<Lent> {
    const node = this.#find(digest, layer);
    if (node === NO_NODE || this.#store.table.namespaceOf(node) !== namespace) return "absent";
    return this.#lending.lend(node, options);
  }

  has(
    namespace: NamespaceIndex,
    blocks: readonly { digest: Uint8Array; layer: number }[],
  ): BlockCopies[] {
    const { table } = this.#store;
    const batch = this.#many;
    const copies: BlockCopies[] = [];
    while (copies.length < blocks.length) {
      const from = copies.length;
      batch.layer = blocks[from]!.layer >>> 0;
      batch.count = 0;
      for (let i = from; i < blocks.length && batch.count < AT_ONCE; i++) {
        const { digest, layer } = blocks[i]!;
        if (layer >>> 0 !== batch.layer) break;
        assert(digest.length === DIGEST_BYTES, "a digest has 32 bytes");
        batch.digests.set(digest, batch.count++ * DIGEST_BYTES);
      }
      this.#store.deriveKeys(batch, false);
      for (let i = 0; i < batch.count; i++) {
        const node = table.find(batch.keys, i * 8);
        const isOurs = node !== NO_NODE && table.namespaceOf(node) === namespace;
        const copy = heldCopy(this.#store, isOurs ? node : NO_NODE);
        copies.push(copy.tiers === 0 && this.#isComing(isOurs ? node : NO_NODE, i) ? COMING : copy);
      }
    }
    return copies;
  }

  /** Whether block `i` of the current batch is being written or was announced. */
  #isComing(node: NodeId, i: number): boolean {
    const { table, engines } = this.#store;
    const isWriting = node !== NO_NODE && table.isWriting(node);
    return isWriting || engines.announcements.has(this.#many.keys, i);
  }

  find(
    name: Uint8Array,
    max: number,
    isVisible: (namespace: Uint8Array) => boolean = () => true,
  ): FoundBlock[] {
    const { table, namespaces } = this.#store;
    const found: FoundBlock[] = [];
    const count = this.#nodesOf(name);
    for (let i = 0; i < count && found.length < max; i++) {
      const node = this.#named[i] as NodeId;
      const namespace = namespaces.keyOf(table.namespaceOf(node));
      const copy = heldCopy(this.#store, node);
      if (copy.tiers === 0 || namespace === null || !isVisible(namespace)) continue;
      const digest = new Uint8Array(DIGEST_BYTES);
      table.readDigest(node, digest, 0);
      found.push({ ...copy, namespace, digest, layer: table.layerOf(node) });
    }
    return found;
  }

  #nodesOf(name: Uint8Array): number {
    const { table } = this.#store;
    if (name.length === 32) return table.nodesOfSha256(name, 0, this.#named);
    if (name.length !== 8) return 0;
    const view = new DataView(name.buffer, name.byteOffset, name.length);
    return table.nodesOfAlias(view.getUint32(0, true), view.getUint32(4, true), this.#named);
  }

  async eachKey(
    namespace: NamespaceIndex,
    each: (key: Uint8Array) => void,
    signal: AbortSignal,
  ): Promise<void> {
    const { table, clock } = this.#store;
    const slices = new Slices(clock);
    const words = new Uint32Array(8);
    const key = new Uint8Array(words.buffer);
    for (let from = 0; from <= table.nodesMax; from += IDS_AT_ONCE) {
      const next = (node: number) => table.nextOn(node as NodeId, OURS, from + IDS_AT_ONCE);
      for (let node = next(Math.max(0, from - 1)); node !== NO_NODE; node = next(node)) {
        if (signal.aborted) return;
        if (table.namespaceOf(node) === namespace) {
          table.readKey(node, words, 0);
          each(key);
        }
        if (slices.isOver()) await slices.turn();
      }
      if (slices.isOver()) await slices.turn();
    }
  }

  changesOf(namespace: NamespaceIndex): number {
    return this.#store.arrivals.changesOf(namespace);
  }

  usualBytes(namespace: NamespaceIndex, layer: number): number {
    return this.#store.arrivals.bytesOf(namespace, layer);
  }
}

/**
 * Maximum number of pairs of namespace and layer with a known length. The first seen is forgotten.
 */
const LENGTHS_MAX = 16_384;

/** Arrivals per namespace on this host: number of blocks, and length of blocks per layer. */
export class ArrivalStats {
  readonly #changes: number[] = [];
  readonly #lengths = new Map<number, number>();

  came(namespace: NamespaceIndex, layer: number, bytes: number): void {
    this.#changes[namespace] = this.changesOf(namespace) + 1;
    this.learn(namespace, layer, bytes);
  }

  /** Records the length of a block of this namespace and layer. */
  learn(namespace: NamespaceIndex, layer: number, bytes: number): void {
    const pair = pairOf(namespace, layer);
    if (this.#lengths.get(pair) === bytes) return;
    if (this.#lengths.size === LENGTHS_MAX && !this.#lengths.has(pair)) {
      this.#lengths.delete(this.#lengths.keys().next().value!);
    }
    this.#lengths.set(pair, bytes);
  }

  /** Number of blocks of the namespace that have arrived. */
  changesOf(namespace: NamespaceIndex): number {
    return this.#changes[namespace] ?? 0;
  }

  /** Length of the latest block of this namespace and layer; 0 if none was seen. */
  bytesOf(namespace: NamespaceIndex, layer: number): number {
    return this.#lengths.get(pairOf(namespace, layer)) ?? 0;
  }
}

/** Unique key below 2^48. */
function pairOf(namespace: NamespaceIndex, layer: number): number {
  return namespace * 2 ** 32 + (layer >>> 0);
}
