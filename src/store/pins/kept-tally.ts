import { assert, type NodeId } from "../../core/index.ts";
import { type BlockTable, Tier } from "../blocks/index.ts";

/**
 * Which blocks only soft pins keep. The table knows that a block is kept, not by whom; a budget for
 * pins and leases must leave out what soft pins keep. So this counts, apart for both sorts, the
 * holds on a node and its children that are kept in turn: each sort keeps a node while its count is
 * above zero.
 *
 * A node that gains a parent while it is counted is taken into account when a hold next reaches it;
 * until then the parent passes for kept by pins, which errs on the strict side. One entry for each
 * node of the table; memory is taken as nodes come under holds.
 */
export class KeptTally {
  readonly #table: BlockTable;
  readonly #hard: Uint32Array;
  readonly #soft: Uint32Array;
  /** The parent in whose counts the node is. */
  readonly #parent: Int32Array;
  readonly #bytes: Uint32Array;
  #softOnlyBytes = 0;

  constructor(table: BlockTable) {
    const entries = table.nodesMax + 1;
    this.#table = table;
    this.#hard = new Uint32Array(new ArrayBuffer(entries * 4));
    this.#soft = new Uint32Array(new ArrayBuffer(entries * 4));
    this.#parent = new Int32Array(new ArrayBuffer(entries * 4));
    this.#bytes = new Uint32Array(new ArrayBuffer(entries * 4));
  }

  /** Bytes in RAM or on SSD that no pin or lease keeps, but a soft pin. */
  get softOnlyBytes(): number {
    return this.#softOnlyBytes;
  }

  isSoftOnly(node: NodeId): boolean {
    return this.#hard[node] === 0 && this.#soft[node] !== 0;
  }

  /** Its length when it came under a hold: what is added for it is what will be taken away. */
  bytesOf(node: NodeId): number {
    return this.#bytes[node]!;
  }

  /** In whose counts the node is: its parent when it came under a hold, or when one reached it. */
  parentOf(node: NodeId): NodeId {
    return this.#parent[node] as NodeId;
  }

  add(node: NodeId, isSoft: boolean): void {
    this.#raise(node, isSoft);
  }

  remove(node: NodeId, isSoft: boolean): void {
    const [counts, parent] = [isSoft ? this.#soft : this.#hard, this.#parent];
    for (let step: number = node; step !== 0; ) {
      assert(counts[step]! > 0, "a hold that ends was counted");
      const before = this.#softOnlyOf(step);
      counts[step] = counts[step]! - 1;
      this.#softOnlyBytes += this.#softOnlyOf(step) - before;
      if (counts[step] !== 0) return;
      const above = parent[step]!;
      if (this.#hard[step] === 0 && this.#soft[step] === 0) {
        parent[step] = 0;
        this.#bytes[step] = 0;
      }
      step = above;
    }
  }

  #raise(node: number, isSoft: boolean): void {
    const [counts, parent] = [isSoft ? this.#soft : this.#hard, this.#parent];
    const others = isSoft ? this.#hard : this.#soft;
    for (let step = node; step !== 0; step = parent[step]!) {
      if (counts[step] === 0 && others[step] === 0) this.#enter(step);
      else if (parent[step] === 0) this.#adopt(step);
      const before = this.#softOnlyOf(step);
      counts[step] = counts[step]! + 1;
      this.#softOnlyBytes += this.#softOnlyOf(step) - before;
      if (counts[step] !== 1) return;
    }
  }

  #enter(node: number): void {
    const table = this.#table;
    this.#parent[node] = table.parentOf(node as NodeId);
    this.#bytes[node] = isOnTiers(table, node as NodeId) ? table.bytesOf(node as NodeId) : 0;
  }

  /** The node was counted as one without parent; perhaps it has one by now. */
  #adopt(node: number): void {
    const above = this.#table.parentOf(node as NodeId);
    if (above === 0) return;
    this.#parent[node] = above;
    if (this.#hard[node] !== 0) this.#raise(above, false);
    if (this.#soft[node] !== 0) this.#raise(above, true);
  }

  #softOnlyOf(node: number): number {
    return this.#hard[node] === 0 && this.#soft[node] !== 0 ? this.#bytes[node]! : 0;
  }
}

export function isOnTiers(table: BlockTable, node: NodeId): boolean {
  return (table.residencyOf(node) & (Tier.ram | Tier.ssd)) !== 0;
}
