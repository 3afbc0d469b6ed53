import type { TieredStore } from "../tiered-store.ts";
import type { LookupRank } from "./lookup.ts";

const DIGEST_BYTES = 32;
/** Blocks in one question. */
const BLOCKS_MAX = 256;
/** How long an answer may take. */
const ANSWER_MS = 250;
/** How long an answer of the peer counts: longer than the next one may take. */
const BELIEVED_MS = 2 * ANSWER_MS;
/** How long the peer may answer that it neither has nor expects the next block. */
const ABSENT_MS = 100;
/** Behind a block that the peer has and that did not come. */
const RETRY_MS = 100;

/** The peer that computes the blocks of a lookup: it is asked what it has and what will come. */
export class LookupSource {
  readonly #store: TieredStore;
  readonly #worker: string;
  readonly #ranks: readonly LookupRank[];
  readonly #layer: number;
  readonly #stop = new AbortController();
  #isAsking = false;
  /** By rank: the block from which on it has said nothing. */
  readonly #comingTo: number[];
  /** Monotonic ms at which the peer last said that it has the next block, or computes it. */
  #saidMs = Number.NEGATIVE_INFINITY;
  /** Monotonic ms of the first answer since then that it neither has nor expects it. */
  #deniedMs = Number.POSITIVE_INFINITY;
  #retryMs = Number.NEGATIVE_INFINITY;

  constructor(
    store: TieredStore,
    worker: string,
    wish: { readonly ranks: readonly LookupRank[]; readonly layer: number },
  ) {
    this.#store = store;
    this.#worker = worker;
    this.#ranks = wish.ranks;
    this.#layer = wish.layer;
    this.#comingTo = wish.ranks.map(() => 0);
  }

  /**
   * Whether nothing more is expected of the peer; `grewMs`: when a block last came. Until then the
   * lookup sends heartbeats: a client that hears nothing would drop the blocks that are ready.
   */
  isSilent(grewMs: number): boolean {
    const now = this.#store.clock.monotonicMs();
    if (now - Math.max(grewMs, this.#saidMs) >= BELIEVED_MS) return true;
    return now - Math.max(grewMs, this.#deniedMs) >= ABSENT_MS;
  }

  /** Whether the peer said lately that block `i` will come. */
  promises(rank: number, i: number): boolean {
    const now = this.#store.clock.monotonicMs();
    return i < this.#comingTo[rank]! && now - this.#saidMs < BELIEVED_MS;
  }

  /** A block that it has did not come. */
  failed(): void {
    this.#retryMs = this.#store.clock.monotonicMs() + RETRY_MS;
  }

  close(): void {
    this.#stop.abort();
  }

  /**
   * Asks about the blocks from `from` to `to` that `isWanted` is true of. By rank the leading ones
   * that it has; null while it is being asked, or should not be yet.
   */
  async ask(
    from: number,
    to: number,
    isWanted: (rank: number, i: number) => boolean,
  ): Promise<number[][] | null> {
    const { clock } = this.#store;
    if (this.#isAsking || clock.monotonicMs() < this.#retryMs) return null;
    this.#isAsking = true;
    const end = Math.min(to, from + BLOCKS_MAX);
    try {
      return await Promise.all(
        this.#ranks.map((_, rank) => this.#askOne(rank, from, end, isWanted)),
      );
    } finally {
      this.#isAsking = false;
    }
  }

  async #askOne(
    rank: number,
    from: number,
    end: number,
    isWanted: (rank: number, i: number) => boolean,
  ): Promise<number[]> {
    const { peers, clock } = this.#store;
    const wanted: number[] = [];
    for (let i = from; i < end; i++) if (isWanted(rank, i)) wanted.push(i);
    if (wanted.length === 0) return [];
    const { namespace, digests } = this.#ranks[rank]!;
    const blocks = wanted.map((i) => ({
      digest: digests.slice(DIGEST_BYTES * i, DIGEST_BYTES * (i + 1)),
      layer: this.#layer,
    }));
    const options = { deadlineMs: ANSWER_MS, signal: this.#stop.signal };
    const said = await peers?.whatHas?.(this.#worker, namespace, blocks, options);
    if (said === undefined || said === null) return [];
    let has = said.findIndex((one) => one !== "here");
    if (has < 0) has = said.length;
    let comes = said.indexOf("absent");
    if (comes < 0) comes = said.length;
    this.#comingTo[rank] = comes === 0 ? 0 : wanted[comes - 1]! + 1;
    const now = clock.monotonicMs();
    if (comes > 0) [this.#saidMs, this.#deniedMs] = [now, Number.POSITIVE_INFINITY];
    // While the next block is on its way, the answer is about later ones.
    else if (wanted[0] === from) this.#deniedMs = Math.min(this.#deniedMs, now);
    return wanted.slice(0, has);
  }
}
