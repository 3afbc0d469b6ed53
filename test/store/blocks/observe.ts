import { NO_NODE, type NodeId } from "../../../src/core/index.ts";
import { type BlockTable, RECENCY_TIERS, Tier } from "../../../src/store/blocks/index.ts";
import { digestBytes, FLAGS_ALL, keyWords, pageBytes } from "./blocks.ts";
import {
  descendants,
  flags,
  isInRamAlone,
  isKept,
  isProtected,
  listOf,
  type ModelNode,
  residency,
  type TableModel,
} from "./model.ts";

const TIERS = Object.values(Tier);
type IdOf = (node: ModelNode | null | undefined) => NodeId;

/**
 * Everything that can be read of the table, and of names below `names`, and what the model says of
 * the same.
 */
export function observe(
  table: BlockTable,
  model: TableModel,
  keys: number,
  names: number,
): { readonly read: unknown[]; readonly said: unknown[] } {
  const read: unknown[] = [];
  const said: unknown[] = [];
  const id: IdOf = (node) => (node ? table.find(keyWords(node.key), 0) : NO_NODE);
  for (let key = 0; key < keys; key++) {
    const node = model.nodes.get(key);
    if (node === undefined) {
      read.push(table.find(keyWords(key), 0));
      said.push(NO_NODE);
    } else {
      read.push(readNode(table, id(node)));
      said.push(sayNode(node, id));
    }
  }
  for (const tier of RECENCY_TIERS) {
    const list = model.lists.get(tier)!;
    read.push(listOf(table, tier), table.evictableBlocks(tier), table.evictableBytes(tier));
    said.push(list.map(id), list.length, total(list));
  }
  for (const tier of TIERS) {
    const nodes = [...model.nodes.values()].filter((node) => node.tiers.has(tier));
    read.push(table.residentBlocks(tier), table.residentBytes(tier));
    said.push(nodes.length, total(nodes));
  }
  for (let name = 0; name < names; name++) {
    read.push(...readNames(table, name));
    said.push(...sayNames(model, name, id));
  }
  const kept = [...model.nodes.values()].filter(isKept);
  read.push(table.keptBytes, table.keptInRamAloneBytes);
  said.push(total(kept.filter(isOnDiskOrInRam)), total(kept.filter(isInRamAlone)));
  read.push(table.nodeCount, table.aliasCount);
  said.push(model.nodes.size, model.aliases.length + model.pages.length);
  return { read, said };
}

function readNode(table: BlockTable, id: NodeId): unknown[] {
  const key = new Uint32Array(8);
  const digest = new Uint8Array(32);
  table.readKey(id, key, 0);
  table.readDigest(id, digest, 0);
  const walk: NodeId[] = [];
  for (let at = table.successorOf(id, id); at !== NO_NODE; at = table.successorOf(at, id)) {
    walk.push(at);
  }
  return [
    key[5],
    digest,
    table.layerOf(id),
    table.namespaceOf(id),
    table.residencyOf(id),
    TIERS.map((tier) => table.isResident(id, tier)),
    Array.from({ length: 10 }, (_, bit) => table.hasFlag(id, FLAGS_ALL & (1 << bit))),
    [table.isGhost(id), table.isWriting(id), table.isKept(id)],
    RECENCY_TIERS.map((tier) => table.isProtected(id, tier)),
    [table.locksOf(id), table.pinsOf(id), table.columns.gpuHolders[id]],
    [table.bytesOf(id), table.slotOf(id), table.slotGenerationOf(id)],
    [table.checksumLoOf(id), table.checksumHiOf(id), table.usesOf(id), table.lastUsedOf(id)],
    [table.parentOf(id), table.firstChildOf(id), table.nextSiblingOf(id)],
    walk,
    TIERS.map((tier) => table.isLeafOn(id, tier)),
  ];
}

function sayNode(node: ModelNode, id: IdOf): unknown[] {
  const siblings = node.parent?.children ?? [];
  const below = descendants(node);
  const marks = flags(node);
  return [
    node.key,
    node.ghost ? new Uint8Array(32) : digestBytes(node.key),
    3,
    node.namespace,
    residency(node),
    TIERS.map((tier) => node.tiers.has(tier)),
    Array.from({ length: 10 }, (_, bit) => (marks & (1 << bit)) !== 0),
    [node.ghost, node.writing, isKept(node)],
    RECENCY_TIERS.map((tier) => isProtected(node, tier)),
    [node.locks, node.pins, node.gpuHolders],
    [node.bytes, node.slot, node.slotGeneration],
    [...node.checksum, node.uses, node.lastUsed],
    [id(node.parent), id(node.children[0]), id(siblings[siblings.indexOf(node) + 1])],
    below.map(id),
    TIERS.map((tier) => !below.some((other) => other.tiers.has(tier))),
  ];
}

function readNames(table: BlockTable, name: number): unknown[] {
  const out = new Int32Array(table.nodesMax);
  const hashes = [...out.subarray(0, table.nodesOfAlias(name, 0xffff_ffff, out))];
  const pages = [...out.subarray(0, table.nodesOfSha256(pageBytes(name), 3, out))];
  return [hashes, pages];
}

function sayNames(model: TableModel, name: number, id: IdOf): unknown[] {
  return [model.aliases, model.pages].flatMap((names) => {
    const nodes = names.filter(([other]) => other === name).map(([, node]) => node);
    return [nodes.map(id)];
  });
}

function isOnDiskOrInRam({ tiers }: ModelNode): boolean {
  return tiers.has(Tier.ram) || tiers.has(Tier.ssd);
}

function total(nodes: readonly ModelNode[]): number {
  return nodes.reduce((sum, node) => sum + node.bytes, 0);
}
