import { DIGEST_BYTES, type HeldBy, NO_NODE, type NodeId } from "../../core/index.ts";
import { NodeFlag, type TableView, Tier } from "../blocks/index.ts";
import type { Namespaces } from "../namespaces.ts";
import type { TierLabel, TreeBlock } from "./inspector.ts";

/** Children that are counted of one block. */
const CHILDREN_MAX = 1_000;

const LABELS: readonly (readonly [Tier, TierLabel])[] = [
  [Tier.gpu, "gpu"],
  [Tier.ram, "ram"],
  [Tier.ssd, "ssd"],
];

export interface BlockFacts {
  readonly table: TableView;
  readonly namespaces: Namespaces;
  readonly nowSeconds: number;
  /** Asked only where something keeps the block. */
  readonly holdersOf: (node: NodeId) => readonly HeldBy[];
}

export function treeBlock(facts: BlockFacts, node: NodeId, depth: number): TreeBlock {
  const { table, namespaces, nowSeconds } = facts;
  const parent = table.parentOf(node);
  const uses = table.usesOf(node);
  const isHeld = table.isProtected(node, Tier.ssd);
  return {
    digest: digestOf(table, node),
    layer: table.layerOf(node),
    namespace: namespaces.keyOf(table.namespaceOf(node))?.toHex() ?? "",
    parent: parent === NO_NODE ? null : digestOf(table, parent),
    depth,
    bytes: table.bytesOf(node),
    tiers: tiersOf(table, node),
    pins: table.pinsOf(node),
    locks: table.locksOf(node),
    heldBy: isHeld ? facts.holdersOf(node) : [],
    transient: table.hasFlag(node, NodeFlag.transient),
    uses,
    idleSeconds: uses === 0 ? null : Math.max(0, nowSeconds - table.lastUsedOf(node)),
    children: childrenOf(table, node),
    aliases: table.aliasesOf(node).map(aliasText),
  };
}

function digestOf(table: TableView, node: NodeId): string | null {
  if (table.isGhost(node)) return null;
  const digest = new Uint8Array(DIGEST_BYTES);
  table.readDigest(node, digest, 0);
  return digest.toHex();
}

/** The fastest first. */
export function tiersOf(table: TableView, node: NodeId): TierLabel[] {
  return LABELS.flatMap(([tier, label]) => (table.isResident(node, tier) ? [label] : []));
}

function childrenOf(table: TableView, node: NodeId): number {
  let count = 0;
  let child = table.firstChildOf(node);
  for (; child !== NO_NODE && count < CHILDREN_MAX; count++) child = table.nextSiblingOf(child);
  return count;
}

function aliasText(alias: Uint8Array): string {
  if (alias.length !== 8) return alias.toHex();
  return new DataView(alias.buffer, alias.byteOffset, 8).getBigUint64(0, true).toString();
}
