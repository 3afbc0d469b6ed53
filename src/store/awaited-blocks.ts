import { type NamespaceIndex, type NodeId, yieldToLoop } from "../core/index.ts";
import type { FetchOutcome } from "./exchange/peer-blocks.ts";
import type { ReadOutcome } from "./ssd/block-reader.ts";
import type { TieredStore } from "./tiered-store.ts";

/** Reads started before the loop yields. Each costs some microseconds. */
const READS_A_SLICE = 256;

/**
 * Reads from SSD for one request, which has locked each block. A read that is under way when the
 * request stops waiting is completed for later requests.
 */
export class AwaitedReads {
  readonly #store: TieredStore;
  readonly #nodes: readonly NodeId[];
  readonly #zone: number;
  readonly #reads: Promise<ReadOutcome>[] = [];
  readonly #came = new Map<number, ReadOutcome>();

  /** `zone`: preferred allocator zone. */
  constructor(store: TieredStore, nodes: readonly NodeId[], zone: number) {
    this.#store = store;
    this.#nodes = nodes;
    this.#zone = zone;
  }

  /** Starts all reads. Resolves when they have finished, or after `ms`. */
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

  /** Outcome of the read of block `at`; undefined if it has not finished. */
  outcomeOf(at: number): ReadOutcome | undefined {
    return this.#came.get(at);
  }

  /** Call if the request does not use block `at`. */
  leave(at: number): void {
    const { ram } = this.#store;
    const settle = (came: ReadOutcome) => came === "ok" && ram.settleFresh(this.#nodes[at]!);
    void this.#reads[at]!.then(settle);
  }
}

/** The peer tier observes the deadline. A fetch that overruns it by more than this is abandoned. */
const GRACE_MS = 50;

export interface BlockToFetch {
  readonly digest: Uint8Array;
  readonly layer: number;
  /** Eight words. */
  readonly key: Uint32Array;
}

/** Fetches from peers for one request. They are cancelled when the request stops waiting. */
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

  /** Resolves when all outcomes are known, about `ms` later at most, or on `cancel`. */
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
      // A fault of the peer tier is a miss here. The peer tier reports the fault.
      () => {
        this.#outcomes = [];
      },
    );
    await Promise.race([fetched, over.promise]);
    this.cancel();
  }

  /** Cancels the outstanding fetches. */
  cancel(): void {
    this.#over.abort();
  }

  kindOf(at: number): FetchOutcome["kind"] {
    return this.#outcomes === null ? "late" : (this.#outcomes[at]?.kind ?? "miss");
  }

  /** The block's node, which stays in RAM until `release`; null if the block did not arrive. */
  nodeOf(at: number): NodeId | null {
    const outcome = this.#outcomes?.[at];
    return outcome?.kind === "ok" ? outcome.arrival.node : null;
  }

  /** Call when the request is answered. `isUsed` returns whether the request uses block `at`. */
  release(isUsed: (at: number) => boolean): void {
    giveBack(this.#outcomes ?? [], isUsed);
  }
}

/**
 * Releases from last to first, so that the eviction order sees parents as newer than their
 * children.
 */
function giveBack(
  outcomes: readonly FetchOutcome[],
  isUsed: (at: number) => boolean = () => false,
): void {
  for (let at = outcomes.length - 1; at >= 0; at--) {
    const outcome = outcomes[at]!;
    if (outcome.kind === "ok") outcome.arrival.release(isUsed(at));
  }
}
