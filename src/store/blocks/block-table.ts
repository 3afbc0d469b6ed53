import type { NamespaceIndex, NodeId, Random } from "../../core/index.ts";
import type { TableListeners } from "./node-columns.ts";
import type { CallerFlag, TableView } from "./table-view.ts";
import type { Tier } from "./tier.ts";

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
