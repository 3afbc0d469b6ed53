import type { NodeId } from "../../core/index.ts";
import { crashPoint } from "../../native/index.ts";
import type { Holds } from "../pins/index.ts";
import type { TieredStore } from "../tiered-store.ts";

/**
 * Makes sure that what was done survives a loss of power. Whoever asks while the disk is at it
 * shares the next turn, so that a thousand commands cost a few turns and not a thousand.
 */
export class Durability {
  readonly #store: TieredStore;
  readonly #holds: Holds;
  #running: Promise<boolean> | null = null;
  #next: Promise<boolean> | null = null;

  constructor(store: TieredStore, holds: Holds) {
    this.#store = store;
    this.#holds = holds;
  }

  /** Whether those of `nodes` that are on SSD stay there after a loss of power. */
  areWritten(nodes: readonly NodeId[]): boolean {
    const fresh = this.#store.ssd?.writer.fresh;
    return fresh === undefined || nodes.every((node) => fresh.isSafe(node));
  }

  /** True once that is so of all of them; at once where it is already. */
  writes(nodes: readonly NodeId[]): Promise<boolean> {
    return this.areWritten(nodes) ? Promise.resolve(true) : this.everything();
  }

  /**
   * True once what left SSD so far will not come back: what others removed, too, which a command
   * may have found gone already.
   */
  async removals(): Promise<boolean> {
    const { ssd } = this.#store;
    if (ssd === null) return true;
    const over = await ssd.orHung(ssd.room.removals.over().then(() => true));
    if (over !== true) return false;
    return ssd.room.removals.areVolatile ? this.everything() : true;
  }

  /** True once holds are as they are now also after a crash. `since`: as of `Holds.commit`. */
  async holds(since?: number): Promise<boolean> {
    const { ssd } = this.#store;
    crashPoint("hold.changed");
    const committed = this.#holds.commit(since);
    const isCommitted = (await (ssd === null ? committed : ssd.orHung(committed))) === true;
    crashPoint("hold.committed");
    return isCommitted;
  }

  /** True once what is on SSD now is what will be there after a crash. */
  everything(): Promise<boolean> {
    if (this.#next !== null) return this.#next;
    if (this.#running === null) return this.#begin();
    this.#next = this.#running.then(() => {
      this.#next = null;
      return this.#begin();
    });
    return this.#next;
  }

  #begin(): Promise<boolean> {
    this.#running = this.#run().finally(() => {
      this.#running = null;
    });
    return this.#running;
  }

  async #run(): Promise<boolean> {
    const { ssd } = this.#store;
    return ssd === null || ssd.makeDurable();
  }
}
