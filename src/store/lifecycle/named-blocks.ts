import type { BlockName, BlockResult, NodeId } from "../../core/index.ts";
import { Tier } from "../blocks/index.ts";
import type { LifecycleContext } from "./context.ts";
import { MISSING, worseOf } from "./outcomes.ts";

/** The tiers that are this host's own: an engine's GPU is its own business. */
export const OUR_TIERS = Tier.ram | Tier.ssd;

/** The blocks of one command: each node once, however often and by how many names it is meant. */
export class NamedBlocks {
  readonly nodes: NodeId[] = [];
  readonly #context: LifecycleContext;
  readonly #generations: number[] = [];
  readonly #count: number;
  /** Name `i` means the nodes `nodes[#of[k]]` for k from `#from[i]` up to `#from[i + 1]`. */
  readonly #from: Uint32Array;
  readonly #of: Int32Array;

  /**
   * Of what the names lead to, the blocks on any tier of `tiers`; 0: all that are known. `comes`:
   * also those that an engine is writing.
   */
  constructor(
    context: LifecycleContext,
    names: readonly BlockName[],
    tiers: number = OUR_TIERS,
    comes = false,
  ) {
    const { table } = context.store;
    const found = context.names.resolve(names);
    const total = found.from[found.count]!;
    const places = new Map<number, number>();
    this.#context = context;
    this.#count = found.count;
    this.#from = found.from.slice(0, found.count + 1);
    this.#of = new Int32Array(total).fill(-1);
    for (let k = 0; k < total; k++) {
      const node = found.nodes[k] as NodeId;
      const isThere = tiers === 0 || (table.residencyOf(node) & tiers) !== 0;
      if (!isThere && !(comes && table.isWriting(node))) continue;
      let place = places.get(node);
      if (place === undefined) {
        place = this.nodes.length;
        places.set(node, place);
        this.nodes.push(node);
        this.#generations.push(table.generationOf(node));
      }
      this.#of[k] = place;
    }
  }

  /** Whether the node at this place is still the one that was named. */
  isLive(place: number): boolean {
    return this.#context.store.table.isLive(this.nodes[place]!, this.#generations[place]!);
  }

  /** Whether it is, and on the tier. */
  isOn(place: number, tier: Tier): boolean {
    return this.isLive(place) && this.#context.store.table.isResident(this.nodes[place]!, tier);
  }

  /** For each name the worst of its nodes' results; `missing` where it has none. */
  resultsOf(byNode: readonly BlockResult[]): BlockResult[] {
    const results: BlockResult[] = [];
    for (let i = 0; i < this.#count; i++) {
      let worst: BlockResult | null = null;
      for (let k = this.#from[i]!; k < this.#from[i + 1]!; k++) {
        const place = this.#of[k]!;
        if (place < 0) continue;
        worst = worst === null ? byNode[place]! : worseOf(worst, byNode[place]!);
      }
      results.push(worst ?? MISSING);
    }
    return results;
  }
}
