import { type NodeId, yieldToLoop } from "../core/index.ts";
import type { ReadOutcome } from "./ssd/block-reader.ts";
import type { TieredStore } from "./tiered-store.ts";

/** Reads begun before others have their turn: each costs the loop some microseconds. */
const READS_A_SLICE = 256;

/**
 * Blocks on their way from SSD for one request, each locked by it. A read that has begun when the
 * request stops waiting goes on, for whoever asks next.
 */
export class ComingBlocks {
  readonly #store: TieredStore;
  readonly #nodes: readonly NodeId[];
  readonly #zone: number;
  readonly #reads: Promise<ReadOutcome>[] = [];
  readonly #came = new Map<number, ReadOutcome>();

  /** `zone`: where in the arena they should lie. */
  constructor(store: TieredStore, nodes: readonly NodeId[], zone: number) {
    this.#store = store;
    this.#nodes = nodes;
    this.#zone = zone;
  }

  /** Begins to read them all; resolves when they have come, or after `ms`. */
  async wait(ms: number): Promise<void> {
    if (this.#nodes.length === 0) return;
    const { clock, ssd } = this.#store;
    const late = Promise.withResolvers<void>();
    using _timer = clock.after(ms, late.resolve);
    for (const [at, node] of this.#nodes.entries()) {
      const read = ssd!.bring(node, { zone: this.#zone });
      this.#reads.push(read);
      void read.then((outcome) => this.#came.set(at, outcome));
      if (this.#reads.length % READS_A_SLICE === 0) await yieldToLoop();
    }
    await Promise.race([Promise.all(this.#reads), late.promise]);
  }

  /** How the read of block `at` ended; undefined: it has not yet. */
  outcomeOf(at: number): ReadOutcome | undefined {
    return this.#came.get(at);
  }

  /** The request does not take block `at`. */
  leave(at: number): void {
    const { ram } = this.#store;
    const settle = (came: ReadOutcome) => came === "ok" && ram.settleFresh(this.#nodes[at]!);
    void this.#reads[at]!.then(settle);
  }
}
