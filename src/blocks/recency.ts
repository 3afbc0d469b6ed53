import type { NodeColumns, RecencyList } from "./node-columns.ts";
import { NodeFlag } from "./table-view.ts";

/**
 * How the lists keep every node newer than all its descendants, whatever lies between them (ghosts,
 * nodes on other tiers):
 *
 * - A node that comes onto a tier is linked just behind its nearest listed ancestor: older than
 *   that one, newer than all that one's other descendants, hence than its own. Without a listed
 *   ancestor it becomes the newest of all. A protected ancestor ends the search: above it all are
 *   protected, hence unlisted.
 * - A path is touched from the bottom up, so that each node ends behind its parent and ahead of all
 *   else.
 * - A subtree that gains a parent: the path from that parent upwards is touched.
 * - What loses its protection comes in as the newest, the deepest first (`protection.ts`).
 */

function linkBehind(columns: NodeColumns, list: RecencyList, node: number, ahead: number): void {
  const { newer, older } = list;
  const behind = older[ahead]!;
  newer[node] = ahead;
  older[node] = behind;
  older[ahead] = node;
  newer[behind] = node;
  list.blocks++;
  list.bytes += columns.bytes[node]!;
}

function unlink(columns: NodeColumns, list: RecencyList, node: number): void {
  const { newer, older } = list;
  const ahead = newer[node]!;
  const behind = older[node]!;
  older[ahead] = behind;
  newer[behind] = ahead;
  list.blocks--;
  list.bytes -= columns.bytes[node]!;
}

function nearestListed(columns: NodeColumns, node: number, tier: number): number {
  const { meta, parent } = columns;
  for (let step = parent[node]!; step !== 0; step = parent[step]!) {
    const marks = meta[step]! & (tier | NodeFlag.protected);
    if (marks === tier) return step;
    if ((marks & NodeFlag.protected) !== 0) return 0;
  }
  return 0;
}

/** The node has just become resident on `tier`. */
export function enterTier(columns: NodeColumns, node: number, tier: number): void {
  if ((columns.meta[node]! & NodeFlag.protected) !== 0) return;
  for (const list of columns.lists) {
    if (list.tier === tier) linkBehind(columns, list, node, nearestListed(columns, node, tier));
  }
}

/** The node is about to lose, or has just lost, its residency on `tier`. */
export function leaveTier(columns: NodeColumns, node: number, tier: number): void {
  if ((columns.meta[node]! & NodeFlag.protected) !== 0) return;
  for (const list of columns.lists) if (list.tier === tier) unlink(columns, list, node);
}

/** The node has just become protected. */
export function leaveLists(columns: NodeColumns, node: number): void {
  const marks = columns.meta[node]!;
  for (const list of columns.lists) if ((marks & list.tier) !== 0) unlink(columns, list, node);
}

/** The node has just lost its protection. */
export function enterLists(columns: NodeColumns, node: number): void {
  const marks = columns.meta[node]!;
  for (const list of columns.lists) {
    if ((marks & list.tier) !== 0) linkBehind(columns, list, node, 0);
  }
}

/** Makes the node and then each of its ancestors the newest of the lists they are in. */
export function touchPath(columns: NodeColumns, node: number): void {
  const { meta, parent, lists } = columns;
  for (let step = node; step !== 0; step = parent[step]!) {
    const marks = meta[step]!;
    // Above a protected node all are protected: nobody there is in a list.
    if ((marks & NodeFlag.protected) !== 0) return;
    for (let i = 0; i < lists.length; i++) {
      const list = lists[i]!;
      if ((marks & list.tier) !== 0) moveToNewest(list, step);
    }
  }
}

function moveToNewest(list: RecencyList, node: number): void {
  const { newer, older } = list;
  const ahead = newer[node]!;
  if (ahead === 0) return;
  const behind = older[node]!;
  const newest = older[0]!;
  older[ahead] = behind;
  newer[behind] = ahead;
  newer[node] = 0;
  older[node] = newest;
  newer[newest] = node;
  older[0] = node;
}
