import type { TieredStore } from "../tiered-store.ts";
import type { LookupRank } from "./lookup.ts";

const DIGEST_BYTES = 32;
/** Maximum number of blocks in one query. */
const BLOCKS_MAX = 256;
/** Timeout of an answer. */
const ANSWER_MS = 250;
/** Validity of an answer: longer than the timeout of the next one. */
const VALID_MS = 2 * ANSWER_MS;
/** Time for which the peer may deny the next block before the lookup gives up on it. */
const ABSENT_MS = 100;
/** Delay after a block that the peer has did not arrive. */
const RETRY_MS = 100;

/**
 * Queries the peer that computes the blocks of a lookup: which ones it has, and which will follow.
 */
export class LookupSource {
  readonly #store: TieredStore;
  readonly #worker: string;
  readonly #ranks: readonly LookupRank[];
  readonly #layer: number;
  readonly #stop = new AbortController();
  #isAsking = false;
  /** By rank: the index up to which the peer has promised blocks. */
  readonly #comingTo: number[];
  /**
   * Monotonic ms at which the peer last answered that it has the next block, or is computing it.
   */
  #promisedMs = Number.NEGATIVE_INFINITY;
  /** Monotonic ms of the first later answer that it neither has nor expects the block. */
  #deniedMs = Number.POSITIVE_INFINITY;
  #retryMs = Number.NEGATIVE_INFINITY;

  constructor(
    store: TieredStore,
    worker: string,
    query: { readonly ranks: readonly LookupRank[]; readonly layer: number },
  ) {
    this.#store = store;
    this.#worker = worker;
    this.#ranks = query.ranks;
    this.#layer = query.layer;
    this.#comingTo = query.ranks.map(() => 0);
  }

  /**
   * Whether no more blocks are expected from the peer. `grewMs`: time of the latest arrival. Until
   * then the lookup sends heartbeats, since a client that receives nothing would drop the ready
   * blocks.
   */
  isSilent(grewMs: number): boolean {
    const now = this.#store.clock.monotonicMs();
    if (now - Math.max(grewMs, this.#promisedMs) >= VALID_MS) return true;
    return now - Math.max(grewMs, this.#deniedMs) >= ABSENT_MS;
  }

  /** Whether the peer recently promised block `i`. */
  promises(rank: number, i: number): boolean {
    const now = this.#store.clock.monotonicMs();
    return i < this.#comingTo[rank]! && now - this.#promisedMs < VALID_MS;
  }

  /** Call when a block that the peer has did not arrive. */
  failed(): void {
    this.#retryMs = this.#store.clock.monotonicMs() + RETRY_MS;
  }

  close(): void {
    this.#stop.abort();
  }

  /**
   * Queries the blocks from `from` to `to` for which `isWanted` is true. Returns, by rank, the
   * number of leading blocks that the peer has; null while a query is under way or a retry is not
   * due.
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
    if (comes > 0) [this.#promisedMs, this.#deniedMs] = [now, Number.POSITIVE_INFINITY];
    // While the next block is being fetched, the answer is about later blocks.
    else if (wanted[0] === from) this.#deniedMs = Math.min(this.#deniedMs, now);
    return wanted.slice(0, has);
  }
}
