import { NO_NODE, type NodeId } from "../../core/index.ts";
import type { TableView } from "../blocks/index.ts";

/** Nodes that come next, as a place remembers them. */
const AHEAD = 8;
/** Ancestors at distances 1, 2, 4, ...: as many as a place remembers. */
const ABOVE = 12;
/** Ids looked at for a root without letting others run: about a millisecond. */
const IDS_A_SLICE = 2 ** 19;

/**
 * Where a walk stands, as pairs of a node and its generation: the root, the node visited last, then
 * those ahead; behind the mark, ancestors. A pair of zeros is the mark.
 */
export type Place = readonly number[];

/** The roots of a walk, in order of their ids. */
export interface Roots {
  /** Whether a walk may go on below it. */
  has(node: NodeId): boolean;
  /** The next one; NO_NODE: none. Or how far there is none, to be asked again from there. */
  after(node: NodeId): NodeId | { readonly unknownTo: NodeId };
}

/** The nodes of this list, and none of them below another. */
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
    // One that has got a parent since is gone through to its end.
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
 * Visits nodes parents first, down to a depth below each root. It may pause at any time: `place`
 * says where, and `goOn` finds it again although nodes have come and gone. What is there all the
 * time is visited once, but for the two cases that `goOn` tells.
 */
export class TreeWalk {
  readonly #table: TableView;
  readonly #roots: Roots;
  readonly #depthMax: number;
  #root: NodeId = NO_NODE;
  #node: NodeId = NO_NODE;
  #depth = 0;
  /** What `step` does: visits the node itself, what follows it, or what follows all below it. */
  #next: "itself" | "after" | "past" = "after";

  constructor(table: TableView, roots: Roots, depthMax: number) {
    this.#table = table;
    this.#roots = roots;
    this.#depthMax = depthMax;
  }

  /** Visited last. */
  get node(): NodeId {
    return this.#node;
  }

  /** Of the node below its root. */
  get depth(): number {
    return this.#depth;
  }

  /** Goes to the next node below this root; false where there is none. */
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

  /** Goes to the next root; false where there is none. */
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

  /** Where it stands, to be given to `goOn`, of this walk or of another with the same roots. */
  place(): Place {
    const table = this.#table;
    const place: number[] = [];
    const add = (node: NodeId) => place.push(node, table.generationOf(node));
    add(this.#root);
    add(this.#node);
    let next = this.#follower(this.#node, this.#depth, true);
    for (let count = 0; count < AHEAD && next.node !== NO_NODE; count++) {
      add(next.node);
      next = this.#follower(next.node, next.depth, true);
    }
    place.push(0, 0);
    let [up, distance] = [this.#node, 0];
    for (let bit = 0; bit < ABOVE && up !== this.#root; bit++) {
      for (; distance < 2 ** bit && up !== this.#root; distance++) up = table.parentOf(up);
      add(up);
    }
    return place;
  }

  /**
   * Goes on behind the node visited last. Where that is gone, with the nearest of the next eight
   * that is left; where they are, too, behind all below the nearest remembered ancestor, so that
   * some of what is below it may be missed; where none is left, at the next root. And a root that
   * got a parent meanwhile is visited again where that parent comes later.
   */
  goOn(place: Place): void {
    const table = this.#table;
    const isThere = (at: number): boolean => table.isLive(place[at] as NodeId, place[at + 1]!);
    this.#root = (place[0] ?? NO_NODE) as NodeId;
    const wasAt = this.#node;
    this.#node = NO_NODE;
    if (!isThere(0) || !this.#roots.has(this.#root)) return;
    let next: "after" | "itself" | "past" = "after";
    for (let at = 2; at < place.length; at += 2) {
      const node = place[at] as NodeId;
      if (node === NO_NODE) next = "past";
      else if (isThere(at)) {
        // A node's ancestors stay while it lives.
        const depth = at === 2 && node === wasAt ? this.#depth : this.#depthOf(node);
        if (depth >= 0) {
          [this.#node, this.#depth, this.#next] = [node, depth, next];
          return;
        }
      }
      if (next === "after") next = "itself";
    }
  }

  /** What comes after a node, with or without those below it. */
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

  /** Below the root; -1 where it is not. */
  #depthOf(node: NodeId): number {
    let depth = 0;
    for (let at = node; at !== this.#root; at = this.#table.parentOf(at)) {
      if (at === NO_NODE) return -1;
      depth++;
    }
    return depth;
  }
}
