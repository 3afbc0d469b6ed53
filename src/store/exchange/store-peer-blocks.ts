import {
  assert,
  DIGEST_BYTES,
  type NamespaceIndex,
  NO_NODE,
  type NodeId,
} from "../../core/index.ts";
import { type AddressBatch, createAddressBatch } from "../batches.ts";
import { NO_SLOT, NodeFlag, type TableView, Tier } from "../blocks/index.ts";
import { Slices } from "../lifecycle/context.ts";
import { HashBudget } from "../ram-check.ts";
import type { TieredStore } from "../tiered-store.ts";
import { hexOfKey, IncomingSlot } from "./incoming-blocks.ts";
import {
  type BlockCopies,
  type FoundBlock,
  type IncomingBlock,
  type Lent,
  type Loan,
  NAMES_MAX,
  type SlotRefusal,
} from "./peer-blocks.ts";

/**
 * Share of the arena, 0 to 1, that may be reserved for blocks being received from peers. The rest
 * is for local engines.
 */
const LANDING_SHARE = 0.5;
/** Number of blocks whose keys are derived in one native call. */
const AT_ONCE = 256;
/** Maximum number of nodes per alias that are considered. */
const NODES_A_NAME = 64;
/** Block table entries visited before the event loop is yielded to. */
const IDS_AT_ONCE = 4_096;
const OURS = Tier.ram | Tier.ssd;

const NOTHING: BlockCopies = Object.freeze({ tiers: 0, bytes: 0, generation: 0n, checksum: 0n });

interface ServeOptions {
  readonly deadlineMs: number;
  readonly warm: boolean;
}

/** Returns the copies of the block that a peer can read now. */
function heldCopy({ table, ssd }: TieredStore, node: NodeId): BlockCopies {
  if (node === NO_NODE) return NOTHING;
  const readable = ssd?.readable === true ? Tier.ram | Tier.ssd : Tier.ram;
  const tiers = table.residencyOf(node) & readable;
  if (tiers === 0) return NOTHING;
  // A block that is only on SSD gets a slot, and with it a generation, when it is read for the
  // peer.
  const generation = (tiers & Tier.ram) === 0 ? 0n : generationOf(table, node);
  return { tiers, bytes: table.bytesOf(node), generation, checksum: table.checksumOf(node) };
}

/**
 * Returns the generation of the copy in RAM, which is never 0. No two copies have the same
 * generation.
 */
function generationOf(table: TableView, node: NodeId): bigint {
  return (BigInt(table.slotOf(node)) << 32n) | BigInt(table.slotGenerationOf(node) >>> 0);
}

/** State of a block that is being computed; see `BlockCopies`. */
const COMING: BlockCopies = Object.freeze({ tiers: 0, bytes: 0, generation: 1n, checksum: 0n });

/**
 * Access of `src/peers` to the store: sends blocks to peers and receives blocks from them. Treats
 * blocks of other namespaces than the given one as absent. No call waits for room or blocks the
 * event loop.
 */
export class StorePeerBlocks {
  readonly #store: TieredStore;
  readonly #checks: ServedBlockChecks;
  readonly #batch: AddressBatch = createAddressBatch(1);
  readonly #many: AddressBatch = createAddressBatch(AT_ONCE);
  readonly #named = new Int32Array(NODES_A_NAME);

  constructor(store: TieredStore) {
    this.#store = store;
    this.#checks = new ServedBlockChecks(store);
  }

  /**
   * Reserves a slot for a block of at most `bytes` that will be received. Refusals: `present` (the
   * block is in RAM, or readable on SSD); `full` (RAM has no room; pins and leases are not ended
   * for it); `tooLong` (the arena does not accept this length); `removed` (a command removed the
   * block so recently that peers may still have it). `keep` (default true): the block stays in RAM
   * after the request; false: it is dropped when its last user releases it.
   */
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
      // Answer `full`, so that the client cannot learn whether another namespace has the block.
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

  /** Returns the block's node, in whatever namespace it is, or NO_NODE. */
  #find(digest: Uint8Array, layer: number): NodeId {
    assert(digest.length === DIGEST_BYTES, "a digest has 32 bytes");
    const batch = this.#batch;
    batch.count = 1;
    batch.layer = layer >>> 0;
    batch.digests.set(digest);
    this.#store.deriveKeys(batch, false);
    return this.#store.table.find(batch.keys, 0);
  }

  /**
   * Locks a block so that it can be sent to a peer. Returns synchronously if the block is in RAM.
   * Reads a block on SSD into RAM first, within `deadlineMs`; with `warm` at lower priority than
   * reads for engines.
   */
  lend(
    namespace: NamespaceIndex,
    digest: Uint8Array,
    layer: number,
    options: ServeOptions,
  ): Lent | Promise<Lent> {
    const { table, ssd } = this.#store;
    const node = this.#find(digest, layer);
    if (node === NO_NODE || table.namespaceOf(node) !== namespace) return "absent";
    if (table.isResident(node, Tier.ram)) return this.#loan(node);
    if (ssd === null || !table.isResident(node, Tier.ssd)) return "absent";
    if (!ssd.readable || !table.lock(node)) return "busy";
    return this.#load(node, options).finally(() => table.unlock(node));
  }

  /**
   * Reads a block that the caller has locked from SSD into RAM. A read in progress continues after
   * the deadline.
   */
  async #load(node: NodeId, { deadlineMs, warm }: ServeOptions): Promise<Lent> {
    const { table, ssd, ram, clock } = this.#store;
    const late = Promise.withResolvers<"late">();
    using _timer = clock.after(deadlineMs, () => late.resolve("late"));
    const read = ssd!.load(node, { warm, mayEvictPins: false }).then((outcome) => {
      // No local request waits for the block, so add it to the eviction order here.
      if (outcome === "ok") ram.settleFresh(node);
      return outcome;
    });
    const came = await Promise.race([read, late.promise]);
    if (table.isResident(node, Tier.ram)) return this.#loan(node);
    return came === "miss" && !table.isResident(node, Tier.ssd) ? "absent" : "busy";
  }

  #loan(node: NodeId): Lent {
    const { table, slots, stats } = this.#store;
    if (!table.lock(node)) return "busy";
    const slot = table.slotOf(node);
    slots.addReference(slot);
    stats.lentBlocks++;
    stats.lentBytes += table.bytesOf(node);
    this.#checks.served(node);
    let isOver = false;
    const loan: Loan = {
      digest: table.digestOf(node),
      layer: table.layerOf(node),
      bytes: table.bytesOf(node),
      checksum: table.checksumOf(node),
      mac: table.macOf(node),
      parent: this.#parentOf(node),
      transient: table.hasFlag(node, NodeFlag.transient),
      aliases: table.aliasesOf(node).slice(0, NAMES_MAX),
      offset: slots.offsetOf(slot),
      generation: generationOf(table, node),
      release: () => {
        if (isOver) return;
        isOver = true;
        slots.dropReference(slot);
        table.unlock(node);
        this.#store.ram.letGo(node);
      },
    };
    return loan;
  }

  /**
   * Returns the digest of the block's parent; zeros if the digest is unknown here; null if the
   * block has no parent.
   */
  #parentOf(node: NodeId): Uint8Array | null {
    const { table } = this.#store;
    const parent = table.parentOf(node);
    return parent === NO_NODE ? null : table.digestOf(parent);
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
      batch.layer = blocks[from].layer >>> 0;
      batch.count = 0;
      for (let i = from; i < blocks.length && batch.count < AT_ONCE; i++) {
        const { digest, layer } = blocks[i];
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

  /**
   * Returns whether block `i` of the current batch is being written or was announced by an engine.
   */
  #isComing(node: NodeId, i: number): boolean {
    const { table, engines } = this.#store;
    const isWriting = node !== NO_NODE && table.isWriting(node);
    return isWriting || engines.announcements.has(this.#many.keys, i);
  }

  /**
   * Finds blocks by engine hash (8 bytes) or page key (32 bytes). Returns at most `max` blocks,
   * only of namespaces for whose key `isVisible` returns true.
   */
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
      found.push({ ...copy, namespace, digest: table.digestOf(node), layer: table.layerOf(node) });
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

  /**
   * Calls `each` with the key (32 bytes) of every block of a namespace in RAM or on SSD. Works in
   * slices and yields to the event loop between them. `each` must copy the key if it keeps it.
   */
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

  /**
   * Returns how many blocks of the namespace have been stored on this host since the start.
   * Removals are not counted.
   */
  changesOf(namespace: NamespaceIndex): number {
    return this.#store.arrivals.changesOf(namespace);
  }

  /**
   * Returns the length in bytes of the block of this namespace and layer that was stored last; 0 if
   * there was none.
   */
  usualBytes(namespace: NamespaceIndex, layer: number): number {
    return this.#store.arrivals.bytesOf(namespace, layer);
  }
}

/** The public methods of `StorePeerBlocks`. */
export type PeerBlocks = Pick<StorePeerBlocks, keyof StorePeerBlocks>;

/** Limits on hashing blocks that were sent to peers: bytes per second, and bytes in a burst. */
const BYTES_PER_S = 128 * 2 ** 20;
const BYTES_AT_ONCE = 256 * 2 ** 20;
/**
 * Maximum number of blocks that wait to be hashed. A further block is checked the next time it is
 * sent.
 */
const WAITING_MAX = 1_024;

/**
 * Checks blocks that were sent to peers, one at a time on a native thread. The receiving client
 * verifies the bytes but does not report a mismatch to this host. Without this check a damaged
 * block would be sent until the scrub or a local reader finds it.
 */
class ServedBlockChecks {
  readonly #store: TieredStore;
  readonly #budget: HashBudget;
  readonly #waiting = new Set<NodeId>();
  #running: Promise<void> | null = null;

  constructor(store: TieredStore) {
    this.#store = store;
    this.#budget = new HashBudget(store.clock, BYTES_PER_S, BYTES_AT_ONCE);
  }

  served(node: NodeId): void {
    if (this.#waiting.size >= WAITING_MAX) return;
    this.#waiting.add(node);
    this.#running ??= this.#run();
  }

  async #run(): Promise<void> {
    const { table, checks } = this.#store;
    for (const node of this.#waiting) {
      this.#waiting.delete(node);
      // The node id may have been reused meanwhile: checking the new block instead does no harm.
      if (!table.isResident(node, Tier.ram)) continue;
      if (this.#budget.take(table.bytesOf(node))) await checks.check(node, "peer");
    }
    this.#running = null;
  }
}

/**
 * Maximum number of pairs of namespace and layer for which a block length is kept. The pair that
 * was added first is forgotten.
 */
const LENGTHS_MAX = 16_384;

/**
 * Blocks that were stored on this host, per namespace: their number, and the latest block length
 * per layer.
 */
export class ArrivalStats {
  readonly #changes: number[] = [];
  readonly #lengths = new Map<number, number>();

  came(namespace: NamespaceIndex, layer: number, bytes: number): void {
    this.#changes[namespace] = this.changesOf(namespace) + 1;
    this.learn(namespace, layer, bytes);
  }

  /** Records the length in bytes of a block of this namespace and layer. */
  learn(namespace: NamespaceIndex, layer: number, bytes: number): void {
    const pair = pairOf(namespace, layer);
    if (this.#lengths.get(pair) === bytes) return;
    if (this.#lengths.size === LENGTHS_MAX && !this.#lengths.has(pair)) {
      this.#lengths.delete(this.#lengths.keys().next().value!);
    }
    this.#lengths.set(pair, bytes);
  }

  /** Returns how many blocks of the namespace have been stored on this host since the start. */
  changesOf(namespace: NamespaceIndex): number {
    return this.#changes[namespace] ?? 0;
  }

  /**
   * Returns the length in bytes of the latest block of this namespace and layer; 0 if there was
   * none.
   */
  bytesOf(namespace: NamespaceIndex, layer: number): number {
    return this.#lengths.get(pairOf(namespace, layer)) ?? 0;
  }
}

/** Combines namespace and layer into a unique number below 2^48. */
function pairOf(namespace: NamespaceIndex, layer: number): number {
  return namespace * 2 ** 32 + (layer >>> 0);
}
