import type { NodeId } from "../../core/index.ts";
import type { KeptTally } from "./kept-tally.ts";

/**
 * What the pins and leases of one owner keep: the blocks they name and those above them, each once,
 * whoever else keeps them, too. Counts for each block the owner's holds on it and its children that
 * are kept in turn. The tally of all holds knows parents and lengths: there a block is entered
 * before it is here, and leaves after it.
 */
export class OwnerKept {
  readonly #counts = new Map<NodeId, number>();
  /** Counted as blocks without parent; they may have one by now. */
  readonly #roots = new Set<NodeId>();
  #bytes = 0;

  get bytes(): number {
    return this.#bytes;
  }

  /** Blocks that are kept. */
  get size(): number {
    return this.#counts.size;
  }

  has(node: NodeId): boolean {
    return this.#counts.has(node);
  }

  add(node: NodeId, tally: KeptTally): void {
    for (let step = node; step !== 0; ) {
      const before = this.#counts.get(step) ?? 0;
      this.#counts.set(step, before + 1);
      const above = tally.parentOf(step);
      if (before > 0 && (above === 0 || !this.#roots.delete(step))) return;
      if (before === 0) this.#bytes += tally.bytesOf(step);
      if (above === 0) this.#roots.add(step);
      step = above;
    }
  }

  remove(node: NodeId, tally: KeptTally): void {
    for (let step = node; step !== 0; ) {
      const left = this.#counts.get(step)! - 1;
      if (left > 0) {
        this.#counts.set(step, left);
        return;
      }
      this.#counts.delete(step);
      this.#bytes -= tally.bytesOf(step);
      step = this.#roots.delete(step) ? (0 as NodeId) : tally.parentOf(step);
    }
  }

  /** For checks: bytes that holds on these nodes keep; NaN where as many blocks are not counted. */
  sumOf(nodes: Iterable<NodeId>, tally: KeptTally): number {
    const seen = new Set<NodeId>();
    let bytes = 0;
    for (const node of nodes) {
      for (let step = node; step !== 0 && !seen.has(step); ) {
        seen.add(step);
        bytes += tally.bytesOf(step);
        step = this.#roots.has(step) ? (0 as NodeId) : tally.parentOf(step);
      }
    }
    return seen.size === this.#counts.size ? bytes : Number.NaN;
  }
}
