import { type Clock, NO_NODE, type NodeId, sleep } from "../core/index.ts";
import { Tier } from "./blocks/index.ts";
import type { TieredStore } from "./tiered-store.ts";

const IDLE_MS = 1_000;
/** Entries of the table looked at in one turn. */
const IDS_AT_ONCE = 65_536;

/**
 * Hashes everything in RAM over and over, to find damaged memory before a reader does: one block at
 * a time on a native thread, at so many bytes a second on average. Slots that are being written are
 * not blocks yet, and are left alone.
 */
export class RamScrub implements AsyncDisposable {
  readonly #store: TieredStore;
  readonly #clock: Clock;
  readonly #stop = new AbortController();
  #bytesPerS = 0;
  #last: NodeId = NO_NODE;
  #running: Promise<void> | null = null;

  constructor(store: TieredStore) {
    this.#store = store;
    this.#clock = store.clock;
  }

  /** 0 pauses. */
  setRate(bytesPerS: number): void {
    this.#bytesPerS = bytesPerS;
    this.#running ??= this.#run();
  }

  async #run(): Promise<void> {
    const { signal } = this.#stop;
    while (!signal.aborted) {
      const bytes = this.#bytesPerS === 0 ? 0 : await this.#next();
      const waitMs = bytes === 0 ? IDLE_MS : (bytes / this.#bytesPerS) * 1_000;
      await sleep(this.#clock, waitMs, signal).catch(() => undefined);
    }
  }

  /** Hashes the next block; its bytes, 0 where a round is over. */
  async #next(): Promise<number> {
    const { table, checks } = this.#store;
    const node = this.#nextNode();
    if (node === NO_NODE) return 0;
    const bytes = table.bytesOf(node);
    await checks.check(node, "scrub");
    checks.stats.scrubbedBlocks++;
    checks.stats.scrubbedBytes += bytes;
    return bytes;
  }

  #nextNode(): NodeId {
    const { table } = this.#store;
    const end = this.#last + IDS_AT_ONCE;
    const node = table.nextOn(this.#last, Tier.ram, end);
    const isOver = node === NO_NODE && end > table.nodesMax;
    this.#last = node === NO_NODE && !isOver ? ((end - 1) as NodeId) : node;
    return node;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stop.abort();
    await this.#running;
  }
}
