import { assert, type NamespaceIndex, NO_NODE, type NodeId } from "../../core/index.ts";
import { type AliasResult, IDS_MAX } from "./hash-index.ts";
import {
  DIGEST_LENGTH,
  giveNode,
  KEY_WORDS,
  MAC_LENGTH,
  NAMESPACE_MAX,
  NodeFlag,
  TIERS_ALL,
  Tier,
  takeNode,
  tierIndex,
  USES_MAX,
} from "./node-columns.ts";
import {
  enterTier,
  isInRamAlone,
  isListed,
  keep,
  keptOnTiers,
  leaveTier,
  protect,
  protectParent,
  residencyChanged,
  touchPath,
  unkeep,
  unprotect,
} from "./recency.ts";
import { type BlockTableOptions, TableView } from "./table-view.ts";
import { isOnPath, LeafWalk, linkChild, unlinkChild, WALKS_MAX } from "./tree.ts";

const COUNTER_MAX = 0xffff_ffff;
const GPU_HOLDERS_MAX = 0xffff;
/** If one of these is set, the block's length is known already and an insert must not change it. */
const LENGTH_KNOWN = TIERS_ALL | NodeFlag.writing;

/**
 * Blocks as columns: eight 32-bit words per key, 32 bytes per digest, one length in bytes per
 * block. All blocks have the same layer.
 */
export interface BlockSource {
  readonly layer: number;
  readonly keys: Uint32Array;
  readonly digests: Uint8Array;
  readonly parentKeys: Uint32Array;
  readonly bytes: Uint32Array;
}

/** Reasons why an insert fails, as negative results. A node id is always positive. */
export const InsertRefusal = {
  /** The table has no free node for the block or for its unknown parent. */
  full: -1,
  /** The block or its parent exists in another namespace. */
  foreign: -2,
  /** The parent is the block itself or one of its descendants. */
  cycle: -3,
  /** Another writer is writing the block. */
  busy: -4,
} as const;
export type InsertRefusal = (typeof InsertRefusal)[keyof typeof InsertRefusal];

/** Result of an insert: the `NodeId`, or a negative `InsertRefusal`. */
export type InsertResult = NodeId | InsertRefusal;

export function isRefusal(result: InsertResult): result is InsertRefusal {
  return result < 0;
}

/**
 * The single record of which block is on which tier: a prefix tree with one node per block.
 * Guarantees:
 *
 * - A node lives as long as it has a residency on a tier, a lock, a pin, a writer or a child. The
 *   call that removes the last of these removes the node, its aliases, and then each ancestor for
 *   which the same is true. Nothing else removes a node.
 * - A parent is set once: by the insert that names it, or later if the node (a ghost or a root) had
 *   none. An unknown parent becomes a ghost, which lives as long as it has children.
 * - For each tier of `RECENCY_TIERS`, all residents that are not protected there are in one recency
 *   list. In it every node is newer than all its descendants, even if nodes between them are not in
 *   the list. So `oldest` is a leaf on its tier.
 * - A lock protects the node and all its ancestors on both tiers. A pin protects them on SSD; in
 *   RAM it protects only those that are in RAM and not on SSD, and their ancestors. Protected nodes
 *   leave the list. When the protection ends they come back as the newest, the deepest first.
 *
 * A full table is a result; a misuse (unlocking a node without locks, a dead node) throws INTERNAL.
 * Calls take constant time, except those that follow a path: `lock`, `pin` and their inverses, and
 * residency changes of kept nodes, up to the first ancestor whose protection does not change;
 * `touchPath`; and an insert that gives a parent to a node that had none.
 */
export class BlockTable extends TableView {
  private readonly walks: LeafWalk[] = [];

  /**
   * Reserves address space for `nodesMax` nodes. Physical memory is used only for nodes that come
   * into use.
   */
  constructor(options: BlockTableOptions) {
    assert(options.nodesMax >= 1 && options.nodesMax <= IDS_MAX, "a table has 1 to 2^26 nodes");
    super(options);
  }

  /**
   * Inserts or finds block `index` of `source` and marks it as being written. Sets its length
   * unless it is in RAM or on SSD. `hasParent`: the parent's key is in `source.parentKeys`, in the
   * same namespace. The writer should also `lock` the node, so that its ancestors stay.
   */
  insertWriting(
    source: BlockSource,
    index: number,
    namespace: NamespaceIndex,
    hasParent: boolean,
  ): InsertResult {
    const node = this.place(source, index, namespace, hasParent, NodeFlag.writing);
    if (isRefusal(node)) return node;
    const { meta } = this.columns;
    if ((meta[node] & (Tier.ram | Tier.ssd)) === 0) this.setBytes(node, source.bytes[index]);
    meta[node] = meta[node] | NodeFlag.writing;
    return node;
  }

  /**
   * Inserts or finds block `index` of `source` and marks it as resident on `tier`; for the GPU
   * tier, adds one GPU holder. Sets its length unless it is already resident or being written.
   */
  insertResident(
    source: BlockSource,
    index: number,
    namespace: NamespaceIndex,
    hasParent: boolean,
    tier: Tier,
  ): InsertResult {
    const node = this.place(source, index, namespace, hasParent, 0);
    if (isRefusal(node)) return node;
    const { meta, bytes } = this.columns;
    if ((meta[node] & LENGTH_KNOWN) === 0) bytes[node] = source.bytes[index];
    if (tier !== Tier.gpu) this.gain(node, tier);
    else if (!this.addGpuHolder(node)) return InsertRefusal.full;
    return node;
  }

  /**
   * Marks the node as no longer being written. Call after `addResidency` if the write succeeded;
   * otherwise the node may be removed.
   */
  endWrite(node: NodeId): void {
    const { meta } = this.columns;
    assert((meta[node] & NodeFlag.writing) !== 0, "a write that ends was started");
    meta[node] = meta[node] & ~NodeFlag.writing;
    this.vanishIfUnused(node);
  }

  /**
   * Marks the node as resident on `tier`, which must not be the GPU tier. Does nothing if it is
   * resident there already.
   */
  addResidency(node: NodeId, tier: Tier): void {
    assert(tier !== Tier.gpu, "the GPU tier is set by its holders");
    this.gain(node, tier);
  }

  /**
   * Marks the node as not resident on `tier`, which must not be the GPU tier. If nothing else keeps
   * the node, it is removed. The caller must free its slot.
   */
  removeResidency(node: NodeId, tier: Tier): void {
    assert(tier !== Tier.gpu, "the GPU tier is set by its holders");
    this.lose(node, tier);
  }

  /**
   * Counts one more engine that has the block in GPU memory. Returns false if the counter is at its
   * maximum (65,535).
   */
  addGpuHolder(node: NodeId): boolean {
    const { gpuHolders } = this.columns;
    if (gpuHolders[node] === GPU_HOLDERS_MAX) return false;
    gpuHolders[node] = gpuHolders[node] + 1;
    this.gain(node, Tier.gpu);
    return true;
  }

  /**
   * Counts one engine fewer that has the block in GPU memory. If nothing else keeps the node, it is
   * removed.
   */
  removeGpuHolder(node: NodeId): void {
    const { gpuHolders } = this.columns;
    assert(gpuHolders[node] > 0, "a GPU that drops a block had it");
    gpuHolders[node] = gpuHolders[node] - 1;
    if (gpuHolders[node] === 0) this.lose(node, Tier.gpu);
  }

  /**
   * Changes the length of the block in bytes, and the totals of the tiers on which it is resident.
   */
  setBytes(node: NodeId, bytes: number): void {
    const { columns } = this;
    const marks = columns.meta[node];
    assert(marks !== 0, "a node to be changed is live");
    const more = bytes - columns.bytes[node];
    columns.bytes[node] = bytes;
    if (more === 0 || (marks & TIERS_ALL) === 0) return;
    for (const tier of Object.values(Tier)) {
      if ((marks & tier) === 0) continue;
      columns.residentBytes[tierIndex(tier)] = columns.residentBytes[tierIndex(tier)] + more;
    }
    for (const list of columns.lists) if (isListed(list, marks)) list.bytes += more;
    columns.keptBytes += keptOnTiers(marks) * more;
    if (isInRamAlone(marks)) columns.keptInRamAloneBytes += more;
  }

  setSlot(node: NodeId, slot: number, slotGeneration: number): void {
    this.columns.slot[node] = slot;
    this.columns.slotGeneration[node] = slotGeneration;
  }

  setChecksum(node: NodeId, lo: number, hi: number): void {
    this.columns.checksum[node * 2] = lo;
    this.columns.checksum[node * 2 + 1] = hi;
  }

  /**
   * Sets the MAC of the block to the 16 bytes from `from[at]`. All zero means that the block has no
   * MAC.
   */
  setMac(node: NodeId, from: Uint8Array, at = 0): void {
    const { macs } = this.columns;
    const to = node * MAC_LENGTH;
    for (let i = 0; i < MAC_LENGTH; i++) {
      const byte = from[at + i];
      // Skip equal bytes: memory pages that are never written take no physical memory.
      if (macs[to + i] !== byte) macs[to + i] = byte;
    }
  }

  setFlag(node: NodeId, flag: typeof NodeFlag.transient, on: boolean): void {
    const { meta } = this.columns;
    assert(meta[node] !== 0, "a node to be changed is live");
    meta[node] = on ? meta[node] | flag : meta[node] & ~flag;
  }

  /** Adds a lock to the node. Returns false if the counter is at its maximum (2^32 - 1). */
  lock(node: NodeId): boolean {
    if (!this.hold(node, this.columns.locks)) return false;
    protect(this.columns, node);
    return true;
  }

  /** Removes a lock from the node. If nothing else keeps the node, it is removed. */
  unlock(node: NodeId): void {
    if (!this.decrement(node, this.columns.locks)) return;
    unprotect(this.columns, node);
    this.vanishIfUnused(node);
  }

  pin(node: NodeId): boolean {
    if (!this.hold(node, this.columns.pins)) return false;
    keep(this.columns, node);
    return true;
  }

  /** Removes a pin from the node. If nothing else keeps the node, it is removed. */
  unpin(node: NodeId): void {
    if (!this.decrement(node, this.columns.pins)) return;
    unkeep(this.columns, node);
    this.vanishIfUnused(node);
  }

  /**
   * Counts one use of the node at time `tick` (u32). Does not change its position in the recency
   * lists.
   */
  markUsed(node: NodeId, tick: number): void {
    const { uses, lastUsed } = this.columns;
    if (uses[node] < USES_MAX) uses[node] = uses[node] + 1;
    lastUsed[node] = tick;
  }

  /** Sets the use counter and the time of the latest use to values from an earlier run. */
  setUses(node: NodeId, uses: number, tick: number): void {
    this.columns.uses[node] = Math.min(uses, USES_MAX);
    this.columns.lastUsed[node] = tick;
  }

  /**
   * Makes the node and then each ancestor in turn the newest of its recency lists, as if a request
   * had used them from last to first. Protected nodes are in no list and stay out.
   */
  touchPath(node: NodeId): void {
    touchPath(this.columns, node);
  }

  /** Opens a walk over the descendants of `root`. Returns null if `WALKS_MAX` walks are open. */
  openLeafWalk(root: NodeId): LeafWalk | null {
    return this.walks.length < WALKS_MAX ? new LeafWalk(this.columns, root, this.walks) : null;
  }

  /**
   * Adds a 64-bit engine hash as alias of the node. Result `full`: the table, the node or the alias
   * is at its maximum number of entries.
   */
  addAlias(node: NodeId, lo: number, hi: number): AliasResult {
    assert(this.columns.meta[node] !== 0, "a node that gets an alias is live");
    return this.hashes.add(node, this.nameOfHash(lo, hi));
  }

  addSha256(node: NodeId, bytes: Uint8Array, at: number): AliasResult {
    assert(this.columns.meta[node] !== 0, "a node that gets an alias is live");
    return this.pageKeys.add(node, this.nameOfPage(bytes, at));
  }

  /**
   * Adds an alias given as bytes: 8 bytes are an engine hash (little-endian), 32 bytes a SHA-256
   * page key.
   */
  addName(node: NodeId, name: Uint8Array): AliasResult {
    if (name.length !== 8) return this.addSha256(node, name, 0);
    const words = new DataView(name.buffer, name.byteOffset, name.length);
    return this.addAlias(node, words.getUint32(0, true), words.getUint32(4, true));
  }

  /**
   * Finds or creates the node of block `index`, sets digest and parent if the node lacks them, and
   * returns the node or a refusal.
   */
  private place(
    source: BlockSource,
    index: number,
    namespace: NamespaceIndex,
    hasParent: boolean,
    busyWith: number,
  ): InsertResult {
    assert(namespace > 0 && namespace <= NAMESPACE_MAX, "a namespace index has 16 bits");
    const { columns, index: byKey } = this;
    const at = index * KEY_WORDS;
    const hash = byKey.hash(source.keys, at);
    let node = byKey.find(source.keys, at, hash) as NodeId;
    const marks = columns.meta[node];
    if (node !== NO_NODE && marks >>> 16 !== namespace) return InsertRefusal.foreign;
    if ((marks & busyWith) !== 0) return InsertRefusal.busy;
    if (node !== NO_NODE && (!hasParent || columns.parent[node] !== 0)) {
      if ((marks & NodeFlag.ghost) !== 0) this.identify(node, source, index);
      return node;
    }
    if (!hasParent) {
      node = this.create(source.keys, at, hash, namespace, source.layer, 0);
      if (node === NO_NODE) return InsertRefusal.full;
      this.identify(node, source, index);
      return node;
    }
    return this.placeUnder(source, index, namespace, node, hash);
  }

  /**
   * Implements `place` for a block whose parent is not linked yet. `node`: the block's node, or
   * NO_NODE if it has to be created.
   */
  private placeUnder(
    source: BlockSource,
    index: number,
    namespace: NamespaceIndex,
    existing: NodeId,
    hash: number,
  ): InsertResult {
    const { columns, index: byKey } = this;
    const at = index * KEY_WORDS;
    if (equalKeys(source.keys, source.parentKeys, at)) return InsertRefusal.cycle;
    const parentHash = byKey.hash(source.parentKeys, at);
    let parent = byKey.find(source.parentKeys, at, parentHash) as NodeId;
    const known = parent !== NO_NODE;
    if (known && columns.meta[parent] >>> 16 !== namespace) return InsertRefusal.foreign;
    if (known && existing !== NO_NODE && this.wouldCycle(existing, parent))
      return InsertRefusal.cycle;
    const wanted = (existing === NO_NODE ? 1 : 0) + (known ? 0 : 1);
    if (columns.nodesMax - columns.count < wanted) return InsertRefusal.full;

    const { layer } = source;
    let node = existing;
    if (node === NO_NODE) node = this.create(source.keys, at, hash, namespace, layer, 0);
    if (node === NO_NODE) return InsertRefusal.full;
    if (!known) {
      const ghost = NodeFlag.ghost;
      parent = this.create(source.parentKeys, at, parentHash, namespace, layer, ghost);
      if (parent === NO_NODE) {
        this.vanishIfUnused(node);
        return InsertRefusal.full;
      }
    }
    if (existing === NO_NODE || this.isGhost(node)) this.identify(node, source, index);
    linkChild(columns, node, parent);
    if (existing !== NO_NODE) {
      protectParent(columns, node, parent);
      touchPath(columns, parent);
    }
    return node;
  }

  private wouldCycle(node: NodeId, parent: NodeId): boolean {
    return this.columns.firstChild[node] !== 0 && isOnPath(this.columns, node, parent);
  }

  /**
   * Creates a node and adds it to the key index. Nothing keeps the node yet. Returns NO_NODE if the
   * table or the index is full.
   */
  private create(
    words: Uint32Array,
    at: number,
    hash: number,
    namespace: NamespaceIndex,
    layer: number,
    flags: number,
  ): NodeId {
    const { columns } = this;
    const node = takeNode(columns, namespace, flags);
    if (node === NO_NODE) return NO_NODE;
    for (let i = 0; i < KEY_WORDS; i++) columns.keys[node * KEY_WORDS + i] = words[at + i];
    if (!this.index.insert(node, hash)) {
      giveNode(columns, node);
      return NO_NODE;
    }
    columns.layer[node] = layer;
    return node;
  }

  /** Sets the digest of a new node, or of a node that was known only as a parent (ghost). */
  private identify(node: NodeId, source: BlockSource, index: number): void {
    const { digests, meta } = this.columns;
    const from = index * DIGEST_LENGTH;
    const to = node * DIGEST_LENGTH;
    for (let i = 0; i < DIGEST_LENGTH; i++) digests[to + i] = source.digests[from + i];
    meta[node] = meta[node] & ~NodeFlag.ghost;
  }

  private gain(node: NodeId, tier: Tier): void {
    const { columns } = this;
    const marks = columns.meta[node];
    assert(
      marks !== 0 && (marks & NodeFlag.ghost) === 0,
      "a node that becomes resident was inserted",
    );
    if ((marks & tier) !== 0) return;
    columns.meta[node] = marks | tier;
    const at = tierIndex(tier);
    columns.residentBlocks[at] = columns.residentBlocks[at] + 1;
    columns.residentBytes[at] = columns.residentBytes[at] + columns.bytes[node];
    enterTier(columns, node, tier);
    residencyChanged(columns, node, marks);
    columns.listeners.onResidency(node, tier, true);
  }

  private lose(node: NodeId, tier: Tier): void {
    const { columns } = this;
    const marks = columns.meta[node];
    assert((marks & tier) !== 0, "a node that leaves a tier is resident there");
    leaveTier(columns, node, tier);
    columns.meta[node] = marks & ~tier;
    const at = tierIndex(tier);
    columns.residentBlocks[at] = columns.residentBlocks[at] - 1;
    columns.residentBytes[at] = columns.residentBytes[at] - columns.bytes[node];
    residencyChanged(columns, node, marks);
    columns.listeners.onResidency(node, tier, false);
    this.vanishIfUnused(node);
  }

  private hold(node: NodeId, counter: Uint32Array): boolean {
    assert(this.columns.meta[node] !== 0, "a node that is locked or pinned is live");
    if (counter[node] === COUNTER_MAX) return false;
    counter[node] = counter[node] + 1;
    return true;
  }

  /** Decrements the node's lock or pin counter. Returns true if the counter is zero now. */
  private decrement(node: NodeId, counter: Uint32Array): boolean {
    assert(counter[node] > 0, "a node that is unlocked or unpinned has a lock or pin");
    counter[node] = counter[node] - 1;
    return counter[node] === 0;
  }

  /** Removes the node if nothing keeps it, and then each ancestor that nothing keeps any more. */
  private vanishIfUnused(node: NodeId): void {
    const { columns } = this;
    const { meta, parent, firstChild, locks, pins } = columns;
    const held = TIERS_ALL | NodeFlag.writing;
    let step: number = node;
    while (step !== 0 && (meta[step] & held) === 0) {
      if (firstChild[step] !== 0 || locks[step] !== 0 || pins[step] !== 0) return;
      const above = parent[step];
      for (let i = 0; i < this.walks.length; i++) this.walks[i].skip(step);
      this.hashes.removeNode(step);
      this.pageKeys.removeNode(step);
      this.index.remove(step);
      unlinkChild(columns, step);
      giveNode(columns, step);
      step = above;
    }
  }
}

function equalKeys(a: Uint32Array, b: Uint32Array, at: number): boolean {
  for (let i = at; i < at + KEY_WORDS; i++) if (a[i] !== b[i]) return false;
  return true;
}
