import { type NamespaceIndex, type NodeId, yieldToLoop } from "../core/index.ts";
import type { FetchOutcome } from "./exchange/peer-blocks.ts";
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

/** The tier itself ends with the deadline; one that does not is waited for so much longer. */
const GRACE_MS = 50;

export interface FetchedBlock {
  readonly digest: Uint8Array;
  readonly layer: number;
  /** Eight words. */
  readonly key: Uint32Array;
}

/** Blocks on their way from other hosts for one request; when it stops waiting, so do they. */
export class FetchedBlocks {
  readonly #store: TieredStore;
  readonly #namespace: NamespaceIndex;
  readonly #blocks: readonly FetchedBlock[];
  readonly #over = new AbortController();
  #outcomes: readonly FetchOutcome[] | null = null;

  constructor(store: TieredStore, namespace: NamespaceIndex, blocks: readonly FetchedBlock[]) {
    this.#store = store;
    this.#namespace = namespace;
    this.#blocks = blocks;
  }

  /** Resolves when all is known of them, about `ms` later, or once nobody wants them any more. */
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
      // A fault over there is a miss here; who has it tells it.
      () => {
        this.#outcomes = [];
      },
    );
    await Promise.race([fetched, over.promise]);
    this.cancel();
  }

  /** Nobody wants them any more. */
  cancel(): void {
    this.#over.abort();
  }

  kindOf(at: number): FetchOutcome["kind"] {
    return this.#outcomes === null ? "late" : (this.#outcomes[at]?.kind ?? "miss");
  }

  /** The block, which is in RAM until `release`; null: it did not come. */
  nodeOf(at: number): NodeId | null {
    const outcome = this.#outcomes?.[at];
    return outcome?.kind === "ok" ? outcome.arrival.node : null;
  }

  /** The request has taken what it takes: `isUsed` says of each block whether it did. */
  release(isUsed: (at: number) => boolean): void {
    giveBack(this.#outcomes ?? [], isUsed);
  }
}

/** From last to first: parents come into the order as newer than their children. */
function giveBack(
  outcomes: readonly FetchOutcome[],
  isUsed: (at: number) => boolean = () => false,
): void {
  for (let at = outcomes.length - 1; at >= 0; at--) {
    const outcome = outcomes[at]!;
    if (outcome.kind === "ok") outcome.arrival.release(isUsed(at));
  }
}
