import { HearthError, type NamespaceIndex, NO_NODE, type NodeId } from "../../core/index.ts";
import { NodeFlag, type RecencyTier, TIER_COUNT, Tier } from "./block-table.ts";

export const KEY_WORDS = 8;
export const DIGEST_LENGTH = 32;
export const MAC_LENGTH = 16;
export const NAMESPACE_MAX = 0xffff;

/**
 * The nodes of one tier that may be evicted, doubly linked in a ring through entry 0: `older[0]` is
 * the newest, `newer[0]` the oldest. Invariant: every node is newer than all its descendants in the
 * list.
 */
export interface RecencyList {
  readonly tier: RecencyTier;
  /** Any of these flags keeps a node out of the list. */
  readonly guards: number;
  readonly newer: Int32Array;
  readonly older: Int32Array;
  blocks: number;
  bytes: number;
}

/**
 * Memory of the table: entry `n` of each column belongs to node `n`; entry 0 is unused. Columns
 * that are never written (for example the SSD list without an SSD) take address space but no
 * memory.
 *
 * `meta` packs the residency (bits 0-3), `NodeFlag`s (bits 4-9) and the namespace (bits 16-31). It
 * is zero if and only if the node is free. Free nodes are linked by `nextSibling`.
 */
export interface NodeColumns {
  readonly nodesMax: number;
  readonly keys: Uint32Array;
  readonly digests: Uint8Array;
  readonly layer: Uint32Array;
  readonly meta: Int32Array;
  readonly generation: Uint32Array;
  readonly parent: Int32Array;
  readonly firstChild: Int32Array;
  readonly nextSibling: Int32Array;
  readonly prevSibling: Int32Array;
  readonly locks: Uint32Array;
  readonly pins: Uint32Array;
  /** Number of children with `NodeFlag.ramProtected`, and with `NodeFlag.kept`. */
  readonly protectedChildren: Int32Array;
  readonly keptChildren: Int32Array;
  readonly gpuHolders: Uint16Array;
  readonly bytes: Uint32Array;
  readonly slot: Uint32Array;
  readonly slotGeneration: Uint32Array;
  /** Low and high word per node. */
  readonly checksum: Uint32Array;
  /** `MAC_LENGTH` bytes per node. All zero: no MAC. */
  readonly macs: Uint8Array;
  readonly uses: Uint16Array;
  readonly lastUsed: Uint32Array;
  readonly ramList: RecencyList;
  readonly ssdList: RecencyList;
  /** The lists of RAM and SSD. */
  readonly lists: readonly RecencyList[];
  readonly residentBlocks: Float64Array;
  readonly residentBytes: Float64Array;
  /** Bytes of kept nodes in RAM or on SSD, and of those that are in RAM alone. */
  keptBytes: number;
  keptInRamAloneBytes: number;
  readonly listeners: Required<TableListeners>;
  /** Number of nodes in use. */
  count: number;
  /** Nodes above this one were never used. */
  highest: number;
  firstFree: number;
}

/** Listeners may read the table but must not change it. */
export interface TableListeners {
  /** Called when the protection of a node in RAM begins (`true`) or ends. */
  readonly onProtection?: (node: NodeId, on: boolean) => void;
  /** Called when a kept node is in RAM and not on SSD, which keeps it in RAM. */
  readonly onInRamAlone?: (node: NodeId) => void;
  /**
   * Called when a block was added to a tier or removed from it. After a removal the node may vanish
   * when this call returns.
   */
  readonly onResidency?: (node: NodeId, tier: Tier, on: boolean) => void;
}

export function createNodeColumns(nodesMax: number, listeners: TableListeners): NodeColumns {
  const entries = nodesMax + 1;
  const u32 = (perNode = 1) => new Uint32Array(new ArrayBuffer(entries * 4 * perNode));
  const i32 = () => new Int32Array(new ArrayBuffer(entries * 4));
  const u16 = () => new Uint16Array(new ArrayBuffer(entries * 2));
  const list = (tier: RecencyTier, guards: number) => {
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
      protectedChildren: i32(),
      keptChildren: i32(),
      gpuHolders: u16(),
      bytes: u32(),
      slot: u32(),
      slotGeneration: u32(),
      checksum: u32(2),
      macs: new Uint8Array(new ArrayBuffer(entries * MAC_LENGTH)),
      uses: u16(),
      lastUsed: u32(),
      ramList,
      ssdList,
      lists: [ramList, ssdList],
      residentBlocks: new Float64Array(TIER_COUNT),
      residentBytes: new Float64Array(TIER_COUNT),
      keptBytes: 0,
      keptInRamAloneBytes: 0,
      listeners: {
        onProtection: listeners.onProtection ?? (() => undefined),
        onInRamAlone: listeners.onInRamAlone ?? (() => undefined),
        onResidency: listeners.onResidency ?? (() => undefined),
      },
      count: 0,
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
 * Takes a free node. The caller writes key and digest; all other columns are zero. NO_NODE: none is
 * free.
 */
export function takeNode(columns: NodeColumns, namespace: NamespaceIndex, flags: number): NodeId {
  let node = columns.firstFree;
  if (node !== 0) {
    columns.firstFree = columns.nextSibling[node]!;
    columns.nextSibling[node] = 0;
  } else {
    if (columns.highest === columns.nodesMax) return NO_NODE;
    node = ++columns.highest;
  }
  columns.meta[node] = (namespace << 16) | flags;
  columns.count++;
  return node as NodeId;
}

/** Frees a node that is in no list, has no relatives, and has nothing that keeps it alive. */
export function giveNode(columns: NodeColumns, node: number): void {
  columns.meta[node] = 0;
  columns.generation[node] = columns.generation[node]! + 1;
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

/** Writes only if there is a MAC: pages that were never written take no memory. */
function clearMac({ macs }: NodeColumns, node: number): void {
  const start = node * MAC_LENGTH;
  for (let at = start; at < start + MAC_LENGTH; at++) if (macs[at] !== 0) macs[at] = 0;
}
