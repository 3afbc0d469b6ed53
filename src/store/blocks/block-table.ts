import type { NamespaceIndex, NodeId, Random } from "../../core/index.ts";
import type { TableListeners } from "./node-columns.ts";

/**
 * Storage tiers as bits: a residency and a mask of allowed tiers are sums of these. The lower the
 * bit, the faster the tier. The values are those of the engine protocol.
 */
export const Tier = { gpu: 1, ram: 2, ssd: 4, peer: 8 } as const;
export type Tier = (typeof Tier)[keyof typeof Tier];

export const TIER_COUNT = 4;
export const TIERS_ALL = Tier.gpu | Tier.ram | Tier.ssd | Tier.peer;

/** Tiers that Hearth itself evicts from. Each has a recency list. */
export const RECENCY_TIERS = [Tier.ram, Tier.ssd] as const;
export type RecencyTier = (typeof RECENCY_TIERS)[number];

/** Index of a tier in per-tier counts: 0 for the GPU, 1 for RAM, and so on. */
export function tierIndex(tier: Tier): number {
  return 31 - Math.clz32(tier);
}

/**
 * Flags of a node. The table's callers set `transient` and `corrupt`; the table sets the others.
 */
export const NodeFlag = {
  /**
   * The node was named as a parent but never inserted: its key, namespace and layer are known, its
   * digest and parent are not.
   */
  ghost: 1 << 4,
  /** A writer is filling in the bytes. */
  writing: 1 << 5,
  /** RAM must not evict the block. */
  ramProtected: 1 << 6,
  /** The block is never written to SSD and may be purged at any time. */
  transient: 1 << 7,
  /** The bytes failed their checksum. */
  corrupt: 1 << 8,
  /** The block or a descendant is pinned. */
  kept: 1 << 9,
} as const;

/** Flags that callers may set and clear. */
export type CallerFlag = typeof NodeFlag.transient | typeof NodeFlag.corrupt;

/** Maximum of the use counter, at which it saturates. */
export const USES_MAX = 0xffff;

/**
 * Read access to the block table, for policies, metrics and walks. Every node passed in must be
 * live: returned by this table and not vanished since. No method changes the table or allocates
 * memory.
 */
export interface TableView {
  readonly nodesMax: number;
  /** Live nodes, including ghosts. */
  readonly nodeCount: number;

  /**
   * The node of the `BlockKey` whose eight words start at `words[at]`, in any namespace, or
   * NO_NODE.
   */
  find(words: Uint32Array, at: number): NodeId;

  /**
   * Sets `out[i]` to the node of the i-th of `count` keys, or NO_NODE. Much faster than `find` in a
   * loop.
   */
  findMany(words: Uint32Array, count: number, out: Int32Array): void;

  /**
   * Length of the leading run of `count` keys (eight words each, from `words[0]`) that are resident
   * in `namespace` on any tier of `tierMask`. Sets `best[i]` to the bit of the fastest such tier.
   */
  matchLeading(
    words: Uint32Array,
    count: number,
    namespace: NamespaceIndex,
    tierMask: number,
    best: Uint8Array,
  ): number;

  /** Whether `node` is live and has this generation. Accepts any integers. */
  isLive(node: NodeId, generation: number): boolean;
  /** Changes each time the id of the node is reused. */
  generationOf(node: NodeId): number;
  namespaceOf(node: NodeId): NamespaceIndex;
  layerOf(node: NodeId): number;
  /** Copies the eight words of the key to `into[at]`. */
  readKey(node: NodeId, into: Uint32Array, at: number): void;
  /** Copies the first two words of the key to `into[at]`. */
  readKeyStart(node: NodeId, into: Uint32Array, at: number): void;
  /** Copies the 32 bytes of the digest to `into[at]`; zeros for a ghost. */
  readDigest(node: NodeId, into: Uint8Array, at: number): void;

  /** Sum of the bits of all tiers that contain the block. */
  residencyOf(node: NodeId): number;
  isResident(node: NodeId, tier: Tier): boolean;
  /** Whether any flag of `mask` (of `NodeFlag`) is set. */
  hasFlag(node: NodeId, mask: number): boolean;
  isGhost(node: NodeId): boolean;
  isWriting(node: NodeId): boolean;
  /**
   * Whether the tier must not evict the block. On SSD: the block or a descendant is locked or
   * pinned. In RAM: it or a descendant is locked, or pinned and in RAM without a copy on SSD.
   */
  isProtected(node: NodeId, tier: RecencyTier): boolean;
  /** Whether the block or a descendant is pinned. Such a block must not leave this host. */
  isKept(node: NodeId): boolean;
  locksOf(node: NodeId): number;
  pinsOf(node: NodeId): number;
  gpuHoldersOf(node: NodeId): number;

  /** Length of the block in bytes. 0: unknown. */
  bytesOf(node: NodeId): number;
  /** Slot in the RAM arena (0: none), and the generation of the slot when it was set. */
  slotOf(node: NodeId): number;
  slotGenerationOf(node: NodeId): number;
  /** Low and high 32 bits of the payload checksum. */
  checksumLoOf(node: NodeId): number;
  checksumHiOf(node: NodeId): number;
  /** Writes the block's MAC, 16 bytes, to `into[at]`. All zero: the block has no MAC. */
  readMac(node: NodeId, into: Uint8Array, at?: number): void;

  /** Number of uses. Saturates at `USES_MAX`. */
  usesOf(node: NodeId): number;
  /** Tick of the latest use, in the caller's unit. */
  lastUsedOf(node: NodeId): number;

  parentOf(node: NodeId): NodeId;
  /** The child linked last, or NO_NODE. */
  firstChildOf(node: NodeId): NodeId;
  /** The child of the same parent that was linked just before this one, or NO_NODE. */
  nextSiblingOf(node: NodeId): NodeId;
  /** Number of known ancestors. Takes that many steps. */
  depthOf(node: NodeId): number;
  /**
   * The node after `node` in a pre-order walk of `root`'s subtree, or NO_NODE at the end. Valid
   * only until the table changes: a walk that pauses needs `openWalk`.
   */
  successorOf(node: NodeId, root: NodeId): NodeId;
  /**
   * Whether no descendant is resident on `tier`. Visits at most 64 descendants and returns false if
   * the answer is still open. `oldest(tier)` always is such a leaf.
   */
  isLeafOn(node: NodeId, tier: Tier): boolean;

  /**
   * The least recently used node of the tier that is not protected there, or NO_NODE. None of its
   * descendants is resident on the tier, so that it may be evicted.
   */
  oldest(tier: RecencyTier): NodeId;
  /** The next newer unprotected node of the tier, or NO_NODE after the newest. */
  newerThan(node: NodeId, tier: RecencyTier): NodeId;

  /**
   * The node with the next higher id that is on any tier of `tiers`, or NO_NODE. Iterates over all
   * of them in no particular order and may pause between calls. `node` need not be live; NO_NODE
   * starts. Ids from `end` on are not visited, which bounds one call on a sparse table.
   */
  nextOn(node: NodeId, tiers: number, end?: number): NodeId;
  /** Like `nextOn` for nodes without a parent, including ghosts. */
  nextRoot(node: NodeId, end?: number): NodeId;

  residentBlocks(tier: Tier): number;
  residentBytes(tier: Tier): number;
  /** Resident blocks that are not protected on the tier. */
  evictableBlocks(tier: RecencyTier): number;
  evictableBytes(tier: RecencyTier): number;
  /** Bytes of pinned blocks and their ancestors in RAM or on SSD, each counted once. */
  readonly keptBytes: number;
  /** The part of `keptBytes` that is in RAM and not on SSD. RAM must not evict these blocks. */
  readonly keptInRamAloneBytes: number;

  /** Fills `out` with the nodes that have this 64-bit engine hash. Returns the number written. */
  nodesOfAlias(lo: number, hi: number, out: Int32Array): number;
  /**
   * The node with this engine hash in one namespace, or NO_NODE. If there are several, the one
   * added first.
   */
  findAlias(lo: number, hi: number, namespace: NamespaceIndex): NodeId;
  /** Like `nodesOfAlias` for SHA-256 page keys: 32 bytes from `bytes[at]`. */
  nodesOfSha256(bytes: Uint8Array, at: number, out: Int32Array): number;
  findSha256(bytes: Uint8Array, at: number, namespace: NamespaceIndex): NodeId;
  /**
   * Copies of the node's aliases: 8 bytes are an engine hash (little-endian), 32 bytes a SHA-256
   * page key.
   */
  aliasesOf(node: NodeId): Uint8Array[];
  /**
   * Copies the first eight bytes of the node's latest aliases to `into`, as two little-endian words
   * each: first at most `max` engine hashes, then at most `max` page keys. Returns the number of
   * aliases.
   */
  readAliasStarts(node: NodeId, into: Uint32Array, max: number): number;
  /** Number of aliases of both kinds. */
  readonly aliasCount: number;
}

export interface BlockTableOptions extends TableListeners {
  /**
   * Maximum number of nodes, including ghosts. At most 2^26. Memory is used as nodes come into use.
   */
  readonly nodesMax: number;
  /** Maximum number of 64-bit engine hashes. Default: `nodesMax`. */
  readonly aliasesMax?: number;
  /** Maximum number of SHA-256 page keys. Default: `nodesMax`. */
  readonly sha256Max?: number;
  /** Seeds the hash functions of the indexes, so that an attacker cannot choose colliding keys. */
  readonly random: Random;
}

/** Nodes that may share one alias, and aliases of one kind that a node may have. */
export const NODES_PER_ALIAS_MAX = 64;
export const ALIASES_PER_NODE_MAX = 64;

/** Walks that may be open at once. */
export const WALKS_MAX = 256;

/**
 * Blocks as columns: eight words per key, 32 bytes per digest, one length per block. All blocks
 * have the same layer.
 */
export interface BlockSource {
  readonly layer: number;
  readonly keys: Uint32Array;
  readonly digests: Uint8Array;
  readonly parentKeys: Uint32Array;
  readonly bytes: Uint32Array;
}

/** Reasons for which an insert fails, as negative results. A node id is always positive. */
export const InsertRefusal = {
  /** No free node for the block, or for the unknown parent that it names. */
  full: -1,
  /** The block or its parent exists in another namespace. */
  foreign: -2,
  /** The parent is the block itself or one of its descendants. */
  cycle: -3,
  /** Another writer is writing the block. */
  busy: -4,
} as const;
export type InsertRefusal = (typeof InsertRefusal)[keyof typeof InsertRefusal];

/** A `NodeId`, or a negative `InsertRefusal`. */
export type InsertResult = NodeId | InsertRefusal;

export function isRefusal(result: InsertResult): result is InsertRefusal {
  return result < 0;
}

export type AliasResult = "added" | "present" | "full";

/**
 * Visits the descendants of a node, each parent before its children. The walk may pause between
 * calls while nodes come and go: nodes that exist from open to end are visited exactly once, nodes
 * added meanwhile may be missed. The caller must close it. It ends if its root vanishes.
 */
export interface DescendantWalk extends Disposable {
  /** The next descendant, or NO_NODE at the end. */
  next(): NodeId;
  close(): void;
}

/**
 * Like `DescendantWalk`, but each child before its parent, so that the visited node may be removed.
 * The work per call is bounded.
 */
export interface LeafWalk extends Disposable {
  /** The next descendant. NO_NODE: at the end (`over` is true), or the call reached its limit. */
  next(): NodeId;
  readonly over: boolean;
  close(): void;
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
export interface BlockTable extends TableView {
  /**
   * Inserts or finds block `index` of `source` and marks it as being written. Sets its length
   * unless it is in RAM or on SSD. `hasParent`: its parent is in `parentKeys`, in the same
   * namespace. The writer should also `lock` the node, so that its ancestors stay.
   */
  insertWriting(
    source: BlockSource,
    index: number,
    namespace: NamespaceIndex,
    hasParent: boolean,
  ): InsertResult;

  /**
   * Inserts or finds block `index` of `source` and makes it resident on `tier` (on the GPU: adds
   * one holder). Sets its length unless it is resident or being written.
   */
  insertResident(
    source: BlockSource,
    index: number,
    namespace: NamespaceIndex,
    hasParent: boolean,
    tier: Tier,
  ): InsertResult;

  /** Ends the write, after `addResidency` if it succeeded. The node may vanish. */
  endWrite(node: NodeId): void;

  /** Not for the GPU tier. No effect if the node is resident there already. */
  addResidency(node: NodeId, tier: Tier): void;
  /** Not for the GPU tier. The node may vanish. The caller must free its slot. */
  removeResidency(node: NodeId, tier: Tier): void;
  /**
   * Counts one more engine with the block on its GPU. False if the counter is at its maximum
   * (65,535).
   */
  addGpuHolder(node: NodeId): boolean;
  /** Counts one engine fewer. The node may vanish. */
  removeGpuHolder(node: NodeId): void;

  /** Changes the length, and the totals of the tiers that contain the block. */
  setBytes(node: NodeId, bytes: number): void;
  setSlot(node: NodeId, slot: number, slotGeneration: number): void;
  setChecksum(node: NodeId, lo: number, hi: number): void;
  /** Sets the MAC to the 16 bytes at `from[at]`. All zero: the block has no MAC. */
  setMac(node: NodeId, from: Uint8Array, at?: number): void;
  setFlag(node: NodeId, flag: CallerFlag, on: boolean): void;

  /** Adds a lock. False if the counter is at its maximum (2^32 - 1). */
  lock(node: NodeId): boolean;
  /** The node may vanish. */
  unlock(node: NodeId): void;
  pin(node: NodeId): boolean;
  /** The node may vanish. */
  unpin(node: NodeId): void;

  /** Counts one use at `tick` (u32). Does not change the recency. */
  markUsed(node: NodeId, tick: number): void;
  /** Restores the use counter and the latest tick from an earlier run. */
  setUses(node: NodeId, uses: number, tick: number): void;
  /**
   * Makes the node, then each ancestor in turn, the newest of its lists, as if a request had used
   * them from last to first. Protected nodes are in no list and stay out.
   */
  touchPath(node: NodeId): void;

  /** Null if `WALKS_MAX` walks are open. */
  openWalk(root: NodeId): DescendantWalk | null;
  /** Like `openWalk`, but visits children before their parents. */
  openLeafWalk(root: NodeId): LeafWalk | null;

  /** Adds an alias. `full`: the table, the node or the alias has the maximum number. */
  addAlias(node: NodeId, lo: number, hi: number): AliasResult;
  addSha256(node: NodeId, bytes: Uint8Array, at: number): AliasResult;

  /**
   * Checks every invariant in time linear in `nodesMax`. Throws INTERNAL with the first violation.
   */
  verifyIntegrity(): void;
}
