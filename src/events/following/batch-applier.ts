import { loopTurns, TurnQueue } from "../../core/index.ts";
import { engineBatchSteps } from "../engine/index.ts";
import type { FeedChange } from "./change-list.ts";
import type { FeedCounts } from "./counts.ts";
import type { Translator } from "./translator.ts";

/** Blocks whose changes are told at once. */
const TOLD_BLOCKS = 256;
/** More than this waiting holds the engine back; the queue itself has no bound. */
const FULL_BATCHES = 1_024;
const FULL_BYTES = 16 * 2 ** 20;

/** What becomes of batches; called in order. Must not throw. */
export interface AppliedChanges {
  changes(changes: readonly FeedChange[]): void;
  /** The size of the engine's blocks, before the first changes of blocks of that size. */
  blockTokens?(size: number): void;
}

/**
 * Where a feed leaves what it took, in the order of its numbers. The feed decides which batch is
 * next and which are missing; here they are decoded and applied, each whole and in order, however
 * late.
 */
export interface BatchSink extends Disposable {
  /** `isFirst`: nothing was heard before it; `isFromStart`: it is the engine's first batch. */
  batch(payload: Uint8Array, isFirst: boolean, isFromStart: boolean): void;
  /** Nothing of before counts. `isComplete`: the engine's events come from the first on. */
  reset(isComplete: boolean): void;
  /** Tells all that is known. */
  announce(): void;
  /** Calls `run` behind all that came before. */
  afterwards(run: () => void): void;
  /** Whether all that came is applied. */
  readonly isIdle: boolean;
  /** Whether the sender should wait until `onRoom`. */
  readonly isFull: boolean;
}

export interface BatchApplierOptions {
  readonly rank: number;
  readonly translator: Translator;
  readonly counts: FeedCounts;
  readonly listener: AppliedChanges;
  /** Called when it is full no more. */
  onRoom(): void;
}

type Work = () => Generator<void, void>;

/** Decodes and applies batches on this thread, in slices of one source for each feed. */
export class BatchApplier implements BatchSink {
  readonly #options: BatchApplierOptions;
  readonly #queue: TurnQueue<Work>;
  /** The size that the listener was told; null: none. */
  #toldSize: number | null = null;
  #wasFull = false;

  constructor(options: BatchApplierOptions) {
    this.#options = options;
    this.#queue = new TurnQueue({
      source: loopTurns.source(),
      // A batch that was taken is never dropped: the feed holds the engine back instead.
      itemsMax: Number.POSITIVE_INFINITY,
      bytesMax: Number.POSITIVE_INFINITY,
      run: (work) => this.#run(work),
    });
  }

  get isIdle(): boolean {
    return this.#queue.isIdle;
  }

  get isFull(): boolean {
    const isFull = this.#queue.length >= FULL_BATCHES || this.#queue.bytes >= FULL_BYTES;
    if (isFull) this.#wasFull = true;
    return isFull;
  }

  batch(payload: Uint8Array, isFirst: boolean, isFromStart: boolean): void {
    const { translator } = this.#options;
    const work = function* (applier: BatchApplier): Generator<void, void> {
      if (isFirst) translator.begin(isFromStart);
      yield* applier.#batch(payload);
    };
    this.#queue.push(() => work(this), payload.length);
  }

  reset(isComplete: boolean): void {
    this.#queue.push(() => this.#told(this.#options.translator.resetSteps(isComplete)));
  }

  announce(): void {
    this.#queue.push(() => this.#told(this.#options.translator.announceSteps()));
  }

  afterwards(run: () => void): void {
    // biome-ignore lint/correctness/useYield: one step
    this.#queue.push(function* () {
      run();
    });
  }

  /** Tells changes that something else than a batch led to. */
  tell(changes: readonly FeedChange[]): void {
    const { translator, listener } = this.#options;
    const size = translator.blockTokens;
    if (size !== null && size !== this.#toldSize) {
      this.#toldSize = size;
      listener.blockTokens?.(size);
    }
    if (changes.length > 0) listener.changes(changes);
  }

  [Symbol.dispose](): void {
    this.#queue[Symbol.dispose]();
  }

  *#run(work: Work): Generator<void, void> {
    yield* work();
    if (!this.#wasFull || this.isFull) return;
    this.#wasFull = false;
    this.#options.onRoom();
  }

  *#batch(payload: Uint8Array): Generator<void, void> {
    const { counts, rank, translator } = this.#options;
    const batch = yield* engineBatchSteps(payload);
    if (!batch.ok) translator.drop("unreadable");
    else if (batch.value.rank !== rank) counts.dropped.other_rank++;
    else yield* this.#told(translator.applySteps(batch.value.events));
    counts.batches++;
  }

  /** Tells what the steps lead to, some at a time. */
  *#told(steps: Generator<void, void>): Generator<void, void> {
    const { translator } = this.#options;
    for (const _step of steps) {
      if (translator.changedBlocks >= TOLD_BLOCKS) this.tell(translator.take());
      yield;
    }
    this.tell(translator.take());
  }
}
