import type { NamespaceIndex } from "../../../src/core/index.ts";
import { nativeBuffer } from "../../../src/native/index.ts";
import type {
  FetchOptions,
  FetchOutcome,
  Loan,
  PeerTier,
  TieredStore,
} from "../../../src/store/index.ts";

type Wanted = Parameters<PeerTier["fetch"]>[1][number];

/**
 * A peer in this process: its blocks are copied from its store into the store under test. It
 * promises the first `claims` blocks of a prompt, or the blocks that it has.
 */
export class Neighbour implements PeerTier {
  readonly #here: TieredStore;
  readonly #there: TieredStore;
  /** Arguments of each `promising` and each `fetch`. */
  readonly promised: { from: number; count: number }[] = [];
  readonly fetched: { count: number; options: FetchOptions }[] = [];
  /** Length of the promised run; null for the actual one. */
  claims: number | null = null;
  /** Awaited before each block is sent. */
  before: (at: number, options: FetchOptions) => Promise<unknown> = () => Promise.resolve();
  /** Whether fetched blocks are kept. */
  keep = true;
  /** Changes the attributes of a block before it is sent. */
  lie: (loan: Loan) => Partial<Loan> = () => ({});

  constructor(here: TieredStore, there: TieredStore) {
    this.#here = here;
    this.#there = there;
  }

  promising(namespace: NamespaceIndex, keys: Uint32Array, from: number, count: number): number {
    this.promised.push({ from, count });
    if (this.claims !== null) return Math.min(this.claims, count);
    const best = new Uint8Array(count);
    return this.#there.table.matchLeading(keys.subarray(from * 8), count, namespace, 15, best);
  }

  async fetch(
    namespace: NamespaceIndex,
    blocks: readonly Wanted[],
    options: FetchOptions,
  ): Promise<FetchOutcome[]> {
    this.fetched.push({ count: blocks.length, options });
    const outcomes: FetchOutcome[] = [];
    for (const [at, block] of blocks.entries()) {
      await this.before(at, options);
      outcomes.push(await this.#pull(namespace, block));
    }
    return outcomes;
  }

  async #pull(namespace: NamespaceIndex, { digest, layer }: Wanted): Promise<FetchOutcome> {
    const [here, there] = [this.#here, this.#there];
    const wishes = { deadlineMs: 1_000, warm: false };
    const loan = await there.peerBlocks.lend(namespace, digest, layer, wishes);
    if (typeof loan === "string") return { kind: "miss" };
    try {
      const { bytes } = loan;
      const landing = here.peerBlocks.land(namespace, digest, layer, bytes, this.keep);
      if (typeof landing === "string") return { kind: landing === "full" ? "full" : "miss" };
      const buffer = nativeBuffer(bytes);
      there.region.copyOut(loan.offset, buffer, bytes, false);
      const arrived = here.region.copyIn(landing.offset, buffer, bytes, true);
      const key = there.namespaces.keyOf(namespace)!;
      const block = { ...loan, namespace: key, ...this.lie(loan) };
      const committed = landing.commit(block, arrived);
      return committed.kind === "ok" ? committed : { kind: "miss" };
    } finally {
      loan.release();
    }
  }
}
