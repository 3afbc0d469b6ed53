import { DIGEST_BYTES, type NamespaceIndex, NO_NODE, type NodeId } from "../core/index.ts";
import { type BlockTable, NODES_PER_ALIAS_MAX } from "./blocks/index.ts";

/**
 * Digests of the blocks that engines call by `count` 64-bit hashes (little-endian): those that had
 * the name first, in this namespace and layer; zeros where there is none.
 */
export function resolveHashes(
  table: BlockTable,
  namespace: NamespaceIndex,
  layer: number,
  { hashes, count, digests }: { hashes: Uint8Array; count: number; digests: Uint8Array },
): void {
  const words = new DataView(hashes.buffer, hashes.byteOffset);
  const found = new Int32Array(NODES_PER_ALIAS_MAX);
  const isOurs = (node: number) =>
    table.namespaceOf(node as NodeId) === namespace && table.layerOf(node as NodeId) === layer;
  for (let i = 0; i < count; i++) {
    const low = words.getUint32(i * 8, true);
    const named = table.nodesOfAlias(low, words.getUint32(i * 8 + 4, true), found);
    const node = found.subarray(0, named).find(isOurs) ?? NO_NODE;
    const at = i * DIGEST_BYTES;
    if (node === NO_NODE) digests.fill(0, at, at + DIGEST_BYTES);
    else table.readDigest(node as NodeId, digests, at);
  }
}
