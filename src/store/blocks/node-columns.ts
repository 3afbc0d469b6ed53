import { HearthError, type NamespaceIndex, NO_NODE, type NodeId } from "../../core/index.ts";

/**
 * Storage tiers as bits. A node's residency and a mask of allowed tiers are sums of them. A lower
 * bit is a faster tier. The values are those of the engine protocol.
 */
export const Tier = { gpu: 1, ram: 2, ssd: 4, peer: 8 } as const;
export type Tier = (typeof Tier)[keyof typeof Tier];

const TIER_COUNT = 4;
export const TIERS_ALL = Tier.gpu | Tier.ram | Tier.ssd | Tier.peer;

/** Tiers from which Hearth itself evicts. Each has a recency list. */
export const RECENCY_TIERS = [Tier.ram, Tier.ssd] as const;
export type RecencyTier = (typeof RECENCY_TIERS)[number];

/** Returns the index of a tier in per-tier counts: 0 for the GPU, 1 for RAM, 2 for SSD. */
export function tierIndex(tier: Tier): number {
  return 31 - Math.clz32(tier);
}

/** Flags of a node. Callers of the table set `transient`; the table itself sets the others. */
export const NodeFlag = {
  /**
   * The node was named as a parent but never inserted: its key, namespace and layer are known, its
   * digest and parent are not.
   */
  ghost: 1 << 4,
  /** An engine is writing the bytes of the block. */
  writing: 1 << 5,
  /** RAM must not evict the block. */
  ramProtected: 1 << 6,
  /** The block is never written to SSD and may be purged at any time. */
  transient: 1 << 7,
  /** The block or one of its descendants is pinned. */
  kept: 1 << 9,
} as const;

/** Maximum of the use counter. The counter stays there. */
export const USES_MAX = 0xffff;

export const KEY_WORDS = 8;
export const DIGEST_LENGTH = 32;
export const MAC_LENGTH = 16;
export const NAMESPACE_MAX = 0xffff;

/**
 * The nodes of one tier that may be evicted, as a ring with links in both directions through entry
 * 0: `older[0]` is the newest node, `newer[0]` the oldest. Invariant: every node is newer than all
 * its descendants in the list.
 */
export interface RecencyList {
  readonly tier: RecencyTier;
  /** A node with any of these flags is not in the list. */
  readonly guards: number;
  readonly newer: Int32Array;
  readonly older: Int32Array;
  blocks: number;
  bytes: number;
}

/** Callbacks of the table. They may read the table but must not change it. */
export interface TableListeners {
  /** Called when the protection of a node in RAM begins (`true`) or ends. */
  readonly onProtection?: (node: NodeId, on: boolean) => void;
  /**
   * Called when a pinned node (or ancestor of one) is in RAM and not on SSD, so that RAM must keep
   * it.
   */
  readonly onInRamAlone?: (node: NodeId) => void;
  /**
   * Called when a block was added to a tier (`true`) or removed from it. After a removal the node
   * may be removed when this call returns.
   */
  readonly onResidency?: (node: NodeId, tier: Tier, on: boolean) => void;
}

/**
 * Memory of the table: entry `n` of each column belongs to node `n`; entry 0 is unused. Columns
 * that are never written (for example the SSD list without an SSD) take address space but no
 * memory.
 *
 * `meta` packs the residency (bits 0-3), `NodeFlag`s (bits 4-9) and the namespace (bits 16-31). It
 * is zero if and only if the node is free. Free nodes are linked by `nextSibling`.
 */
export type NodeColumns = ReturnType<typeof createNodeColumns>;

export function createNodeColumns(nodesMax: number, listeners: TableListeners) {
  const entries = nodesMax + 1;
  const u32 = (perNode = 1) => new Uint32Array(new ArrayBuffer(entries * 4 * perNode));
  const i32 = () => new Int32Array(new ArrayBuffer(entries * 4));
  const u16 = () => new Uint16Array(new ArrayBuffer(entries * 2));
  const list = (tier: RecencyTier, guards: number): RecencyList => {
    return { tier, guards, newer: i32(), older: i32(), blocks: 0, bytes: 0 };
  };
  try {
    const ramList = list(Tier.ram, NodeFlag.ramProtected);
    const ssdList = list(Tier.ssd, NodeFlag.ramProtected | NodeFlag.kept);
    return {
      nodesMax,
      keys: u32(KEY_WORDS),
      digests: new Uint8Array(new ArrayBuffer(entries * DIGEST_LENGTH)),
      layer: u32(),
      meta: i32(),
      generation: u32(),
      parent: i32(),
      firstChild: i32(),
      nextSibling: i32(),
      prevSibling: i32(),
      locks: u32(),
      pins: u32(),
      /** Number of children of each node with `NodeFlag.ramProtected`, and with `NodeFlag.kept`. */
      protectedChildren: i32(),
      keptChildren: i32(),
      gpuHolders: u16(),
      bytes: u32(),
      slot: u32(),
      slotGeneration: u32(),
      /** Payload checksum of each node: low word, then high word. */
      checksum: u32(2),
      /** MAC of each node, `MAC_LENGTH` bytes. All zero: no MAC. */
      macs: new Uint8Array(new ArrayBuffer(entries * MAC_LENGTH)),
      uses: u16(),
      lastUsed: u32(),
      ramList,
      ssdList,
      /** Recency lists of RAM and SSD. */
      lists: [ramList, ssdList],
      residentBlocks: new Float64Array(TIER_COUNT),
      residentBytes: new Float64Array(TIER_COUNT),
      /**
       * Bytes of nodes with the `kept` flag in RAM or on SSD, and of those that are in RAM and not
       * on SSD.
       */
      keptBytes: 0,
      keptInRamAloneBytes: 0,
      listeners: {
        onProtection: listeners.onProtection ?? (() => undefined),
        onInRamAlone: listeners.onInRamAlone ?? (() => undefined),
        onResidency: listeners.onResidency ?? (() => undefined),
      },
      /** Number of nodes in use. */
      count: 0,
      /** Highest node id that was ever in use. */
      highest: 0,
      firstFree: 0,
    };
  } catch (cause) {
    throw new HearthError("LIMIT", `no address space for a block table of ${nodesMax} nodes`, {
      cause,
      fix: "lower the number of blocks",
    });
  }
}

/**
 * Takes a free node and sets namespace and flags. The caller writes key and digest; all other
 * columns are zero. Returns NO_NODE if none is free.
 */
export function takeNode(columns: NodeColumns, namespace: NamespaceIndex, flags: number): NodeId {
  let node = columns.firstFree;
  if (node !== 0) {
    columns.firstFree = columns.nextSibling[node];
    columns.nextSibling[node] = 0;
  } else {
    if (columns.highest === columns.nodesMax) return NO_NODE;
    node = ++columns.highest;
  }
  columns.meta[node] = (namespace << 16) | flags;
  columns.count++;
  return node as NodeId;
}

/** Frees a node. It must be in no list and have no parent, children, locks or pins. */
export function giveNode(columns: NodeColumns, node: number): void {
  columns.meta[node] = 0;
  columns.generation[node] = columns.generation[node] + 1;
  columns.layer[node] = 0;
  columns.bytes[node] = 0;
  columns.slot[node] = 0;
  columns.slotGeneration[node] = 0;
  columns.checksum[node * 2] = 0;
  columns.checksum[node * 2 + 1] = 0;
  clearMac(columns, node);
  columns.uses[node] = 0;
  columns.lastUsed[node] = 0;
  columns.nextSibling[node] = columns.firstFree;
  columns.firstFree = node;
  columns.count--;
}

/**
 * Clears the MAC. Writes only bytes that are not zero: memory pages that are never written take no
 * physical memory.
 */
function clearMac({ macs }: NodeColumns, node: number): void {
  const start = node * MAC_LENGTH;
  for (let at = start; at < start + MAC_LENGTH; at++) if (macs[at] !== 0) macs[at] = 0;
}
