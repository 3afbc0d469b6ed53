import { NO_NODE, type NodeId } from "../../core/index.ts";
import type { TableView } from "../blocks/index.ts";

/** Following nodes that a position stores. */
const AHEAD = 8;
/** Ancestors at distances 1, 2, 4, ... that a position stores. */
const ABOVE = 12;
/** Ids examined for a root before the loop yields: about a millisecond of work. */
const IDS_A_SLICE = 2 ** 19;

/**
 * Position of a walk, as pairs of a node and its generation: the root, the latest node, then the
 * following nodes; after a separator the ancestors. The separator is a pair of zeros.
 */
export type WalkPosition = readonly number[];

/** The roots of a walk, in the order of their ids. */
export interface Roots {
  /** Whether a walk may continue below this root. */
  has(node: NodeId): boolean;
  /**
   * The next root, NO_NODE at the end, or the id up to which there is none, from which to continue.
   */
  after(node: NodeId): NodeId | { readonly unknownTo: NodeId };
}

/** The nodes of this list that are not below another one. */
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

/** All nodes without a parent. */
export function allRoots(table: TableView): Roots {
  return {
    // Finish the subtree of a root that has received a parent meanwhile.
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
 * Visits nodes, parents first, down to a maximum depth below each root. The walk can pause at any
 * time: `resume` continues from a `position` although nodes were stored and removed. A node that
 * exists throughout is visited once, except in the two cases described at `resume`.
 */
export class TreeWalk {
  readonly #table: TableView;
  readonly #roots: Roots;
  readonly #depthMax: number;
  #root: NodeId = NO_NODE;
  #node: NodeId = NO_NODE;
  #depth = 0;
  /** Next move of `step`: to the node itself, to its follower, or past its subtree. */
  #next: "itself" | "after" | "past" = "after";

  constructor(table: TableView, roots: Roots, depthMax: number) {
    this.#table = table;
    this.#roots = roots;
    this.#depthMax = depthMax;
  }

  /** The latest visited node. */
  get node(): NodeId {
    return this.#node;
  }

  /** Depth of the node below its root. */
  get depth(): number {
    return this.#depth;
  }

  /** Moves to the next node below this root; false at the end. */
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

  /** Moves to the next root; false at the end. */
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

  /** The position, for `resume` of this walk or another one with the same roots. */
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
   * Resumes after the latest visited node. If that node was removed, the walk resumes at the
   * nearest of the next eight nodes; if those were removed, after the subtree of the nearest stored
   * ancestor, which may skip part of that subtree; otherwise at the next root. A root that has
   * received a parent meanwhile is visited again if the parent comes later.
   */
  resume(position: WalkPosition): void {
    const table = this.#table;
    const isThere = (at: number): boolean =>
      table.isLive(position[at] as NodeId, position[at + 1]!);
    this.#root = (position[0] ?? NO_NODE) as NodeId;
    const wasAt = this.#node;
    this.#node = NO_NODE;
    if (!isThere(0) || !this.#roots.has(this.#root)) return;
    let next: "after" | "itself" | "past" = "after";
    for (let at = 2; at < position.length; at += 2) {
      const node = position[at] as NodeId;
      if (node === NO_NODE) next = "past";
      else if (isThere(at)) {
        // A node's ancestors exist as long as the node.
        const depth = at === 2 && node === wasAt ? this.#depth : this.#depthOf(node);
        if (depth >= 0) {
          [this.#node, this.#depth, this.#next] = [node, depth, next];
          return;
        }
      }
      if (next === "after") next = "itself";
    }
  }

  /** The node after this one, with or without its subtree. */
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

  /** Depth below the root; -1 if the node is not below it. */
  #depthOf(node: NodeId): number {
    let depth = 0;
    for (let at = node; at !== this.#root; at = this.#table.parentOf(at)) {
      if (at === NO_NODE) return -1;
      depth++;
    }
    return depth;
  }
}
