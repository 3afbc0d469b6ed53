import type { NodeId } from "../../core/index.ts";
import { type NodeColumns, NodeFlag, type RecencyList, Tier } from "./node-columns.ts";

/**
 * Recency lists of the tiers. Invariant: every node is newer than all its descendants in the list,
 * even if nodes between them (ghosts, nodes on other tiers) are not in the list. These rules keep
 * it:
 *
 * - A node that becomes resident on a tier is inserted as the next older neighbour of its nearest
 *   listed ancestor, so it is newer than all other descendants of that ancestor, its own included.
 *   If no ancestor is listed, it becomes the newest of all. The search ends at a guarded
 *   (protected) ancestor, because all ancestors of a guarded node are guarded and not listed.
 * - A use moves a node and then each of its ancestors to the newest end, so that each node ends as
 *   the next older neighbour of its parent.
 * - If a subtree gets a parent, that parent and its ancestors are moved to the newest end.
 * - Nodes whose protection ends are inserted as the newest, the deepest first.
 */

function linkBehind(columns: NodeColumns, list: RecencyList, node: number, ahead: number): void {
  const { newer, older } = list;
  const behind = older[ahead];
  newer[node] = ahead;
  older[node] = behind;
  older[ahead] = node;
  newer[behind] = node;
  list.blocks++;
  list.bytes += columns.bytes[node];
}

export function linkNewest(columns: NodeColumns, list: RecencyList, node: number): void {
  linkBehind(columns, list, node, 0);
}

export function unlink(columns: NodeColumns, list: RecencyList, node: number): void {
  const { newer, older } = list;
  const ahead = newer[node];
  const behind = older[node];
  older[ahead] = behind;
  newer[behind] = ahead;
  list.blocks--;
  list.bytes -= columns.bytes[node];
}

/** Returns whether a node with these flags must not be evicted from the list's tier. */
export function isGuarded(list: RecencyList, marks: number): boolean {
  return (marks & list.guards) !== 0;
}

/** Returns whether a node with these flags is in the list. */
export function isListed(list: RecencyList, marks: number): boolean {
  return (marks & (list.tier | list.guards)) === list.tier;
}

function nearestListed(columns: NodeColumns, list: RecencyList, node: number): number {
  const { meta, parent } = columns;
  for (let step = parent[node]; step !== 0; step = parent[step]) {
    const marks = meta[step];
    if (isListed(list, marks)) return step;
    if (isGuarded(list, marks)) return 0;
  }
  return 0;
}

/** Adds the node to the recency list of `tier`. Call after the node became resident there. */
export function enterTier(columns: NodeColumns, node: number, tier: number): void {
  const { lists } = columns;
  for (let i = 0; i < lists.length; i++) {
    const list = lists[i];
    if (list.tier !== tier || isGuarded(list, columns.meta[node])) continue;
    linkBehind(columns, list, node, nearestListed(columns, list, node));
  }
}

/**
 * Removes the node from the recency list of `tier`. Call before the node's residency there is
 * cleared.
 */
export function leaveTier(columns: NodeColumns, node: number, tier: number): void {
  const { lists } = columns;
  for (let i = 0; i < lists.length; i++) {
    const list = lists[i];
    if (list.tier === tier && isListed(list, columns.meta[node])) unlink(columns, list, node);
  }
}

/** Makes the node and then each of its ancestors the newest of its lists. */
export function touchPath(columns: NodeColumns, node: number): void {
  const { meta, parent, lists } = columns;
  for (let step = node; step !== 0; step = parent[step]) {
    const marks = meta[step];
    if ((marks & NodeFlag.ramProtected) !== 0) return;
    for (let i = 0; i < lists.length; i++) {
      const list = lists[i];
      if (isListed(list, marks)) moveToNewest(list, step);
    }
  }
}

function moveToNewest(list: RecencyList, node: number): void {
  const { newer, older } = list;
  const ahead = newer[node];
  if (ahead === 0) return;
  const behind = older[node];
  const newest = older[0];
  older[ahead] = behind;
  newer[behind] = ahead;
  newer[node] = 0;
  older[node] = newest;
  newer[newest] = node;
  older[0] = node;
}

/**
 * Protection against eviction, as two flags. `kept`: the node or a descendant is pinned.
 * `ramProtected`: the node is locked, or kept and in RAM and not on SSD, or has a child with this
 * flag. RAM must not evict nodes with `ramProtected`, SSD not those with either flag. A kept node
 * without `ramProtected` may leave RAM, because SSD has a copy.
 *
 * Invariants: both flags are exact; `keptChildren` and `protectedChildren` count the children with
 * the flag; each list contains exactly the resident nodes that its tier may evict. All walks go
 * from a node to its ancestors and stop at the first one whose flag does not change, so n pins or
 * locks on a path of m nodes take n + m steps. Nodes that become evictable are inserted as the
 * newest, the deepest first.
 */

/**
 * Sets `ramProtected` on the node and its ancestors and removes them from the lists. Call after the
 * node was locked, or if it must stay in RAM.
 */
export function protect(columns: NodeColumns, node: number): void {
  const { meta, parent, protectedChildren, ramList, ssdList } = columns;
  let step = node;
  while ((meta[step] & NodeFlag.ramProtected) === 0) {
    const marks = meta[step];
    meta[step] = marks | NodeFlag.ramProtected;
    if (isListed(ramList, marks)) unlink(columns, ramList, step);
    if (isListed(ssdList, marks)) unlink(columns, ssdList, step);
    columns.listeners.onProtection(step as NodeId, true);
    step = parent[step];
    if (step === 0) return;
    protectedChildren[step] = protectedChildren[step] + 1;
  }
}

/**
 * Clears `ramProtected` on the node and its ancestors if nothing requires it any more. Call after a
 * lock was removed, or if the node need not stay in RAM.
 */
export function unprotect(columns: NodeColumns, node: number): void {
  const { meta, parent, protectedChildren, locks, ramList, ssdList } = columns;
  let step = node;
  while (locks[step] === 0 && protectedChildren[step] === 0 && !isInRamAlone(meta[step])) {
    if ((meta[step] & NodeFlag.ramProtected) === 0) return;
    const marks = meta[step] & ~NodeFlag.ramProtected;
    meta[step] = marks;
    if (isListed(ramList, marks)) linkNewest(columns, ramList, step);
    if (isListed(ssdList, marks)) linkNewest(columns, ssdList, step);
    columns.listeners.onProtection(step as NodeId, false);
    step = parent[step];
    if (step === 0) return;
    protectedChildren[step] = protectedChildren[step] - 1;
  }
}

/** Sets `kept` on the node and its ancestors. Call after the node was pinned. */
export function keep(columns: NodeColumns, node: number): void {
  const { meta, parent, keptChildren, ssdList } = columns;
  let step = node;
  while ((meta[step] & NodeFlag.kept) === 0) {
    const marks = meta[step];
    meta[step] = marks | NodeFlag.kept;
    if (isListed(ssdList, marks)) unlink(columns, ssdList, step);
    residencyChanged(columns, step, marks);
    step = parent[step];
    if (step === 0) return;
    keptChildren[step] = keptChildren[step] + 1;
  }
}

/**
 * Clears `kept` on the node and its ancestors if no pin requires it any more. Call after the last
 * pin of the node was removed.
 */
export function unkeep(columns: NodeColumns, node: number): void {
  const { meta, parent, keptChildren, pins, ssdList } = columns;
  let step = node;
  while (pins[step] === 0 && keptChildren[step] === 0) {
    const before = meta[step];
    meta[step] = before & ~NodeFlag.kept;
    if (isListed(ssdList, before & ~NodeFlag.kept)) linkNewest(columns, ssdList, step);
    residencyChanged(columns, step, before);
    step = parent[step];
    if (step === 0) return;
    keptChildren[step] = keptChildren[step] - 1;
  }
}

/**
 * Passes the protection of a node to its new parent. Call after the node was linked under `parent`
 * together with its subtree.
 */
export function protectParent(columns: NodeColumns, node: number, parent: number): void {
  const marks = columns.meta[node];
  if ((marks & NodeFlag.kept) !== 0) {
    columns.keptChildren[parent] = columns.keptChildren[parent] + 1;
    keep(columns, parent);
  }
  if ((marks & NodeFlag.ramProtected) !== 0) {
    columns.protectedChildren[parent] = columns.protectedChildren[parent] + 1;
    protect(columns, parent);
  }
}

/**
 * Updates the totals of kept bytes, and protects the node in RAM while it is kept and only RAM has
 * it. Call after a change of residency or of `kept`. `before`: the node's flags before the change.
 */
export function residencyChanged(columns: NodeColumns, node: number, before: number): void {
  const { meta, bytes } = columns;
  const now = meta[node];
  if (((before | now) & NodeFlag.kept) === 0) return;
  columns.keptBytes += (keptOnTiers(now) - keptOnTiers(before)) * bytes[node];
  const is = isInRamAlone(now);
  if (is === isInRamAlone(before)) return;
  columns.keptInRamAloneBytes += (is ? 1 : -1) * bytes[node];
  if (!is) {
    unprotect(columns, node);
    return;
  }
  protect(columns, node);
  columns.listeners.onInRamAlone(node as NodeId);
}

/** Returns whether a node with these flags is kept, in RAM and not on SSD. */
export function isInRamAlone(marks: number): boolean {
  return (marks & IN_RAM_ALONE) === (NodeFlag.kept | Tier.ram);
}

const IN_RAM_ALONE = NodeFlag.kept | Tier.ram | Tier.ssd;

/** Returns 1 if a node with these flags is kept and in RAM or on SSD, otherwise 0. */
export function keptOnTiers(marks: number): number {
  return (marks & NodeFlag.kept) !== 0 && (marks & (Tier.ram | Tier.ssd)) !== 0 ? 1 : 0;
}
