import type { NodeId } from "../../core/index.ts";

/** Blocks that are written down together: what a change of one of them costs to write. */
export const PART_BLOCKS = 4_096;

export interface HoldPart {
  /** From 0: its place in the hold. */
  readonly number: number;
  /** In the order in which they were added. */
  readonly nodes: Set<NodeId>;
}

/** The blocks of one hold, each once, in the order in which they were added. */
export class HoldBlocks {
  readonly #parts: HoldPart[] = [{ number: 0, nodes: new Set() }];
  #size = 0;

  get size(): number {
    return this.#size;
  }

  /** At least one; some may be empty. */
  get parts(): readonly HoldPart[] {
    return this.#parts;
  }

  has(node: NodeId): boolean {
    return this.#parts.some(({ nodes }) => nodes.has(node));
  }

  /** Those below it are made, too. */
  part(number: number): HoldPart {
    while (this.#parts.length <= number)
      this.#parts.push({ number: this.#parts.length, nodes: new Set() });
    return this.#parts[number]!;
  }

  /** The part where it is now: the last one that has room, or this one. It must not be there. */
  add(node: NodeId, number?: number): HoldPart {
    const last = this.#parts.at(-1)!;
    const next = last.nodes.size >= PART_BLOCKS ? last.number + 1 : last.number;
    const part = this.part(number ?? next);
    part.nodes.add(node);
    this.#size++;
    return part;
  }

  /** The part where it was; null where it was in none. */
  delete(node: NodeId): HoldPart | null {
    const part = this.#parts.find(({ nodes }) => nodes.delete(node));
    if (part === undefined) return null;
    this.#size--;
    return part;
  }

  *[Symbol.iterator](): Generator<NodeId> {
    for (const { nodes } of this.#parts) yield* nodes;
  }
}
