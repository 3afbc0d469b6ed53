import type { Clock, NodeId } from "../../core/index.ts";
import type { BlockTable } from "../blocks/index.ts";
import type { HoldRow, LedgerContents } from "../index/index.ts";
import type { Hold } from "./hold.ts";

/** Digest, and layer as u32 little-endian. */
const BLOCK_BYTES = 36;
const LAYER_AT = 32;

/** As a row has them. */
export function blocksOf(
  nodes: Iterable<NodeId> & { readonly size: number },
  table: BlockTable,
): Uint8Array {
  const blocks = new Uint8Array(nodes.size * BLOCK_BYTES);
  const view = new DataView(blocks.buffer);
  let at = 0;
  for (const node of nodes) {
    table.readDigest(node, blocks, at);
    view.setUint32(at + LAYER_AT, table.layerOf(node), true);
    at += BLOCK_BYTES;
  }
  return blocks;
}

export function rowOf(hold: Hold, blocks: Uint8Array, bootId: string): HoldRow {
  const { id, kind, owner, name, deadlineBootMs, priority, idleMs, createdWallMs } = hold;
  const { purges } = hold;
  return {
    id,
    kind,
    owner,
    name,
    deadlineBootMs,
    bootId,
    priority,
    idleMs,
    createdWallMs,
    purges,
    blocks,
  };
}

/** Names, numbers and what stands around them, at most. */
const ROW_BYTES = 512;

/** Rows of as many holds as fit into about `bytesMax`, soft pins last. */
export function rowsWithin(
  holds: Iterable<Hold>,
  bytesMax: number,
  table: BlockTable,
  bootId: string,
): HoldRow[] {
  const all = [...holds];
  const isSoft = ({ kind }: Hold) => kind === "retain";
  const rows: HoldRow[] = [];
  let bytes = 0;
  for (const hold of [...all.filter((hold) => !isSoft(hold)), ...all.filter(isSoft)]) {
    bytes += ROW_BYTES + hold.nodes.size * BLOCK_BYTES;
    if (bytes > bytesMax) break;
    rows.push(rowOf(hold, blocksOf(hold.nodes, table), bootId));
  }
  return rows;
}

function blockAt(blocks: Uint8Array, index: number): { digest: Uint8Array; layer: number } {
  const at = index * BLOCK_BYTES;
  const layer = new DataView(blocks.buffer, blocks.byteOffset).getUint32(at + LAYER_AT, true);
  return { digest: blocks.subarray(at, at + LAYER_AT), layer };
}

/**
 * When a hold that was written down ends, on the clock of this boot; null: never. Of the same boot
 * that is what the row says. Of another one: what was left of it when that boot was last seen,
 * counted from now, so that time during which the machine was off does not count. Where nothing was
 * seen of the row's boot: all the time there can have been, at most `longestMs`.
 */
export function deadlineNow(
  row: HoldRow,
  lastSeen: LedgerContents["lastSeen"],
  clock: Pick<Clock, "bootId" | "bootMs">,
  longestMs: number,
): number | null {
  if (row.deadlineBootMs === null) return null;
  const now = clock.bootMs();
  if (isThisBoot(row, lastSeen, clock)) return row.deadlineBootMs;
  const seenMs = lastSeen !== null && lastSeen.bootId === row.bootId ? lastSeen.bootMs : null;
  const leftMs = seenMs === null ? longestMs : row.deadlineBootMs - seenMs;
  return now + Math.max(0, Math.min(leftMs, row.deadlineBootMs));
}

/** Where the system does not name its boots, a clock that went back tells that there was one. */
function isThisBoot(
  row: HoldRow,
  lastSeen: LedgerContents["lastSeen"],
  clock: Pick<Clock, "bootId" | "bootMs">,
): boolean {
  if (row.bootId !== clock.bootId) return false;
  return row.bootId !== "" || lastSeen === null || lastSeen.bootMs <= clock.bootMs();
}

/** The node of each block that is there; what is not is counted. */
export function nodesOf(
  blocks: Uint8Array,
  find: (digest: Uint8Array, layer: number) => NodeId | null,
): { readonly nodes: NodeId[]; readonly missing: number } {
  const nodes: NodeId[] = [];
  const count = Math.floor(blocks.length / BLOCK_BYTES);
  for (let i = 0; i < count; i++) {
    const { digest, layer } = blockAt(blocks, i);
    const node = find(digest, layer);
    if (node !== null) nodes.push(node);
  }
  return { nodes, missing: count - nodes.length };
}
