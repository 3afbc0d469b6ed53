import type { TieredStore } from "../tiered-store.ts";
import type { LookupRank } from "./lookup.ts";

const DIGEST_BYTES = 32;
/** Maximum number of blocks in one query to the peer. */
const BLOCKS_MAX = 256;
/** Milliseconds after which an unanswered query has failed. */
const ANSWER_MS = 250;
/** Milliseconds for which a reply is valid. Longer than the timeout of the next query. */
const VALID_MS = 2 * ANSWER_MS;
/**
 * Milliseconds for which the peer may report that it lacks the next block before the lookup gives
 * up on it.
 */
const ABSENT_MS = 100;
/** Milliseconds before another attempt if a block that the peer has did not arrive. */
const RETRY_MS = 100;

/**
 * Queries the peer that computes the blocks of a lookup: which blocks it has, and which it is
 * computing.
 */
export class LookupSource {
  readonly #store: TieredStore;
  readonly #worker: string;
  readonly #ranks: readonly LookupRank[];
  readonly #layer: number;
  readonly #stop = new AbortController();
  #isAsking = false;
  /** Per rank: the index before which the peer has promised blocks. */
  readonly #comingTo: number[];
  /** Time (monotonic ms) of the peer's last reply that it has the next block or is computing it. */
  #promisedMs = Number.NEGATIVE_INFINITY;
  /**
   * Time (monotonic ms) of the first reply since then that it neither has nor computes the block.
   */
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
   * Returns whether no more blocks are expected from the peer. `grewMs`: time (monotonic ms) of the
   * latest arrival of a block. While this is false, the lookup sends heartbeats, since a client
   * that receives nothing would drop the ready blocks.
   */
  isSilent(grewMs: number): boolean {
    const now = this.#store.clock.monotonicMs();
    if (now - Math.max(grewMs, this.#promisedMs) >= VALID_MS) return true;
    return now - Math.max(grewMs, this.#deniedMs) >= ABSENT_MS;
  }

  /** Returns whether a valid reply of the peer promises block `i`. */
  promises(rank: number, i: number): boolean {
    const now = this.#store.clock.monotonicMs();
    return i < this.#comingTo[rank] && now - this.#promisedMs < VALID_MS;
  }

  /** Reports that a block that the peer has did not arrive. Delays the next query. */
  failed(): void {
    this.#retryMs = this.#store.clock.monotonicMs() + RETRY_MS;
  }

  close(): void {
    this.#stop.abort();
  }

  /**
   * Queries the blocks with indices `from` to `to` for which `isWanted` returns true. Returns, per
   * rank, the leading ones that the peer has; null while a query is in progress or a retry is not
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
    const { namespace, digests } = this.#ranks[rank];
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
    this.#comingTo[rank] = comes === 0 ? 0 : wanted[comes - 1] + 1;
    const now = clock.monotonicMs();
    if (comes > 0) [this.#promisedMs, this.#deniedMs] = [now, Number.POSITIVE_INFINITY];
    // If the next block is being fetched, the reply is about later blocks and says nothing about
    // it.
    else if (wanted[0] === from) this.#deniedMs = Math.min(this.#deniedMs, now);
    return wanted.slice(0, has);
  }
}
