import type { NodeId } from "../../core/index.ts";
import { Tier } from "../blocks/index.ts";
import { HashBudget } from "../ram-check.ts";
import type { TieredStore } from "../tiered-store.ts";

/** Bytes of lent blocks that are hashed: of one second, and at once. */
const BYTES_PER_S = 128 * 2 ** 20;
const BYTES_AT_ONCE = 256 * 2 ** 20;
/** Blocks that wait for their turn; beyond that a block is checked the next time it is lent. */
const WAITING_MAX = 1_024;

/**
 * Hashes blocks that were lent, one at a time on a native thread. The client verifies what it
 * received and reports nothing to this host: without this a damaged block is lent until the scrub
 * or a reader of this host comes by.
 */
export class LentChecks {
  readonly #store: TieredStore;
  readonly #budget: HashBudget;
  readonly #waiting = new Set<NodeId>();
  #running: Promise<void> | null = null;

  constructor(store: TieredStore) {
    this.#store = store;
    this.#budget = new HashBudget(store.clock, BYTES_PER_S, BYTES_AT_ONCE);
  }

  lent(node: NodeId): void {
    if (this.#waiting.size >= WAITING_MAX) return;
    this.#waiting.add(node);
    this.#running ??= this.#run();
  }

  async #run(): Promise<void> {
    const { table, checks } = this.#store;
    for (const node of this.#waiting) {
      this.#waiting.delete(node);
      // The number of a block that left may be that of another one by now, which is checked then.
      if (!table.isResident(node, Tier.ram)) continue;
      if (this.#budget.take(table.bytesOf(node))) await checks.check(node, "peer");
    }
    this.#running = null;
  }
}
