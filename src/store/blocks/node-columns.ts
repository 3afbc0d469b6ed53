import { HearthError, type NamespaceIndex, NO_NODE, type NodeId } from "../../core/index.ts";
import { NodeFlag, type RecencyTier, TIER_COUNT, Tier } from "./block-table.ts";

export const KEY_WORDS = 8;
export const DIGEST_LENGTH = 32;
export const MAC_LENGTH = 16;
export const NAMESPACE_MAX = 0xffff;

/**
 * All nodes resident on one tier that it may give up, doubly linked in a ring through entry 0:
 * `older[0]` is the newest, `newer[0]` the oldest. Invariant: every node is newer than all its
 * descendants in the list.
 */
export interface RecencyList {
  readonly tier: RecencyTier;
  /** The flags of which each keeps a node out of the list. */
  readonly guards: number;
  readonly newer: Int32Array;
  readonly older: Int32Array;
  blocks: number;
  bytes: number;
}

/**
 * The table's memory: entry `n` of each column belongs to node `n`, entry 0 to none. Untouched
 * columns (the SSD list without an SSD, say) cost address space, not memory.
 *
 * `meta` packs residency (bits 0-3), `NodeFlag`s (bits 4-9) and namespace (bits 16-31); it is zero
 * exactly where the node is free. A free node links to the next free one by `nextSibling`.
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
  /** Children with `NodeFlag.ramProtected`, and with `NodeFlag.kept`. */
  readonly protectedChildren: Int32Array;
  readonly keptChildren: Int32Array;
  readonly gpuHolders: Uint16Array;
  readonly bytes: Uint32Array;
  readonly slot: Uint32Array;
  readonly slotGeneration: Uint32Array;
  /** Low and high word a node. */
  readonly checksum: Uint32Array;
  /** `MAC_LENGTH` bytes a node; all zero: it has none. */
  readonly macs: Uint8Array;
  readonly uses: Uint16Array;
  readonly lastUsed: Uint32Array;
  readonly ramList: RecencyList;
  readonly ssdList: RecencyList;
  /** Both. */
  readonly lists: readonly RecencyList[];
  readonly residentBlocks: Float64Array;
  readonly residentBytes: Float64Array;
  /** Bytes of kept nodes in RAM or on SSD, and of those among them that are in RAM alone. */
  keptBytes: number;
  keptInRamAloneBytes: number;
  readonly listeners: Required<TableListeners>;
  /** Nodes in use. */
  count: number;
  /** Nodes above this one were never used. */
  highest: number;
  firstFree: number;
}

/** Must not call the table back but for reading. */
export interface TableListeners {
  /** Told when RAM may not give up a node from now on (`true`), and when it may again. */
  readonly onProtection?: (node: NodeId, on: boolean) => void;
  /** Told when a kept node comes to be in RAM and not on SSD: it stays there for want of a copy. */
  readonly onInRamAlone?: (node: NodeId) => void;
  /** Told when a block has come to a tier, or has left one and may vanish behind this call. */
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

/** Takes a free node, key and digest to be written, the rest zero. NO_NODE where there is none. */
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

/** Gives back a node that is in no list, has no relatives and nothing that holds it. */
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

/** Only if there is one: memory that was never written to is not there. */
export function clearMac({ macs }: NodeColumns, node: number): void {
  const start = node * MAC_LENGTH;
  for (let at = start; at < start + MAC_LENGTH; at++) if (macs[at] !== 0) macs[at] = 0;
}
