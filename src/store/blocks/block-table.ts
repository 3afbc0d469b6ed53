import type { NamespaceIndex, NodeId, Random } from "../../core/index.ts";
import type { TableListeners } from "./node-columns.ts";

/**
 * Where a block lies, as bits: a residency and a mask of allowed tiers are sums of these. The lower
 * the bit, the faster the tier. The numbers are the engine protocol's.
 */
export const Tier = { gpu: 1, ram: 2, ssd: 4, peer: 8 } as const;
export type Tier = (typeof Tier)[keyof typeof Tier];

export const TIER_COUNT = 4;
export const TIERS_ALL = Tier.gpu | Tier.ram | Tier.ssd | Tier.peer;

/** Tiers whose blocks Hearth itself evicts: each has a recency list. */
export const RECENCY_TIERS = [Tier.ram, Tier.ssd] as const;
export type RecencyTier = (typeof RECENCY_TIERS)[number];

/** 0 for the GPU, 1 for RAM, and so on: the column of a tier in per-tier counts. */
export function tierIndex(tier: Tier): number {
  return 31 - Math.clz32(tier);
}

/**
 * Marks of a node. `transient` and `corrupt` are set by the table's callers, the others by itself.
 */
export const NodeFlag = {
  /**
   * Named as a parent, never inserted: key, namespace and layer are known, digest and parent are
   * not.
   */
  ghost: 1 << 4,
  /** A writer holds it: its bytes are not there yet. */
  writing: 1 << 5,
  /** RAM may not give it up. */
  ramProtected: 1 << 6,
  /** Never written to SSD, may be purged at once. */
  transient: 1 << 7,
  /** Its bytes failed their checksum. */
  corrupt: 1 << 8,
  /** It or a descendant is pinned. */
  kept: 1 << 9,
} as const;

/** Flags callers may set and clear. */
export type CallerFlag = typeof NodeFlag.transient | typeof NodeFlag.corrupt;

/** Times a node was used, at most: the counter stays there. */
export const USES_MAX = 0xffff;

/**
 * What may be read from the block table, by policies, metrics and walks. Every node given in must
 * be live (answered by this table, not vanished since); nothing here changes anything or allocates.
 */
export interface TableView {
  readonly nodesMax: number;
  /** Live nodes, ghosts included. */
  readonly nodeCount: number;

  /**
   * The node of the `BlockKey` whose eight words start at `words[at]`, or NO_NODE. Any namespace.
   */
  find(words: Uint32Array, at: number): NodeId;

  /**
   * `out[i]` becomes the node of the i-th of `count` keys, or NO_NODE. Much faster than one by one.
   */
  findMany(words: Uint32Array, count: number, out: Int32Array): void;

  /**
   * Length of the leading run of `count` keys (eight words each, from `words[0]`) that are resident
   * in `namespace` on any tier of `tierMask`. `best[i]` becomes the bit of the best such tier.
   */
  matchLeading(
    words: Uint32Array,
    count: number,
    namespace: NamespaceIndex,
    tierMask: number,
    best: Uint8Array,
  ): number;

  /** Whether `node` still is the one that had this generation; any whole numbers may be asked. */
  isLive(node: NodeId, generation: number): boolean;
  /** Changes whenever the node's id is used again. */
  generationOf(node: NodeId): number;
  namespaceOf(node: NodeId): NamespaceIndex;
  layerOf(node: NodeId): number;
  /** Copies the eight words of the key to `into[at]`. */
  readKey(node: NodeId, into: Uint32Array, at: number): void;
  /** Copies its first two words. */
  readKeyStart(node: NodeId, into: Uint32Array, at: number): void;
  /** Copies the 32 bytes of the digest to `into[at]`; zeros for a ghost. */
  readDigest(node: NodeId, into: Uint8Array, at: number): void;

  /** Sum of the bits of all tiers that hold the block. */
  residencyOf(node: NodeId): number;
  isResident(node: NodeId, tier: Tier): boolean;
  /** Whether any flag of `mask` (of `NodeFlag`) is set. */
  hasFlag(node: NodeId, mask: number): boolean;
  isGhost(node: NodeId): boolean;
  isWriting(node: NodeId): boolean;
  /**
   * Whether the tier must not give it up: because it or a descendant is locked or, on SSD, pinned;
   * in RAM, because it or a descendant is pinned and in RAM without a copy on SSD.
   */
  isProtected(node: NodeId, tier: RecencyTier): boolean;
  /** Pinned, or an ancestor of such a node: it must not leave this host. */
  isKept(node: NodeId): boolean;
  locksOf(node: NodeId): number;
  pinsOf(node: NodeId): number;
  gpuHoldersOf(node: NodeId): number;

  /** Length of the block in bytes; 0 where unknown. */
  bytesOf(node: NodeId): number;
  /** Slot in the RAM arena, 0 = none, and the generation the slot had when it was set. */
  slotOf(node: NodeId): number;
  slotGenerationOf(node: NodeId): number;
  /** Low and high 32 bits of the payload checksum. */
  checksumLoOf(node: NodeId): number;
  checksumHiOf(node: NodeId): number;
  /** Writes the block's MAC, 16 bytes, to `into` from `at` on; zeros: it has none. */
  readMac(node: NodeId, into: Uint8Array, at?: number): void;

  /** Times the node was used, stopping at `USES_MAX`. */
  usesOf(node: NodeId): number;
  /** The caller's tick at the latest use. */
  lastUsedOf(node: NodeId): number;

  parentOf(node: NodeId): NodeId;
  /** The child linked last, or NO_NODE. */
  firstChildOf(node: NodeId): NodeId;
  /** The child of the same parent that was linked just before this one, or NO_NODE. */
  nextSiblingOf(node: NodeId): NodeId;
  /** Known ancestors above the node; takes that many steps. */
  depthOf(node: NodeId): number;
  /**
   * What follows `node` in a walk of `root`'s subtree, each parent before its children; NO_NODE at
   * the end. Valid within one tick: a walk that pauses needs `openWalk`.
   */
  successorOf(node: NodeId, root: NodeId): NodeId;
  /**
   * Whether no descendant is resident on `tier`. Looks at 64 descendants at most and answers false
   * where that does not settle it. Always true of `oldest(tier)`, which needs no asking.
   */
  isLeafOn(node: NodeId, tier: Tier): boolean;

  /**
   * The node of the tier, not protected there, that was used longest ago, or NO_NODE. No descendant
   * of it is resident on the tier: it may be evicted.
   */
  oldest(tier: RecencyTier): NodeId;
  /** The next newer unprotected node of the tier, or NO_NODE after the newest. */
  newerThan(node: NodeId, tier: RecencyTier): NodeId;

  /**
   * The node on any tier of `tiers` with the next higher id, or NO_NODE: a walk over all of them in
   * no meaningful order, that may pause anywhere. `node` need not be live; NO_NODE begins. Ids from
   * `end` on are not looked at, so that one call over a sparse table does not take long.
   */
  nextOn(node: NodeId, tiers: number, end?: number): NodeId;
  /** The same for nodes without a parent, ghosts included. */
  nextRoot(node: NodeId, end?: number): NodeId;

  residentBlocks(tier: Tier): number;
  residentBytes(tier: Tier): number;
  /** Those of them that are not protected there. */
  evictableBlocks(tier: RecencyTier): number;
  evictableBytes(tier: RecencyTier): number;
  /** Bytes of kept blocks in RAM or on SSD, each once. */
  readonly keptBytes: number;
  /** Of these, bytes of blocks that are in RAM and not on SSD: RAM must not give them up. */
  readonly keptInRamAloneBytes: number;

  /**
   * Fills `out` with the nodes that have this 64-bit engine hash; answers how many were written.
   */
  nodesOfAlias(lo: number, hi: number, out: Int32Array): number;
  /** The node of that hash in one namespace (the one added first of several), or NO_NODE. */
  findAlias(lo: number, hi: number, namespace: NamespaceIndex): NodeId;
  /** The same for SHA-256 page keys: 32 bytes from `bytes[at]`. */
  nodesOfSha256(bytes: Uint8Array, at: number, out: Int32Array): number;
  findSha256(bytes: Uint8Array, at: number, namespace: NamespaceIndex): NodeId;
  /**
   * The node's aliases, each a copy: 8 bytes are an engine hash, little-endian, 32 a SHA-256 page
   * key.
   */
  aliasesOf(node: NodeId): Uint8Array[];
  /**
   * Copies the first eight bytes of the node's latest aliases to `into`, as two little-endian words
   * each: at most `max` engine hashes, which are that long, then as many page keys. How many.
   */
  readAliasStarts(node: NodeId, into: Uint32Array, max: number): number;
  /** Aliases of both kinds that exist. */
  readonly aliasCount: number;
}

export interface BlockTableOptions extends TableListeners {
  /** Nodes at most, ghosts included; 2^26 at most. Memory is taken as nodes come into use. */
  readonly nodesMax: number;
  /** 64-bit engine hashes at most. Default: `nodesMax`. */
  readonly aliasesMax?: number;
  /** SHA-256 page keys at most. Default: `nodesMax`. */
  readonly sha256Max?: number;
  /** Seeds the hashes of the indexes, so that nobody can choose keys that collide. */
  readonly random: Random;
}

/** Nodes that may share one alias, and aliases of one kind a node may have. */
export const NODES_PER_ALIAS_MAX = 64;
export const ALIASES_PER_NODE_MAX = 64;

/** Walks that may be open at the same time. */
export const WALKS_MAX = 256;

/** Blocks as columns: eight words a key, 32 bytes a digest, one length each; one layer for all. */
export interface BlockSource {
  readonly layer: number;
  readonly keys: Uint32Array;
  readonly digests: Uint8Array;
  readonly parentKeys: Uint32Array;
  readonly bytes: Uint32Array;
}

/** Why a block was not inserted, as what the insert answers; a node is always above zero. */
export const InsertRefusal = {
  /** No node left for it, or for the unknown parent it names. */
  full: -1,
  /** The block or its parent is known in another namespace. */
  foreign: -2,
  /** Its parent is itself or one of its descendants. */
  cycle: -3,
  /** Somebody is writing it already. */
  busy: -4,
} as const;
export type InsertRefusal = (typeof InsertRefusal)[keyof typeof InsertRefusal];

/** A `NodeId`, or an `InsertRefusal` below zero. */
export type InsertResult = NodeId | InsertRefusal;

export function isRefusal(result: InsertResult): result is InsertRefusal {
  return result < 0;
}

export type AliasResult = "added" | "present" | "full";

/**
 * Visits the descendants of a node, each parent before its children, in as many slices as wanted.
 * Nodes may come and go in between: what is there from open to end is visited once, what comes in
 * meanwhile may be missed. Must be closed; ends by itself when its root vanishes.
 */
export interface DescendantWalk extends Disposable {
  /** The next descendant, or NO_NODE at the end. */
  next(): NodeId;
  close(): void;
}

/**
 * As `DescendantWalk`, but each child before its parent: what is visited may be removed at once.
 * No call follows more than some links.
 */
export interface LeafWalk extends Disposable {
  /** The next descendant. NO_NODE at the end, or where the way is long: `over` is false then. */
  next(): NodeId;
  readonly over: boolean;
  close(): void;
}

/**
 * The one record of what is where: a prefix tree with one node per block. Promises:
 *
 * - A node lives as long as something holds it: residency on a tier, a lock, a pin, a writer, or a
 *   child. The call that takes the last hold away removes it, and then its ancestors as far as
 *   nothing holds them. Its aliases go with it. Nothing else ever removes a node.
 * - A parent is set once: at the insert that names it, or later where a node (a ghost or a root)
 *   had none. An unknown parent becomes a ghost, held by its children.
 * - Per tier of `RECENCY_TIERS`, all residents that are not protected there stand in one list in
 *   which every node is newer than all its descendants, whatever lies between them. So `oldest` is
 *   a leaf on its tier.
 * - A lock protects the node and all its ancestors on both tiers. A pin protects them on SSD; in
 *   RAM only those of them that are in RAM and not on SSD, and their ancestors. Protected nodes
 *   leave the list, and come back as the newest when nothing protects them any more, the deepest
 *   first.
 *
 * Full is an answer; a broken caller (unlocking what is not locked, a dead node) is INTERNAL. Calls
 * take constant time but for those that follow a path: `lock`, `pin` and their undoing, and where
 * what is pinned comes to a tier or leaves it, as far as protection changes; `touchPath`; and an
 * insert that gives a parent to what had none.
 */
export interface BlockTable extends TableView {
  /**
   * Inserts block `index` of `source`, or finds it, and marks it as being written. Its length is
   * set unless RAM or SSD hold it. `hasParent`: `parentKeys` names its parent, in the same
   * namespace. The writer should also `lock` it, so that its ancestors stay meanwhile.
   */
  insertWriting(
    source: BlockSource,
    index: number,
    namespace: NamespaceIndex,
    hasParent: boolean,
  ): InsertResult;

  /**
   * Inserts block `index` of `source`, or finds it, and makes it resident on `tier` (the GPU: with
   * one more holder). Its length is set unless it is resident or being written already.
   */
  insertResident(
    source: BlockSource,
    index: number,
    namespace: NamespaceIndex,
    hasParent: boolean,
    tier: Tier,
  ): InsertResult;

  /** The writer is done (`addResidency` first) or gave up: the node may vanish. */
  endWrite(node: NodeId): void;

  /** Not for the GPU. Nothing happens where it is resident already. */
  addResidency(node: NodeId, tier: Tier): void;
  /** Not for the GPU. The node may vanish; its slot is the caller's to free. */
  removeResidency(node: NodeId, tier: Tier): void;
  /** One more engine holds the block on its GPU; false at 65535. */
  addGpuHolder(node: NodeId): boolean;
  /** One engine fewer; the node may vanish. */
  removeGpuHolder(node: NodeId): void;

  /** Changes the length, with the totals of the tiers that hold it. */
  setBytes(node: NodeId, bytes: number): void;
  setSlot(node: NodeId, slot: number, slotGeneration: number): void;
  setChecksum(node: NodeId, lo: number, hi: number): void;
  /** The 16 bytes from `at` on; all zero: it has no MAC. */
  setMac(node: NodeId, from: Uint8Array, at?: number): void;
  setFlag(node: NodeId, flag: CallerFlag, on: boolean): void;

  /** Counts one more lock; false where the counter is full (2^32 - 1). */
  lock(node: NodeId): boolean;
  /** The node may vanish. */
  unlock(node: NodeId): void;
  pin(node: NodeId): boolean;
  /** The node may vanish. */
  unpin(node: NodeId): void;

  /** Counts one use of this node at `tick` (u32). Recency stays. */
  markUsed(node: NodeId, tick: number): void;
  /** Sets both, as they were in an earlier run. */
  setUses(node: NodeId, uses: number, tick: number): void;
  /**
   * Makes the node, then each ancestor in turn, the newest of its tiers: as if a request had used
   * them from last to first. Protected ones are in no list and stay so.
   */
  touchPath(node: NodeId): void;

  /** Null where `WALKS_MAX` are open. */
  openWalk(root: NodeId): DescendantWalk | null;
  /** The same, from the leaves upwards. */
  openLeafWalk(root: NodeId): LeafWalk | null;

  /** Gives the node another name. `full`: table, node or alias has as many as it may. */
  addAlias(node: NodeId, lo: number, hi: number): AliasResult;
  addSha256(node: NodeId, bytes: Uint8Array, at: number): AliasResult;

  /** Checks every invariant, in time linear in `nodesMax`; INTERNAL names the first broken one. */
  verifyIntegrity(): void;
}
