import type { NodeColumns, RecencyList } from "./node-columns.ts";
import { NodeFlag } from "./table-view.ts";

/**
 * How the lists keep every node newer than all its descendants, whatever lies between them (ghosts,
 * nodes on other tiers):
 *
 * - A node that comes onto a tier is linked just behind its nearest listed ancestor: older than
 *   that one, newer than all that one's other descendants, hence than its own. Without a listed
 *   ancestor it becomes the newest of all. An ancestor that the tier may not give up ends the
 *   search: above it the same holds of all, hence they are unlisted.
 * - A path is touched from the bottom up, so that each node ends behind its parent and ahead of all
 *   else.
 * - A subtree that gains a parent: the path from that parent upwards is touched.
 * - What its tier may give up again comes in as the newest, the deepest first (`protection.ts`).
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

export function linkNewest(columns: NodeColumns, list: RecencyList, node: number): void {
  linkBehind(columns, list, node, 0);
}

export function unlink(columns: NodeColumns, list: RecencyList, node: number): void {
  const { newer, older } = list;
  const ahead = newer[node]!;
  const behind = older[node]!;
  older[ahead] = behind;
  newer[behind] = ahead;
  list.blocks--;
  list.bytes -= columns.bytes[node]!;
}

/** Whether the tier may not give up a node with these marks. */
export function isGuarded(list: RecencyList, marks: number): boolean {
  return (marks & list.guards) !== 0;
}

/** Whether a node with these marks stands in the list. */
export function isListed(list: RecencyList, marks: number): boolean {
  return (marks & (list.tier | list.guards)) === list.tier;
}

function nearestListed(columns: NodeColumns, list: RecencyList, node: number): number {
  const { meta, parent } = columns;
  for (let step = parent[node]!; step !== 0; step = parent[step]!) {
    const marks = meta[step]!;
    if (isListed(list, marks)) return step;
    if (isGuarded(list, marks)) return 0;
  }
  return 0;
}

/** The node has just become resident on `tier`. */
export function enterTier(columns: NodeColumns, node: number, tier: number): void {
  const { lists } = columns;
  for (let i = 0; i < lists.length; i++) {
    const list = lists[i]!;
    if (list.tier !== tier || isGuarded(list, columns.meta[node]!)) continue;
    linkBehind(columns, list, node, nearestListed(columns, list, node));
  }
}

/** The node is about to lose its residency on `tier`. */
export function leaveTier(columns: NodeColumns, node: number, tier: number): void {
  const { lists } = columns;
  for (let i = 0; i < lists.length; i++) {
    const list = lists[i]!;
    if (list.tier === tier && isListed(list, columns.meta[node]!)) unlink(columns, list, node);
  }
}

/** Makes the node and then each of its ancestors the newest of the lists they are in. */
export function touchPath(columns: NodeColumns, node: number): void {
  const { meta, parent, lists } = columns;
  for (let step = node; step !== 0; step = parent[step]!) {
    const marks = meta[step]!;
    // Above a node that RAM may not give up all are such: nobody there is in any list.
    if ((marks & NodeFlag.ramProtected) !== 0) return;
    for (let i = 0; i < lists.length; i++) {
      const list = lists[i]!;
      if (isListed(list, marks)) moveToNewest(list, step);
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
