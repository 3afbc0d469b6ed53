import { NO_NODE, type NodeId } from "../../core/index.ts";
import type { TableView } from "../blocks/index.ts";

/**
 * A position stores the last visited node and this many nodes after it, so that the walk can resume
 * if the last visited node is removed.
 */
const AHEAD = 8;
/** Number of ancestors, at distances 1, 2, 4, ..., that a position stores. */
const ABOVE = 12;
/**
 * Block table entries examined for a root before the event loop is yielded to: about a millisecond
 * of work.
 */
const IDS_A_SLICE = 2 ** 19;

/**
 * Position of a walk, as pairs of node id and generation: the root, the latest node, the nodes that
 * follow it, a separator (two zeros), the ancestors.
 */
export type WalkPosition = readonly number[];

/** The roots of a walk, ordered by node id. */
export interface Roots {
  /** Returns whether a walk may continue below this root. */
  has(node: NodeId): boolean;
  /**
   * Returns the next root after `node`, or NO_NODE at the end. `unknownTo`: the ids up to this one
   * contain none; call again with it.
   */
  after(node: NodeId): NodeId | { readonly unknownTo: NodeId };
}

/** Returns the nodes of the list that are not below another node of the list, as roots. */
export function theseRoots(table: TableView, nodes: readonly NodeId[]): Roots {
  const isBelow = (node: NodeId): boolean => {
    for (let up = table.parentOf(node); up !== NO_NODE; up = table.parentOf(up)) {
      if (nodes.includes(up)) return true;
    }
    return false;
  };
  const roots = nodes.filter((node) => !isBelow(node)).sort((a, b) => a - b);
  return {
    has: (node) => roots.includes(node),
    after: (node) => roots.find((root) => root > node) ?? NO_NODE,
  };
}

/** Returns all nodes without a parent, as roots. */
export function allRoots(table: TableView): Roots {
  return {
    // Finish the subtree of a root that has got a parent meanwhile.
    has: () => true,
    after(node) {
      const end = node + IDS_A_SLICE + 1;
      const found = table.nextRoot(node, end);
      if (found !== NO_NODE || end > table.nodesMax) return found;
      return { unknownTo: (end - 1) as NodeId };
    },
  };
}

/**
 * Visits nodes, parents before children, down to a maximum depth below each root. The walk can
 * pause at any time: `resume` continues from a `position` although nodes were stored and removed
 * meanwhile. A node that exists all the time is visited once, except in the two cases described at
 * `resume`.
 */
export class TreeWalk {
  readonly #table: TableView;
  readonly #roots: Roots;
  readonly #depthMax: number;
  #root: NodeId = NO_NODE;
  #node: NodeId = NO_NODE;
  #depth = 0;
  /**
   * Which node `step` visits next: the latest node itself, the node after it, or the node after its
   * subtree.
   */
  #next: "itself" | "after" | "past" = "after";

  constructor(table: TableView, roots: Roots, depthMax: number) {
    this.#table = table;
    this.#roots = roots;
    this.#depthMax = depthMax;
  }

  /** The node that was visited last. */
  get node(): NodeId {
    return this.#node;
  }

  /** Levels of the node below its root. */
  get depth(): number {
    return this.#depth;
  }

  /** Moves to the next node below this root. Returns false at the end. */
  step(): boolean {
    if (this.#node === NO_NODE) return false;
    if (this.#next !== "itself") {
      const next = this.#follower(this.#node, this.#depth, this.#next === "after");
      this.#node = next.node;
      this.#depth = next.depth;
    }
    this.#next = "after";
    return this.#node !== NO_NODE;
  }

  /** Moves to the next root. Returns false at the end. */
  async stepToRoot(turn: () => Promise<void>): Promise<boolean> {
    let next = this.#roots.after(this.#root);
    while (typeof next === "object") {
      const from = next.unknownTo;
      await turn();
      next = this.#roots.after(from);
    }
    this.#root = next;
    this.#node = next;
    this.#depth = 0;
    this.#next = "after";
    return next !== NO_NODE;
  }

  /**
   * Returns the position of the walk, for `resume` of this walk or of another one with the same
   * roots.
   */
  position(): WalkPosition {
    const table = this.#table;
    const position: number[] = [];
    const add = (node: NodeId) => position.push(node, table.generationOf(node));
    add(this.#root);
    add(this.#node);
    let next = this.#follower(this.#node, this.#depth, true);
    for (let count = 0; count < AHEAD && next.node !== NO_NODE; count++) {
      add(next.node);
      next = this.#follower(next.node, next.depth, true);
    }
    position.push(0, 0);
    let [up, distance] = [this.#node, 0];
    for (let bit = 0; bit < ABOVE && up !== this.#root; bit++) {
      for (; distance < 2 ** bit && up !== this.#root; distance++) up = table.parentOf(up);
      add(up);
    }
    return position;
  }

  /**
   * Resumes after the node that was visited last. If that node was removed, resumes at the nearest
   * of the eight nodes that followed it; if those were removed too, after the subtree of the
   * nearest remaining ancestor, which may skip part of that subtree; otherwise at the next root. A
   * root that got a parent meanwhile is visited again if the parent comes later in the walk.
   */
  resume(position: WalkPosition): void {
    const table = this.#table;
    const isThere = (at: number): boolean => table.isLive(position[at] as NodeId, position[at + 1]);
    this.#root = (position[0] ?? NO_NODE) as NodeId;
    const wasAt = this.#node;
    this.#node = NO_NODE;
    if (!isThere(0) || !this.#roots.has(this.#root)) return;
    let next: "after" | "itself" | "past" = "after";
    for (let at = 2; at < position.length; at += 2) {
      const node = position[at] as NodeId;
      if (node === NO_NODE) next = "past";
      else if (isThere(at)) {
        // The depth can be computed, because a node's ancestors exist as long as the node.
        const depth = at === 2 && node === wasAt ? this.#depth : this.#depthOf(node);
        if (depth >= 0) {
          [this.#node, this.#depth, this.#next] = [node, depth, next];
          return;
        }
      }
      if (next === "after") next = "itself";
    }
  }

  /**
   * Returns the node after this one in the walk and its depth. `down`: whether to visit the node's
   * subtree.
   */
  #follower(node: NodeId, depth: number, down: boolean): { node: NodeId; depth: number } {
    const table = this.#table;
    const child = down && depth < this.#depthMax ? table.firstChildOf(node) : NO_NODE;
    if (child !== NO_NODE) return { node: child, depth: depth + 1 };
    let at = node;
    for (let up = depth; at !== this.#root && at !== NO_NODE; up--) {
      const sibling = table.nextSiblingOf(at);
      if (sibling !== NO_NODE) return { node: sibling, depth: up };
      at = table.parentOf(at);
    }
    return { node: NO_NODE, depth: 0 };
  }

  /** Returns the depth of the node below the root, or -1 if the node is not below it. */
  #depthOf(node: NodeId): number {
    let depth = 0;
    for (let at = node; at !== this.#root; at = this.#table.parentOf(at)) {
      if (at === NO_NODE) return -1;
      depth++;
    }
    return depth;
  }
}
