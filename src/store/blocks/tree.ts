import type { NodeColumns } from "./node-columns.ts";

/** Links a node without parent under `parent`, as its first child. */
export function linkChild(columns: NodeColumns, node: number, parent: number): void {
  const { firstChild, nextSibling, prevSibling } = columns;
  const next = firstChild[parent]!;
  columns.parent[node] = parent;
  nextSibling[node] = next;
  if (next !== 0) prevSibling[next] = node;
  firstChild[parent] = node;
}

/** Takes a node from under its parent, if it has one. */
export function unlinkChild(columns: NodeColumns, node: number): void {
  const { firstChild, nextSibling, prevSibling, parent } = columns;
  const next = nextSibling[node]!;
  const prev = prevSibling[node]!;
  if (next !== 0) prevSibling[next] = prev;
  if (prev !== 0) nextSibling[prev] = next;
  else if (parent[node] !== 0) firstChild[parent[node]!] = next;
  parent[node] = 0;
  nextSibling[node] = 0;
  prevSibling[node] = 0;
}

/** Whether `node` is `below` or above it. */
export function isOnPath(columns: NodeColumns, node: number, below: number): boolean {
  const { parent } = columns;
  for (let step = below; step !== 0; step = parent[step]!) if (step === node) return true;
  return false;
}

/** The next node of `root`'s subtree in pre-order, 0 at the end. `node` lies in the subtree. */
export function successor(columns: NodeColumns, node: number, root: number): number {
  const { firstChild, nextSibling, parent } = columns;
  if (firstChild[node] !== 0) return firstChild[node]!;
  for (let step = node; step !== root && step !== 0; step = parent[step]!) {
    if (nextSibling[step] !== 0) return nextSibling[step]!;
  }
  return 0;
}
