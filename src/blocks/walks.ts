import { NO_NODE, type NodeId } from "../core/index.ts";
import { type DescendantWalk, WALKS_MAX } from "./block-table.ts";
import type { NodeColumns } from "./node-columns.ts";
import { successor } from "./tree.ts";

interface OpenWalk {
  readonly root: number;
  /** What comes next; 0: over. */
  upcoming: number;
}

/**
 * The walks that are open. A node that vanishes is a leaf, so a walk that was about to visit it
 * goes on with what follows it; links between nodes that stay never change, so a paused walk loses
 * nothing.
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
    const walk: OpenWalk = { root, upcoming: successor(columns, root, root) };
    open.push(walk);
    const close = () => {
      const at = open.indexOf(walk);
      if (at >= 0) open.splice(at, 1);
      walk.upcoming = 0;
    };
    return {
      next() {
        const node = walk.upcoming;
        if (node === 0) return NO_NODE;
        walk.upcoming = successor(columns, node, walk.root);
        return node as NodeId;
      },
      close,
      [Symbol.dispose]: close,
    };
  }

  /** The node, a leaf, is about to be unlinked and freed. */
  onVanish(node: number): void {
    for (const walk of this.open) {
      if (walk.upcoming === node) walk.upcoming = successor(this.columns, node, walk.root);
    }
  }
}
