import type { NodeId } from "../core/index.ts";
import type { NodeColumns } from "./node-columns.ts";
import { enterLists, leaveLists } from "./recency.ts";
import { NodeFlag } from "./table-view.ts";

/**
 * A node is protected while it is locked or pinned or has a protected child. Invariants: the flag
 * says exactly that; `protectedChildren` counts the children with the flag; protected nodes are in
 * no recency list. Both walks stop at the first ancestor whose state does not change, so n locks on
 * one path cost n plus its length.
 */

/** Something began to hold the node against eviction. */
export function protect(columns: NodeColumns, node: number): void {
  const { meta, parent, protectedChildren } = columns;
  let step = node;
  while ((meta[step]! & NodeFlag.protected) === 0) {
    meta[step] = meta[step]! | NodeFlag.protected;
    leaveLists(columns, step);
    columns.onProtection(step as NodeId, true);
    step = parent[step]!;
    if (step === 0) return;
    protectedChildren[step] = protectedChildren[step]! + 1;
  }
}

/**
 * Something that held the node is gone. What becomes free comes in as the newest, the deepest
 * first.
 */
export function unprotect(columns: NodeColumns, node: number): void {
  const { meta, parent, protectedChildren, locks, pins } = columns;
  let step = node;
  while (locks[step] === 0 && pins[step] === 0 && protectedChildren[step] === 0) {
    meta[step] = meta[step]! & ~NodeFlag.protected;
    enterLists(columns, step);
    columns.onProtection(step as NodeId, false);
    step = parent[step]!;
    if (step === 0) return;
    protectedChildren[step] = protectedChildren[step]! - 1;
  }
}

/** A node and its subtree have just been linked under `parent`. */
export function protectParent(columns: NodeColumns, node: number, parent: number): void {
  if ((columns.meta[node]! & NodeFlag.protected) === 0) return;
  columns.protectedChildren[parent] = columns.protectedChildren[parent]! + 1;
  protect(columns, parent);
}
