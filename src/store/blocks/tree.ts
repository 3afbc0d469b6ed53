import { NO_NODE, type NodeId } from "../../core/index.ts";
import type { NodeColumns } from "./node-columns.ts";

/** Links a node that has no parent under `parent`, as its first child. */
export function linkChild(columns: NodeColumns, node: number, parent: number): void {
  const { firstChild, nextSibling, prevSibling } = columns;
  const next = firstChild[parent];
  columns.parent[node] = parent;
  nextSibling[node] = next;
  if (next !== 0) prevSibling[next] = node;
  firstChild[parent] = node;
}

/** Unlinks a node from its parent, if it has one. */
export function unlinkChild(columns: NodeColumns, node: number): void {
  const { firstChild, nextSibling, prevSibling, parent } = columns;
  const next = nextSibling[node];
  const prev = prevSibling[node];
  if (next !== 0) prevSibling[next] = prev;
  if (prev !== 0) nextSibling[prev] = next;
  else if (parent[node] !== 0) firstChild[parent[node]] = next;
  parent[node] = 0;
  nextSibling[node] = 0;
  prevSibling[node] = 0;
}

/** Returns whether `node` is `below` or one of its ancestors. */
export function isOnPath(columns: NodeColumns, node: number, below: number): boolean {
  const { parent } = columns;
  for (let step = below; step !== 0; step = parent[step]) if (step === node) return true;
  return false;
}

/**
 * Returns the next node of `root`'s subtree in pre-order, or 0 at the end. `node` must be in the
 * subtree.
 */
export function successor(columns: NodeColumns, node: number, root: number): number {
  const { firstChild, nextSibling, parent } = columns;
  if (firstChild[node] !== 0) return firstChild[node];
  for (let step = node; step !== root && step !== 0; step = parent[step]) {
    if (nextSibling[step] !== 0) return nextSibling[step];
  }
  return 0;
}

/** Maximum number of walks that are open at the same time. */
export const WALKS_MAX = 256;
/** Maximum number of links that one call of a walk follows. */
const LINKS_AT_ONCE = 1_024;

/**
 * Visits the descendants of a node, each child before its parent, so that the caller may remove the
 * visited node. The walk may pause between calls while nodes are added and removed: nodes that
 * exist from open to end are visited exactly once, nodes added meanwhile may be missed. A call does
 * a bounded amount of work. The caller must close the walk. It ends if its root is removed.
 *
 * Only leaves are removed, and a walk that would visit a removed leaf next moves on. Links between
 * remaining nodes never change, so a paused walk loses nothing.
 */
export class LeafWalk implements Disposable {
  private readonly columns: NodeColumns;
  private readonly root: number;
  private readonly open: LeafWalk[];
  /** The current node; 0 at the end. */
  private at: number;
  /** True if the descendants of `at` are not visited yet. */
  private descends = true;

  /** `open`: the list of all open walks of the table, to which this walk is added. */
  constructor(columns: NodeColumns, root: number, open: LeafWalk[]) {
    this.columns = columns;
    this.root = root;
    this.open = open;
    this.at = columns.firstChild[root];
    open.push(this);
  }

  get over(): boolean {
    return this.at === 0;
  }

  /**
   * Returns the next descendant, or NO_NODE if the walk is at its end (`over` is true) or the call
   * reached its limit of links.
   */
  next(): NodeId {
    const { firstChild } = this.columns;
    for (let links = 0; this.at !== 0 && links < LINKS_AT_ONCE; links++) {
      const node = this.at;
      const below = this.descends ? firstChild[node] : 0;
      if (below === 0) {
        this.leave(node);
        return node as NodeId;
      }
      this.at = below;
    }
    return NO_NODE;
  }

  /** Moves from the node to the next child of its parent, or to the parent after the last child. */
  private leave(node: number): void {
    const { nextSibling, parent } = this.columns;
    const sibling = nextSibling[node];
    this.descends = sibling !== 0;
    const at = sibling === 0 ? parent[node] : sibling;
    this.at = at === this.root ? 0 : at;
  }

  /**
   * Moves on if the walk would visit the node next. Call before the node, a leaf, is unlinked and
   * freed.
   */
  skip(node: number): void {
    if (this.at === node) this.leave(node);
  }

  close(): void {
    const at = this.open.indexOf(this);
    if (at >= 0) this.open.splice(at, 1);
    this.at = 0;
  }

  [Symbol.dispose](): void {
    this.close();
  }
}
