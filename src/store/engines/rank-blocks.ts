import { NO_NODE, type NodeId } from "../../core/index.ts";
import { Tier } from "../blocks/index.ts";
import type { TieredStore } from "../tiered-store.ts";
import type { LookupRank, LookupWish } from "./wish.ts";

const KEY_WORDS = 8;

/** The blocks that a lookup names, as the table has them now. */
export class RankBlocks {
  readonly #store: TieredStore;
  readonly #wish: LookupWish;

  constructor(store: TieredStore, wish: LookupWish) {
    this.#store = store;
    this.#wish = wish;
  }

  /** The node of block `i` in the rank's namespace, or NO_NODE. */
  nodeOf({ namespace, keys }: LookupRank, i: number): NodeId {
    const { table } = this.#store;
    const node = table.find(keys, KEY_WORDS * i);
    return node !== NO_NODE && table.namespaceOf(node) === namespace ? node : NO_NODE;
  }

  /** Whether the block is in a tier that counts. */
  counts(node: NodeId): boolean {
    return (this.#store.table.residencyOf(node) & this.#wish.tiers) !== 0;
  }

  /** Whether the block is stored here or being written. */
  isHere(node: NodeId): boolean {
    return this.#store.table.isWriting(node) || this.counts(node);
  }

  /** Whether block `i` is in a tier that counts, for all ranks. */
  arePresent(i: number): boolean {
    return i < this.#wish.count && this.#areAll(i, (node) => this.counts(node));
  }

  /** Whether block `i` is in RAM, for all ranks. */
  areInRam(i: number): boolean {
    const { table } = this.#store;
    return this.#areAll(i, (node) => table.isResident(node, Tier.ram));
  }

  #areAll(i: number, is: (node: NodeId) => boolean): boolean {
    return this.#wish.ranks.every((rank) => {
      const node = this.nodeOf(rank, i);
      return node !== NO_NODE && is(node);
    });
  }
}
