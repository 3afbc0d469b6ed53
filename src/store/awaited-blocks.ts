import { type NamespaceIndex, type NodeId, yieldToLoop } from "../core/index.ts";
import type { FetchOutcome } from "./exchange/peer-blocks.ts";
import type { ReadOutcome } from "./ssd/block-reader.ts";
import type { TieredStore } from "./tiered-store.ts";

/** Reads started before the event loop is yielded to. Starting one read takes some microseconds. */
const READS_A_SLICE = 256;

/**
 * The SSD reads of one request. The request has locked each block. A read that is still in progress
 * when the request stops waiting is completed, so that later requests find the block in RAM.
 */
export class AwaitedReads {
  readonly #store: TieredStore;
  readonly #nodes: readonly NodeId[];
  readonly #zone: number;
  readonly #reads: Promise<ReadOutcome>[] = [];
  readonly #came = new Map<number, ReadOutcome>();

  /** `zone`: preferred slot allocator zone for the blocks that are read. */
  constructor(store: TieredStore, nodes: readonly NodeId[], zone: number) {
    this.#store = store;
    this.#nodes = nodes;
    this.#zone = zone;
  }

  /** Starts all reads. Resolves when all have finished, or after `ms` milliseconds. */
  async wait(ms: number): Promise<void> {
    if (this.#nodes.length === 0) return;
    const { clock, ssd } = this.#store;
    const late = Promise.withResolvers<void>();
    using _timer = clock.after(ms, late.resolve);
    for (const [at, node] of this.#nodes.entries()) {
      const read = ssd!.load(node, { zone: this.#zone });
      this.#reads.push(read);
      void read.then((outcome) => this.#came.set(at, outcome));
      if (this.#reads.length % READS_A_SLICE === 0) await yieldToLoop();
    }
    await Promise.race([Promise.all(this.#reads), late.promise]);
  }

  /** Returns the outcome of the read of block `at`, or undefined if the read has not finished. */
  outcomeOf(at: number): ReadOutcome | undefined {
    return this.#came.get(at);
  }

  /**
   * Reports that the request does not use block `at`: when its read ends, the block enters the
   * eviction order on its own.
   */
  leave(at: number): void {
    const { ram } = this.#store;
    const settle = (came: ReadOutcome) => came === "ok" && ram.settleFresh(this.#nodes[at]);
    void this.#reads[at].then(settle);
  }
}

/**
 * Milliseconds after the request's deadline at which an outstanding fetch is abandoned. The peer
 * tier gets the same deadline and normally ends its fetches in time.
 */
const GRACE_MS = 50;

export interface BlockToFetch {
  readonly digest: Uint8Array;
  readonly layer: number;
  /** The block's key: eight 32-bit words. */
  readonly key: Uint32Array;
}

/**
 * The fetches from peers of one request. Fetches that have not finished when the request stops
 * waiting are cancelled.
 */
export class AwaitedFetches {
  readonly #store: TieredStore;
  readonly #namespace: NamespaceIndex;
  readonly #blocks: readonly BlockToFetch[];
  readonly #over = new AbortController();
  #outcomes: readonly FetchOutcome[] | null = null;

  constructor(store: TieredStore, namespace: NamespaceIndex, blocks: readonly BlockToFetch[]) {
    this.#store = store;
    this.#namespace = namespace;
    this.#blocks = blocks;
  }

  /**
   * Starts the fetches. Resolves when every outcome is known, after `cancel`, or at most `ms` + 50
   * milliseconds later.
   */
  async wait(ms: number, stopAtMiss: boolean, sources: readonly string[] = []): Promise<void> {
    const { clock, peers } = this.#store;
    if (peers === null || this.#blocks.length === 0) return;
    const { signal } = this.#over;
    const over = Promise.withResolvers<void>();
    using _timer = clock.after(ms + GRACE_MS, over.resolve);
    signal.addEventListener("abort", () => over.resolve(), { once: true });
    const options = { deadlineMs: ms, stopAtMiss, signal, sources };
    const fetched = Promise.try(() => peers.fetch(this.#namespace, this.#blocks, options)).then(
      (outcomes) => {
        if (signal.aborted) giveBack(outcomes);
        else this.#outcomes = outcomes;
      },
      // An error thrown by the peer tier counts as a miss. The peer tier reports the error itself.
      () => {
        this.#outcomes = [];
      },
    );
    await Promise.race([fetched, over.promise]);
    this.cancel();
  }

  /** Cancels the fetches that have not finished. */
  cancel(): void {
    this.#over.abort();
  }

  kindOf(at: number): FetchOutcome["kind"] {
    return this.#outcomes === null ? "late" : (this.#outcomes[at]?.kind ?? "miss");
  }

  /**
   * Returns the node of fetched block `at`, or null if the block did not arrive. The block stays in
   * RAM until `release`.
   */
  nodeOf(at: number): NodeId | null {
    const outcome = this.#outcomes?.[at];
    return outcome?.kind === "ok" ? outcome.arrival.node : null;
  }

  /**
   * Releases all fetched blocks. Call after the request's reply is complete. `isUsed` returns
   * whether the request uses block `at`.
   */
  release(isUsed: (at: number) => boolean): void {
    giveBack(this.#outcomes ?? [], isUsed);
  }
}

/**
 * Releases the fetched blocks from last to first, so that the eviction order sees parents as newer
 * than their children.
 */
function giveBack(
  outcomes: readonly FetchOutcome[],
  isUsed: (at: number) => boolean = () => false,
): void {
  for (let at = outcomes.length - 1; at >= 0; at--) {
    const outcome = outcomes[at];
    if (outcome.kind === "ok") outcome.arrival.release(isUsed(at));
  }
}
