import type { NamespaceIndex, NodeId } from "../../core/index.ts";
import type { RecencyTier, Tier } from "./tier.ts";

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
