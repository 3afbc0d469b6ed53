import { NO_NODE, type NodeId } from "../../core/index.ts";
import { type DescendantWalk, type LeafWalk, WALKS_MAX } from "./block-table.ts";
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

/** Unlinks a node from its parent, if it has one. */
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

/** Whether `node` is `below` or one of its ancestors. */
export function isOnPath(columns: NodeColumns, node: number, below: number): boolean {
  const { parent } = columns;
  for (let step = below; step !== 0; step = parent[step]!) if (step === node) return true;
  return false;
}

/** The next node of `root`'s subtree in pre-order, 0 at the end. `node` must be in the subtree. */
export function successor(columns: NodeColumns, node: number, root: number): number {
  const { firstChild, nextSibling, parent } = columns;
  if (firstChild[node] !== 0) return firstChild[node]!;
  for (let step = node; step !== root && step !== 0; step = parent[step]!) {
    if (nextSibling[step] !== 0) return nextSibling[step]!;
  }
  return 0;
}

/** Links that one call of a leaf walk follows at most. */
const LINKS_AT_ONCE = 1_024;

interface OpenWalk {
  /** Called before the node, a leaf, is removed. Moves the walk past it. */
  skip(node: number): void;
}

/**
 * The open walks. A node that vanishes is a leaf, and a walk that would visit it next moves on to
 * its successor. Links between nodes that stay never change, so that a paused walk loses nothing.
 */
export class Walks {
  private readonly open: OpenWalk[] = [];
  private readonly columns: NodeColumns;

  constructor(columns: NodeColumns) {
    this.columns = columns;
  }

  start(root: NodeId): DescendantWalk | null {
    const { open, columns } = this;
    if (open.length >= WALKS_MAX) return null;
    // The next node to visit. 0: the end.
    let upcoming = successor(columns, root, root);
    const walk: OpenWalk = {
      skip(node) {
        if (upcoming === node) upcoming = successor(columns, node, root);
      },
    };
    open.push(walk);
    const close = () => {
      this.end(walk);
      upcoming = 0;
    };
    return {
      next() {
        const node = upcoming;
        if (node === 0) return NO_NODE;
        upcoming = successor(columns, node, root);
        return node as NodeId;
      },
      close,
      [Symbol.dispose]: close,
    };
  }

  startAtLeaves(root: NodeId): LeafWalk | null {
    if (this.open.length >= WALKS_MAX) return null;
    const walk = new FromLeaves(this.columns, root, () => this.end(walk));
    this.open.push(walk);
    return walk;
  }

  private end(walk: OpenWalk): void {
    const at = this.open.indexOf(walk);
    if (at >= 0) this.open.splice(at, 1);
  }

  /** Call it before the node, a leaf, is unlinked and freed. */
  onVanish(node: number): void {
    const { open } = this;
    for (let i = 0; i < open.length; i++) open[i]!.skip(node);
  }
}

class FromLeaves implements LeafWalk, OpenWalk {
  private readonly columns: NodeColumns;
  private readonly root: number;
  private readonly onClose: () => void;
  /** The current node. 0: the end. */
  private at: number;
  /** Whether the descendants of `at` are still to be visited. */
  private descends = true;

  constructor(columns: NodeColumns, root: number, onClose: () => void) {
    this.columns = columns;
    this.root = root;
    this.onClose = onClose;
    this.at = columns.firstChild[root]!;
  }

  get over(): boolean {
    return this.at === 0;
  }

  next(): NodeId {
    const { firstChild } = this.columns;
    for (let links = 0; this.at !== 0 && links < LINKS_AT_ONCE; links++) {
      const node = this.at;
      const below = this.descends ? firstChild[node]! : 0;
      if (below === 0) {
        this.leave(node);
        return node as NodeId;
      }
      this.at = below;
    }
    return NO_NODE;
  }

  /** Moves past the node: to the next child of its parent, or else to the parent. */
  private leave(node: number): void {
    const { nextSibling, parent } = this.columns;
    const sibling = nextSibling[node]!;
    this.descends = sibling !== 0;
    const at = sibling === 0 ? parent[node]! : sibling;
    this.at = at === this.root ? 0 : at;
  }

  skip(node: number): void {
    if (this.at === node) this.leave(node);
  }

  close(): void {
    this.onClose();
    this.at = 0;
  }

  [Symbol.dispose](): void {
    this.close();
  }
}
